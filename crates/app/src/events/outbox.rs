//! The outbox: every audit entry is committed with the one event that follows from it.

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody};
use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_store::database::{Commit, Write};
use serde_json::{Map, Value};

use crate::{Caller, new_id};

/// Adds an audit entry and its event to a commit. The users of `notify` are notified by name.
pub(crate) fn record(commit: &mut Commit, entry: AuditBody, notify: Vec<UserId>) {
    commit.events.push(Event::of(&entry, new_id(), notify));
    commit.audit.push(entry);
}

/// Replaces NUL, which lock names may contain and PostgreSQL cannot store, by its Unicode symbol.
pub(super) fn replace_nul(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// Replaces NUL in all strings and keys of a JSON value.
pub(super) fn replace_nul_in(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(replace_nul(&text)),
        Value::Array(items) => items.into_iter().map(replace_nul_in).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (replace_nul(&name), replace_nul_in(value))).collect()
        }
        other => other,
    }
}

/// An action on anything but tasks.
#[derive(Debug, Clone)]
pub(crate) struct AuditedAction<'a> {
    /// As `user.create`.
    pub(crate) action: &'a str,
    /// By default the part of the action before the dot.
    pub(crate) object_type: &'a str,
    pub(crate) object_id: &'a str,
    /// The revision that the change created.
    pub(crate) revision: Option<u64>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) details: Map<String, Value>,
}

impl<'a> AuditedAction<'a> {
    pub(crate) fn new(action: &'a str, object_id: &'a str) -> Self {
        let object_type = action.split('.').next().unwrap_or_default();
        Self { action, object_type, object_id, revision: None, reason: None, details: Map::new() }
    }

    pub(crate) fn with_revision(self, revision: u64) -> Self {
        Self { revision: Some(revision), ..self }
    }

    /// The commit of an action; without a caller, the service itself is the actor.
    pub(crate) fn commit(self, writes: Vec<Write>, caller: Option<&Caller>, now: Moment) -> Commit {
        self.commit_as(caller.map(|caller| caller.audit_actor.clone()).unwrap_or_default(), writes, now)
    }

    /// The same for an actor who is not an authenticated caller yet.
    pub(crate) fn commit_as(self, actor: AuditActor, writes: Vec<Write>, now: Moment) -> Commit {
        let mut commit = Commit { writes, ..Commit::default() };
        self.add_to(&mut commit, actor, now);
        commit
    }

    /// Adds audit entry and event to a commit.
    pub(crate) fn add_to(self, commit: &mut Commit, actor: AuditActor, now: Moment) {
        let entry = AuditBody {
            entry_id: new_id(),
            at: now,
            who: actor,
            action: self.action.to_owned(),
            object_type: self.object_type.to_owned(),
            object_id: replace_nul(self.object_id),
            revision: self.revision,
            reason: self.reason.map(replace_nul),
            details: self.details.into_iter().map(|(name, value)| (name, replace_nul_in(value))).collect(),
            ..AuditBody::default()
        };
        record(commit, entry, Vec::new());
    }
}
