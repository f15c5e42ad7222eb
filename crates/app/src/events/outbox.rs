//! The outbox: every audit entry is committed with the one event that follows from it.

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, Principal};
use ade_domain::dual_control::ProposedChange;
use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_store::database::{Commit, Document, Write};
use serde_json::{Map, Value, json};

use crate::{Caller, new_id};

/// Adds an audit entry and its event to a commit. The users of `notify` are notified by name.
pub(crate) fn record(commit: &mut Commit, entry: AuditBody, notify: Vec<UserId>) {
    commit.events.push(Event::of(&entry, notify));
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
    /// The task that it belongs to.
    pub(crate) task_id: Option<&'a str>,
    /// The revision that the change created.
    pub(crate) revision: Option<u64>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) details: Map<String, Value>,
    /// The people to notify; the audit entry names them.
    pub(crate) notify: Vec<UserId>,
}

impl<'a> AuditedAction<'a> {
    pub(crate) fn new(action: &'a str, object_id: &'a str) -> Self {
        let object_type = action.split('.').next().unwrap_or_default();
        let (task_id, revision, reason) = (None, None, None);
        let (details, notify) = (Map::new(), Vec::new());
        Self { action, object_type, object_id, task_id, revision, reason, details, notify }
    }

    pub(crate) fn with_revision(self, revision: u64) -> Self {
        Self { revision: Some(revision), ..self }
    }

    /// The commit of an action of a caller.
    pub(crate) fn commit(self, writes: Vec<Write>, caller: &Caller, now: Moment) -> Commit {
        let mut commit = Commit { writes, ..Commit::default() };
        self.add_for(&mut commit, caller, now);
        commit
    }

    /// Adds audit entry and event of an action of a caller to a commit. A change that the caller confirms no longer waits.
    pub(crate) fn add_for(mut self, commit: &mut Commit, caller: &Caller, now: Moment) {
        if let Some(change) = &caller.confirms {
            let (id, expected) = (change.id.clone(), change.revision);
            self.details.insert("change_id".to_owned(), json!(id));
            self.details.insert("proposed_by".to_owned(), json!(change.value.proposed_by));
            commit.writes.push(Write::DeleteDocument { kind: ProposedChange::KIND, id, expected });
        }
        self.add_to(commit, caller, now);
    }

    /// The same for an actor who is not an authenticated caller yet, and for the service itself.
    pub(crate) fn commit_as(self, actor: impl Into<Principal>, writes: Vec<Write>, now: Moment) -> Commit {
        let mut commit = Commit { writes, ..Commit::default() };
        self.add_to(&mut commit, actor, now);
        commit
    }

    /// Adds audit entry and event to a commit.
    pub(crate) fn add_to(mut self, commit: &mut Commit, actor: impl Into<Principal>, now: Moment) {
        if !self.notify.is_empty() {
            self.details.insert("notified".to_owned(), json!(self.notify));
        }
        let entry = AuditBody {
            entry_id: new_id(),
            at: now,
            who: actor.into(),
            action: self.action.to_owned(),
            object_type: self.object_type.to_owned(),
            object_id: replace_nul(self.object_id),
            task_id: self.task_id.map(str::to_owned),
            revision: self.revision,
            reason: self.reason.map(replace_nul),
            details: self.details.into_iter().map(|(name, value)| (name, replace_nul_in(value))).collect(),
            from: None,
            to: None,
            digest: None,
            reviewed: None,
            ticket: None,
        };
        record(commit, entry, self.notify);
    }
}
