//! The rules that approvals follow: policies, delegations, and the resource registry. Settings and feature flags are in
//! `settings`.
//!
//! Each change is committed with its audit entry and event, guarded by the revision that was read.

mod delegations;
mod policies;
mod resources;

use std::sync::Arc;

use ade_domain::{Clock, InvalidField};
use ade_store::database::{Commit, Document, Versioned, Write};
use ade_store::{Database, DatabaseError};
use serde_json::{Map, json};

pub use delegations::DelegationChange;
pub use policies::{PolicyChange, hypothetical_policies};
pub use resources::ResourceChange;

use crate::audit::AuditedAction;
use crate::{Caller, Error, ObjectKind, Outcome};

#[derive(Clone)]
pub struct RuleService {
    pub(crate) database: Database,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for RuleService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleService").finish_non_exhaustive()
    }
}

/// Checks `If-Match`.
pub(crate) fn check_revision<T>(document: &Versioned<T>, caller: &Caller) -> Result<(), Error> {
    match caller.if_match {
        Some(revision) if revision != document.revision => Err(Error::Stale { now: document.revision }),
        _ => Ok(()),
    }
}

fn require_valid(faults: Vec<InvalidField>) -> Result<(), Error> {
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

impl RuleService {
    #[must_use]
    pub fn new(database: Database, clock: Arc<dyn Clock>) -> Self {
        Self { database, clock }
    }

    /// Commits a change of one document: created if there is no `before`, deleted if there is no `after`. Returns the document
    /// after it, or before it if it is deleted. `None` after a conflict. `action` is as `policy.create`.
    pub(crate) async fn commit<'a, T: Document + Clone + PartialEq>(
        &self,
        action: &'static str,
        before: Option<&'a Versioned<T>>,
        after: Option<&'a Versioned<T>>,
        extra_writes: Vec<Write>,
        outcome: fn(&'a Versioned<T>) -> Outcome<'a>,
        caller: &Caller,
    ) -> Result<Option<Versioned<T>>, Error> {
        // If nothing changes, only the stored response is written.
        let is_changed = before.map(|document| &document.value) != after.map(|document| &document.value);
        let Some(document) = after.filter(|_| is_changed).or(before) else { return Ok(None) };
        let now = self.clock.now();
        let mut commit = Commit::default();
        if is_changed {
            // A default has revision 0 and is not stored yet.
            let expected = before.map(|document| document.revision).filter(|revision| *revision > 0);
            commit.writes = extra_writes;
            commit.writes.extend(match (after, expected) {
                (Some(after), expected) => Some(Write::document(after, expected)),
                (None, Some(expected)) => {
                    Some(Write::DeleteDocument { kind: T::KIND, id: document.id.clone(), expected })
                }
                (None, None) => None,
            });
            let mut details = Map::new();
            for (name, document) in [("before", before), ("after", after)] {
                details.extend(document.map(|document| (name.to_owned(), json!(document.value))));
            }
            let action = AuditedAction {
                object_type: T::KIND.as_str(),
                revision: Some(document.revision),
                details,
                ..AuditedAction::new(action, &document.id)
            };
            action.add_to(&mut commit, Some(caller), now);
        }
        if let Some(request) = &caller.idempotent_request {
            request.add_to(&mut commit, outcome(document), now);
        }
        match self.database.commit(commit).await {
            Ok(()) => Ok(Some(document.clone())),
            Err(DatabaseError::Conflict { .. }) => Ok(None),
            // Two callers replaced the same default at once.
            Err(DatabaseError::AlreadyExists { .. }) if before.is_some_and(|before| before.revision == 0) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn document<T: Document>(&self, id: &str) -> Result<Versioned<T>, Error> {
        self.database.document(id).await?.ok_or(Error::NotFound(ObjectKind::Document(T::KIND)))
    }
}
