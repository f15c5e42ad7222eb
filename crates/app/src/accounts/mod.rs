//! Accounts: users, sessions, and tokens of users and agents.
//!
//! A secret leaves this module once, when it is created; only its hash is stored. A token never grants more than its creator
//! has, and the scope to decide is given to people only.

mod passwords;
mod random_secrets;
mod sessions;
mod tokens;
mod users;

use std::sync::Arc;

use ade_domain::Clock;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::Database;
use ade_store::database::StoredUser;

pub use random_secrets::{hash_secret, matches_hash};
pub use sessions::{NewSession, SESSION_TTL_MS};
pub use tokens::{NewToken, TokenDraft};
pub use users::{UserChange, UserDraft};

use crate::{Caller, Error, ObjectKind, TaskService};
use passwords::PasswordHashing;

#[derive(Clone)]
pub struct AccountService {
    database: Database,
    clock: Arc<dyn Clock>,
    tasks: TaskService,
    passwords: PasswordHashing,
}

impl std::fmt::Debug for AccountService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountService").finish_non_exhaustive()
    }
}

impl AccountService {
    /// `tasks` reassigns the approval requests of users who leave.
    #[must_use]
    pub fn new(database: Database, clock: Arc<dyn Clock>, tasks: TaskService) -> Self {
        Self { database, clock, tasks, passwords: PasswordHashing::new() }
    }

    pub async fn user(&self, id: &str, caller: &Caller) -> Result<StoredUser, Error> {
        caller.require_scope(Scope::Read)?;
        self.load_user(id).await
    }

    async fn load_user(&self, id: &str) -> Result<StoredUser, Error> {
        self.database.user(&UserId::new(id)).await?.ok_or(Error::NotFound(ObjectKind::User))
    }

    /// Users by id, starting after `after`.
    pub async fn users(
        &self,
        after: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<StoredUser>, Error> {
        caller.require_scope(Scope::Read)?;
        Ok(self.database.users(after, limit).await?)
    }
}

/// Fails unless the caller has the scope and the role of an administrator.
pub fn require_admin(caller: &Caller) -> Result<(), Error> {
    caller.require_scope(Scope::Admin)?;
    if caller.is_admin() {
        return Ok(());
    }
    Err(Error::Forbidden("only an administrator can do this".to_owned()))
}
