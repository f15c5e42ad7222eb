//! Accounts: users, sessions, and tokens of users and agents.
//!
//! A secret leaves this module once, when it is created; only its hash is stored. A token never grants more than its creator
//! has, and the scope to decide is given to people only.

mod passwords;
mod random_secrets;
mod sessions;
mod tokens;
mod users;

use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::StoredUser;

pub use random_secrets::{hash_secret, matches_hash};
pub use sessions::{NewSession, SESSION_TTL_MS};
pub use tokens::{NewToken, TokenDraft};
pub use users::{UserChange, UserDraft};

use crate::{Caller, Context, Error, ObjectKind, Result, TaskService};
use passwords::PasswordHashing;

#[derive(Debug, Clone)]
pub struct AccountService {
    context: Context,
    tasks: TaskService,
    passwords: PasswordHashing,
}

impl AccountService {
    /// `tasks` reassigns the approval requests of users who leave.
    #[must_use]
    pub fn new(context: Context, tasks: TaskService) -> Self {
        Self { context, tasks, passwords: PasswordHashing::new() }
    }

    pub async fn user(&self, id: &str, caller: &Caller) -> Result<StoredUser> {
        caller.require_scope(Scope::Read)?;
        self.load_user(id).await
    }

    async fn load_user(&self, id: &str) -> Result<StoredUser> {
        self.context.database.user(&UserId::new(id)).await?.ok_or(Error::NotFound(ObjectKind::User))
    }

    /// Users by id, starting after `after`.
    pub async fn users(&self, after: Option<&str>, limit: u32, caller: &Caller) -> Result<Vec<StoredUser>> {
        caller.require_scope(Scope::Read)?;
        Ok(self.context.database.users(after, limit).await?)
    }
}
