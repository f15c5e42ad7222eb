//! The rules that approvals follow: policies, delegations, the resource registry, settings and feature flags.
//!
//! Each change is committed with its audit entry and event, guarded by the revision that was read.

mod delegations;
mod policies;
mod resources;
mod settings;

use ade_domain::approval::assignment::RuleChange;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{Commit, Document, Versioned, Write};
use serde_json::{Map, json};

pub use delegations::DelegationChange;
pub use policies::{PolicyChange, hypothetical_policies};
pub use resources::ResourceChange;

use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Context, Error, ObjectKind, Outcome, Result, new_id};

#[derive(Debug, Clone)]
pub struct RuleService {
    context: Context,
}

/// A document of this service.
pub trait Rule: Document + Clone + PartialEq {
    fn outcome(document: Versioned<Self>) -> Outcome;

    /// The documents that exist without being stored, with revision 0. If there are any, there are no others.
    #[must_use]
    fn defaults() -> Vec<Versioned<Self>> {
        Vec::new()
    }

    fn is_visible(&self, _caller: &Caller) -> bool {
        true
    }

    /// Whether a change can decide about automatic approval.
    fn affects_approval(_id: &str, _before: Option<&Self>, _after: Option<&Self>) -> bool {
        true
    }

    /// Whether the people who make a change are kept from automatic approval for a while.
    fn keeps_makers_from_approval(id: &str, before: Option<&Self>, after: Option<&Self>) -> bool {
        Self::affects_approval(id, before, after)
    }

    /// Further writes of a change: created if there is no `before`, deleted if there is no `after`.
    fn extra_writes(_id: &str, _before: Option<&Self>, _after: Option<&Self>) -> Vec<Write> {
        Vec::new()
    }
}

/// Names the object that exists already, instead of the database constraint.
fn describe_existing(error: Error, object: String) -> Error {
    if matches!(error, Error::Database(DatabaseError::AlreadyExists { .. })) {
        Error::Exists(object)
    } else {
        error
    }
}

impl RuleService {
    #[must_use]
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// The documents that the caller can see, oldest first, or all with a default, in their order.
    pub async fn list<T: Rule>(&self, caller: &Caller) -> Result<Vec<Versioned<T>>> {
        caller.require_scope(Scope::Read)?;
        let mut documents: Vec<Versioned<T>> = self.context.database.documents().await?;
        documents.retain(|document| document.value.is_visible(caller));
        let mut defaults = T::defaults();
        for default in &mut defaults {
            if let Some(stored) = documents.iter().find(|document| document.id == default.id) {
                default.clone_from(stored);
            }
        }
        Ok(if defaults.is_empty() { documents } else { defaults })
    }

    pub async fn get<T: Rule>(&self, id: &str, caller: &Caller) -> Result<Versioned<T>> {
        caller.require_scope(Scope::Read)?;
        let found = self.find(id).await?.filter(|found: &Versioned<T>| found.value.is_visible(caller));
        found.ok_or(Error::NotFound(ObjectKind::Document(T::KIND)))
    }

    /// The document as it is stored, or its default.
    async fn find<T: Rule>(&self, id: &str) -> Result<Option<Versioned<T>>> {
        let (defaults, stored) = (T::defaults(), self.context.database.document(id).await?);
        Ok(match defaults.iter().find(|default| default.id == id) {
            None => stored.filter(|_| defaults.is_empty()),
            default => stored.or(default.cloned()),
        })
    }

    /// The document, if its revision is the one that the caller expects.
    async fn expected<T: Rule>(&self, id: &str, caller: &Caller) -> Result<Versioned<T>> {
        let document = self.find(id).await?.ok_or(Error::NotFound(ObjectKind::Document(T::KIND)))?;
        caller.check_revision(document.revision)?;
        Ok(document)
    }

