//! Accounts: people, how they sign in, and tokens that act for them or for their agents.
//!
//! Secrets leave this room once, when they are made; what is stored are hashes. A token never gives more than whoever makes it
//! has, and what decides is given to people alone.

mod passwords;
mod secrets;
mod sessions;
mod tokens;
mod users;

use std::sync::Arc;

use ade_domain::Clock;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::Database;
use ade_store::database::StoredUser;

pub use secrets::{hash, same};
pub use sessions::{SESSION_LASTS_MS, SignedIn};
pub use tokens::{MadeToken, TokenDraft};
pub use users::{UserChange, UserDraft};

use crate::{Caller, Error, TaskService};
use passwords::Passwords;

/// The use cases; clones are the same ones.
#[derive(Clone)]
pub struct AccountService {
    record: Database,
    clock: Arc<dyn Clock>,
    reviews: TaskService,
    passwords: Passwords,
}

impl std::fmt::Debug for AccountService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl AccountService {
    /// On a record, by a clock. What becomes of a leaver's requests is decided by `reviews`.
    #[must_use]
    pub fn new(record: Database, clock: Arc<dyn Clock>, reviews: TaskService) -> Self {
        Self { record, clock, reviews, passwords: Passwords::new() }
    }

    /// Somebody.
    pub async fn user(&self, id: &str, caller: &Caller) -> Result<StoredUser, Error> {
        caller.require(Scope::Read)?;
        self.known(id).await
    }

    async fn known(&self, id: &str) -> Result<StoredUser, Error> {
        self.record.user(&UserId::new(id)).await?.ok_or(Error::NotFound("user"))
    }

    /// People by id.
    pub async fn users(
        &self,
        after: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<StoredUser>, Error> {
        caller.require(Scope::Read)?;
        Ok(self.record.users(after, limit).await?)
    }
}

/// Refuses whoever does not administer.
pub fn require_admin(caller: &Caller) -> Result<(), Error> {
    caller.require(Scope::Admin)?;
    if caller.administers() {
        return Ok(());
    }
    Err(Error::Forbidden("only an administrator may do this".to_owned()))
}
