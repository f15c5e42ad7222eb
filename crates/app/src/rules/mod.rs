//! The rules that approvals follow: policies, delegations, and the resource registry. Settings and feature flags are in
//! `settings`.
//!
//! Each change is committed with its audit entry and event, guarded by the revision that was read.

mod delegations;
mod policies;
mod resources;

use std::sync::Arc;

use ade_domain::{Clock, InvalidField};
use ade_store::database::{Commit, DocumentKind, StoredDocument, Write};
use ade_store::{Database, DatabaseError};
use serde_json::Map;

pub use delegations::DelegationChange;
pub use policies::{PolicyChange, StoredPolicy, hypothetical_policies};
pub use resources::{RegisteredPattern, ResourceChange};

pub(crate) use policies::is_policy;

use crate::audit::AuditedAction;
use crate::{Caller, Error, Outcome};

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
pub(crate) fn check_revision(document: &StoredDocument, caller: &Caller) -> Result<(), Error> {
    match caller.if_match {
        Some(revision) if revision != document.revision => Err(Error::Stale { now: document.revision }),
        _ => Ok(()),
    }
}

fn require_valid(faults: Vec<InvalidField>) -> Result<(), Error> {
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

/// A change of one document: created if there is no `before`, deleted if there is no `after`.
pub(crate) struct DocumentChange<'a> {
    /// As `policy.create`.
    pub(crate) action: &'static str,
    pub(crate) before: Option<&'a StoredDocument>,
    pub(crate) after: Option<&'a StoredDocument>,
    /// Further writes of the same commit.
    pub(crate) extra_writes: Vec<Write>,
}

impl RuleService {
    #[must_use]
    pub fn new(database: Database, clock: Arc<dyn Clock>) -> Self {
        Self { database, clock }
    }

    /// Commits a change; returns the document after it, or before it if it is deleted. `None` after a conflict.
    pub(crate) async fn commit(
        &self,
        change: DocumentChange<'_>,
        caller: &Caller,
    ) -> Result<Option<StoredDocument>, Error> {
        let DocumentChange { action, before, after, extra_writes } = change;
        // If nothing changes, only the stored response is written.
        let is_changed = before.map(|document| &document.body) != after.map(|document| &document.body);
        let Some(document) = after.filter(|_| is_changed).or(before) else { return Ok(None) };
        let now = self.clock.now();
        let mut commit = Commit::default();
        if is_changed {
            // A default has revision 0 and is not stored yet.
            let expected = before.map(|document| document.revision).filter(|revision| *revision > 0);
            commit.writes = extra_writes;
            commit.writes.extend(match (after, expected) {
                (Some(after), expected) => Some(Write::Document { document: after.clone(), expected }),
                (None, Some(expected)) => {
                    Some(Write::DeleteDocument { kind: document.kind, id: document.id.clone(), expected })
                }
                (None, None) => None,
            });
            let mut details = Map::new();
            for (name, document) in [("before", before), ("after", after)] {
                details.extend(document.map(|document| (name.to_owned(), document.body.clone())));
            }
            let action = AuditedAction {
                object_type: document.kind.as_str(),
                revision: Some(document.revision),
                details,
                ..AuditedAction::new(action, &document.id)
            };
            action.add_to(&mut commit, Some(caller), now);
        }
        if let Some(request) = &caller.idempotent_request {
            request.add_to(&mut commit, Outcome::Document(document), now);
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

    async fn document(&self, kind: DocumentKind, id: &str) -> Result<StoredDocument, Error> {
        self.database.document(kind, id).await?.ok_or(Error::NotFound(kind.as_str()))
    }
}
