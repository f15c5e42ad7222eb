//! Accounts: users, invitations, sessions, and tokens of users and agents.
//!
//! A secret leaves this module once, when it is created; only its hash is stored. A token never grants more than its creator
//! has, and the scope to decide is given to people only.

mod acts;
mod invitations;
mod passwords;
mod random_secrets;
mod recent_callers;
mod sessions;
mod sign_in_attempts;
mod tokens;
mod user_change;
mod users;

use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::StoredUser;

pub use invitations::{InvitationDraft, NewInvitation, recover_admin};
pub use random_secrets::{csrf_token, hash_secret, matches_csrf_token};
pub use sessions::{NewSession, SessionUse};
pub use sign_in_attempts::{DEVICE_TTL_MS, SignInAttempt};
pub use tokens::{NewToken, TokenDraft};
#[cfg(test)]
pub(crate) use user_change::UserProposal;
pub use user_change::{UserChange, UserDraft};

use crate::{Caller, Context, Error, ObjectKind, Result, TaskService};
use passwords::PasswordHashing;
use recent_callers::RecentCallers;
use sign_in_attempts::FailedAttempts;

#[derive(Debug, Clone)]
pub struct AccountService {
    context: Context,
    tasks: TaskService,
    passwords: PasswordHashing,
    bootstrap_decides: bool,
    failed_attempts: FailedAttempts,
    recent_callers: RecentCallers,
}

impl AccountService {
    /// `tasks` reassigns the approval requests of users who leave.
    #[must_use]
    pub fn new(context: Context, tasks: TaskService) -> Self {
        Self {
            context,
            tasks,
            passwords: PasswordHashing::new(),
            bootstrap_decides: false,
            failed_attempts: FailedAttempts::default(),
            recent_callers: RecentCallers::default(),
        }
    }

    /// Lets the bootstrap token create tokens that decide for any user, as `security.bootstrap_decides`.
    #[must_use]
    pub fn with_bootstrap_decides(self, bootstrap_decides: bool) -> Self {
        Self { bootstrap_decides, ..self }
    }

    pub async fn user(&self, id: &str, caller: &Caller) -> Result<StoredUser> {
        caller.require_scope(Scope::Read)?;
        self.load_user(id).await
    }

    /// The caller's own user, which every caller may read.
    pub async fn own_user(&self, id: &str) -> Result<StoredUser> {
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
