//! What reviews are decided by, as people change it: policies, delegations, the registry of resources; settings and flags are
//! in `settings`.
//!
//! Each change is committed with its audit entry and its event, guarded by the revision that was seen.

mod delegations;
mod policies;
mod resources;

use std::sync::Arc;

use ade_domain::audit::AuditBody;
use ade_domain::{Clock, Invalid};
use ade_store::database::{Commit, DocumentKind, Event, StoredDocument, Write};
use ade_store::{Database, DatabaseError};
use serde_json::{Map, json};
use uuid::Uuid;

pub use delegations::DelegationChange;
pub use policies::{PolicyChange, StoredPolicy, imagined};
pub use resources::{RegisteredPattern, ResourceChange};

pub(crate) use policies::is_policy;

use crate::{Caller, Error, Outcome};

/// How often a change is repeated that somebody else overtook.
pub(crate) const MOST_ATTEMPTS: usize = 10;

/// The use cases; clones are the same ones.
#[derive(Clone)]
pub struct RuleService {
    pub(crate) record: Database,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for RuleService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").finish_non_exhaustive()
    }
}

/// Refuses whoever saw another revision.
pub(crate) fn seen(thing: &StoredDocument, caller: &Caller) -> Result<(), Error> {
    match caller.if_match {
        Some(revision) if revision != thing.revision => Err(Error::Stale { now: thing.revision }),
        _ => Ok(()),
    }
}

fn valid(faults: Vec<Invalid>) -> Result<(), Error> {
    if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
}

/// Somebody's change of one thing. It is new if it was not before, and deleted if it is not afterwards.
pub(crate) struct Change<'a> {
    /// As `policy.create`.
    pub(crate) action: &'static str,
    /// As it was seen.
    pub(crate) before: Option<&'a StoredDocument>,
    /// As it is to be.
    pub(crate) after: Option<&'a StoredDocument>,
    /// What else belongs to it.
    pub(crate) besides: Vec<Write>,
}

impl RuleService {
    /// On a record, by a clock.
    #[must_use]
    pub fn new(record: Database, clock: Arc<dyn Clock>) -> Self {
        Self { record, clock }
    }

    /// Commits a change: what it is now, or was if it is deleted; nothing if somebody else was faster.
    pub(crate) async fn commit(
        &self,
        change: Change<'_>,
        caller: &Caller,
    ) -> Result<Option<StoredDocument>, Error> {
        let Change { action, before, after, besides } = change;
        // Nothing but the answer is written where nothing changes.
        let changes = before.map(|thing| &thing.body) != after.map(|thing| &thing.body);
        let Some(thing) = after.filter(|_| changes).or(before) else { return Ok(None) };
        let now = self.clock.now();
        let mut commit = Commit::default();
        if changes {
            // What has its default stands nowhere yet.
            let expected = before.map(|thing| thing.revision).filter(|revision| *revision > 0);
            commit.writes = besides;
            commit.writes.extend(match (after, expected) {
                (Some(after), expected) => Some(Write::Thing { thing: after.clone(), expected }),
                (None, Some(expected)) => {
                    Some(Write::DeleteThing { kind: thing.kind, id: thing.id.clone(), expected })
                }
                (None, None) => None,
            });
            let mut details = Map::new();
            for (name, thing) in [("before", before), ("after", after)] {
                details.extend(thing.map(|thing| (name.to_owned(), thing.body.clone())));
            }
            commit.audit.push(AuditBody {
                entry_id: Uuid::now_v7().to_string(),
                at: now,
                who: caller.who.clone(),
                action: action.to_owned(),
                object_type: thing.kind.word().to_owned(),
                object_id: thing.id.clone(),
                task_id: None,
                from: None,
                to: None,
                revision: Some(thing.revision),
                digest: None,
                reason: None,
                ticket: None,
                details,
            });
            commit.events.push(Event {
                event_id: Uuid::now_v7().to_string(),
                kind: action.replacen('.', ":", 1),
                at: now,
                task_id: None,
                tell: Vec::new(),
                data: json!({ "kind": thing.kind.word(), "id": thing.id, "revision": thing.revision }),
            });
        }
        if let Some(keep) = &caller.keep {
            keep.add(&mut commit, Outcome::Thing(thing), now);
        }
        match self.record.commit(commit).await {
            Ok(()) => Ok(Some(thing.clone())),
            Err(DatabaseError::Conflict { .. }) => Ok(None),
            // Two set for the first time what had its default.
            Err(DatabaseError::Exists { .. }) if before.is_some_and(|before| before.revision == 0) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// One of a kind.
    async fn one(&self, kind: DocumentKind, id: &str) -> Result<StoredDocument, Error> {
        self.record.thing(kind, id).await?.ok_or(Error::NotFound(kind.word()))
    }
}
