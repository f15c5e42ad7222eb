//! What administrators do to the accounts of others: kept with the account, announced to all administrators, and lifted by an
//! independent one.

use ade_domain::Moment;
use ade_domain::independence::{AccountAct, AccountActKind, Lift};
use ade_domain::people::{People, User};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_store::database::{StoredUser, Write};

use super::AccountService;
use crate::events::AuditedAction;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Result};

/// Keeps acts with the account that they were done to. Acts of the operator are not kept.
pub(super) fn record_acts(
    user: &mut User,
    kinds: impl IntoIterator<Item = AccountActKind>,
    people: &People,
    caller: &Caller,
    now: Moment,
) {
    for (kind, by) in kinds.into_iter().flat_map(|kind| caller.makers().map(move |by| (kind, by))) {
        // The only administrator cannot be independent of anybody otherwise.
        let exempt = kind == AccountActKind::Invited && people.is_only_admin_ever(by);
        user.history.record(AccountAct { kind, by: by.clone(), at: now, exempt, lifted: None });
    }
}

impl AccountService {
    /// Confirms that another person uses an account, so that it counts as independent of those who created or changed it.
    pub async fn confirm_user(&self, id: &str, caller: &Caller) -> Result<StoredUser> {
        caller.require_admin()?;
        if caller.user.is_some() {
            caller.require_scope(Scope::Decide)?;
        }
        if caller.is_user(id) {
            return Err(Error::forbidden("you cannot confirm your own account; ask another administrator"));
        }
        retry_on_conflict(async || {
            let before = self.load_user(id).await?;
            let (people, now) = (self.context.database.people().await?, self.context.now());
            if let Some(by) = caller.user_id() {
                let confirmed = people.authorize_confirmation(by, &before.user.user_id, now);
                confirmed.map_err(|why| Refusal::NotIndependent(Box::new(why)))?;
            }
            let mut after = before.clone();
            if !after.user.history.lift(&Lift { by: caller.user_id().cloned(), at: now }) {
                return Ok(Some(before));
            }
            after.revision += 1;
            let action = AuditedAction {
                revision: Some(after.revision),
                notify: people.administrators(),
                ..AuditedAction::new("user.confirm", id)
            };
            let write = Write::User { user: Box::new(after.clone()), expected: Some(before.revision) };
            let commit = action.commit(vec![write], caller, now);
            Ok(self.context.commit(commit).await?.then_some(after))
        })
        .await
    }
}
