//! What is done besides tasks: one audit entry and one event, in the commit of what it changes.

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody};
use ade_store::database::{Commit, Event};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::Caller;

/// An id that grows with time.
pub(crate) fn new_id() -> String {
    Uuid::now_v7().to_string()
}

/// A text as every record can store it: NUL, which names of locks may have, as its symbol.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// The same for all texts of a value.
pub(crate) fn storable_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(storable(&text)),
        Value::Array(all) => all.into_iter().map(storable_value).collect(),
        Value::Object(all) => {
            all.into_iter().map(|(name, value)| (storable(&name), storable_value(value))).collect()
        }
        other => other,
    }
}

/// Something that was done to something.
#[derive(Debug, Clone, Default)]
pub(crate) struct Act<'a> {
    /// As `user.create`.
    pub(crate) action: &'a str,
    /// What it is known by; its kind stands before the dot of the action.
    pub(crate) object_id: &'a str,
    /// Which revision it made.
    pub(crate) revision: Option<u64>,
    /// Why.
    pub(crate) reason: Option<&'a str>,
    /// Whatever else belongs to it.
    pub(crate) details: Map<String, Value>,
}

impl Act<'_> {
    /// Puts it into a commit: who did it stands in the audit log, that it was done is heard by whoever listens.
    pub(crate) fn add(self, commit: &mut Commit, caller: Option<&Caller>, now: Moment) {
        self.by(commit, caller.map(|caller| caller.who.clone()).unwrap_or_default(), now);
    }

    /// The same, by whoever is not recognised yet.
    pub(crate) fn by(self, commit: &mut Commit, who: AuditActor, now: Moment) {
        let object_type = self.action.split('.').next().unwrap_or_default();
        commit.audit.push(AuditBody {
            entry_id: new_id(),
            at: now,
            who,
            action: self.action.to_owned(),
            object_type: object_type.to_owned(),
            object_id: storable(self.object_id),
            task_id: None,
            from: None,
            to: None,
            revision: self.revision,
            digest: None,
            reason: self.reason.map(storable),
            ticket: None,
            details: self.details.into_iter().map(|(name, value)| (name, storable_value(value))).collect(),
        });
        commit.events.push(Event {
            event_id: new_id(),
            kind: self.action.replacen('.', ":", 1),
            at: now,
            task_id: None,
            tell: Vec::new(),
            data: json!({ format!("{object_type}_id"): storable(self.object_id), "revision": self.revision }),
        });
    }
}