    async fn create<T: Rule>(
        &self,
        action: &str,
        id: String,
        value: T,
        caller: &Caller,
    ) -> Result<Versioned<T>> {
        let after = Versioned { id, revision: 1, value };
        self.commit(action, None, Some(&after), caller).await?.ok_or(Error::Conflict)
    }

    /// Changes a document, and retries after conflicts. `decide` returns the document and its value after the change; without
    /// one, the document is deleted.
    async fn change<T: Rule, F: Future<Output = Result<(Versioned<T>, Option<T>)>>>(
        &self,
        action: &str,
        caller: &Caller,
        decide: impl Fn() -> F,
    ) -> Result<Versioned<T>> {
        retry_on_conflict(async || {
            let (before, after) = decide().await?;
            let after = after.map(|value| before.next(value));
            self.commit(action, Some(&before), after.as_ref(), caller).await
        })
        .await
    }

    /// Makes a confirmed change: the value after it, or none if the document is deleted.
    async fn make<T: Rule>(&self, action: &str, id: &str, after: Option<T>, caller: &Caller) -> Result<()> {
        match (after, caller.if_match) {
            (Some(value), None) => self.create(action, id.to_owned(), value, caller).await.map(drop),
            (after, _) => {
                let decide = async || Ok((self.expected(id, caller).await?, after.clone()));
                self.change(action, caller, decide).await.map(drop)
            }
        }
    }

    /// Commits a change of one document: created if there is no `before`, deleted if there is no `after`. Returns the document
    /// after it, or before it if it is deleted. `None` after a conflict. `action` is as `policy.create`.
    async fn commit<T: Rule>(
        &self,
        action: &str,
        before: Option<&Versioned<T>>,
        after: Option<&Versioned<T>>,
        caller: &Caller,
    ) -> Result<Option<Versioned<T>>> {
        // If nothing changes, only the stored response is written.
        let [old, new] = [before, after].map(|document| document.map(|document| &document.value));
        let Some(document) = after.filter(|_| old != new).or(before) else { return Ok(None) };
        let mut commit = Commit::default();
        if old != new {
            // A default has revision 0 and is not stored yet.
            let expected = before.map(|document| document.revision).filter(|revision| *revision > 0);
            let mut writes = T::extra_writes(&document.id, old, new);
            writes.extend(match (after, expected) {
                (Some(after), expected) => Some(Write::document(after, expected)),
                (None, Some(expected)) => {
                    Some(Write::DeleteDocument { kind: T::KIND, id: document.id.clone(), expected })
                }
                (None, None) => None,
            });
            let affects_approval = T::affects_approval(&document.id, old, new);
            let is_kept = T::keeps_makers_from_approval(&document.id, old, new);
            for by in caller.makers().filter(|_| is_kept).cloned() {
                let (what, at) = (format!("{action} {}", document.id), self.context.now());
                let value = RuleChange { what, by, at };
                writes.push(Write::document(&Versioned { id: new_id(), revision: 1, value }, None));
            }
            let mut details = Map::new();
            for (name, value) in [("before", old), ("after", new)] {
                details.extend(value.map(|value| (name.to_owned(), json!(value))));
            }
            let action = AuditedAction {
                object_type: T::KIND.as_str(),
                revision: Some(document.revision),
                details,
                ..AuditedAction::new(action, &document.id)
            };
            if affects_approval && self.context.needs_second_admin(caller).await? {
                let revision = before.map(|document| document.revision);
                return Err(self.context.propose(&action, revision, json!(new), caller).await?);
            }
            commit = action.commit(writes, caller, self.context.now());
        }
        commit.response = stored_response(caller, |_| T::outcome(document.clone()))?;
        match self.context.commit(commit).await {
            // Two callers replaced the same default at once.
            Err(Error::Database(DatabaseError::AlreadyExists { .. }))
                if before.is_some_and(|before| before.revision == 0) =>
            {
                Ok(None)
            }
            committed => Ok(committed?.then(|| document.clone())),
        }
    }
}
