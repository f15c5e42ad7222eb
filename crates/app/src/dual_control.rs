//! Dual control: stores a change that waits for a second administrator, instead of making it. `changes` makes it once it is
//! confirmed.

use ade_domain::dual_control::ProposedChange;
use ade_store::database::{Versioned, Write};
use serde_json::{Value, json};

use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{Caller, Context, Error, Outcome, Result, new_id};

/// Changes of one administrator that wait at the same time: nobody must keep others from proposing any.
const MAX_WAITING_CHANGES: usize = 50;

impl Context {
    /// Whether a change of who decides, or by which rules, waits if this caller makes it.
    pub(crate) async fn needs_second_admin(&self, caller: &Caller) -> Result<bool> {
        if !self.dual_control || caller.confirms.is_some() {
            return Ok(false);
        }
        Ok(self.database.people().await?.needs_second_admin(caller.user_id()))
    }

    /// Stores a change that waits, unless the same one waits already, and returns the error that says so. `request` is what `changes`
    /// reads to make it, `revision` the one that it changes.
    pub(crate) async fn propose(
        &self,
        action: &AuditedAction<'_>,
        revision: Option<u64>,
        request: Value,
        caller: &Caller,
    ) -> Result<Error> {
        let waiting = self.database.documents::<ProposedChange>().await?;
        let now = self.now();
        let is_own =
            |change: &&Versioned<ProposedChange>| change.value.proposed_by.as_ref() == caller.user_id();
        let own: Vec<_> = waiting.iter().filter(is_own).collect();
        let is_same = |waiting: &ProposedChange| {
            (waiting.action.as_str(), waiting.object_id.as_str()) == (action.action, action.object_id)
                && (waiting.revision, &waiting.request) == (revision, &request)
                && now < waiting.expires_at()
        };
        if let Some(same) = own.iter().find(|change| is_same(&change.value)) {
            let (change_id, expires_at) = (same.id.clone(), same.value.expires_at());
            return Ok(Error::AwaitsConfirmation { change_id, expires_at });
        }
        if own.len() >= MAX_WAITING_CHANGES {
            return Err(Error::TooManyChanges);
        }
        let change_id = new_id();
        let value = ProposedChange {
            action: action.action.to_owned(),
            object_type: action.object_type.to_owned(),
            object_id: action.object_id.to_owned(),
            revision,
            details: action.details.clone(),
            request,
            proposed_by: caller.user_id().cloned(),
            proposed_at: now,
        };
        let expires_at = value.expires_at();
        let mut details = value.details.clone();
        for (name, text) in
            [("action", &value.action), ("object_type", &value.object_type), ("object_id", &value.object_id)]
        {
            details.insert(name.to_owned(), json!(text));
        }
        let proposal = AuditedAction {
            details,
            notify: self.database.people().await?.administrators(),
            ..AuditedAction::new("change.propose", &change_id).with_revision(1)
        };
        let write = Write::document(&Versioned { id: change_id.clone(), revision: 1, value }, None);
        let mut commit = proposal.commit(vec![write], caller, now);
        let outcome = |_| Outcome::AwaitsConfirmation { change_id: change_id.clone(), expires_at };
        commit.response = stored_response(caller, outcome)?;
        self.database.commit(commit).await?;
        Ok(Error::AwaitsConfirmation { change_id, expires_at })
    }
}
