//! Events as sentences: who did what to which object. Events carry ids, no text of authors; what they carry is shown escaped and with
//! invisible characters as code points.

use ade_client::wire::Event;
use serde_json::Value;

use crate::format::{segment, short_id, visible};
use crate::words;

/// A sentence about an event: `carol` `approved the request` `019a9d1e-3c4f` `for task` ….
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventText {
    pub(crate) actor: String,
    /// Why the service acted by itself.
    pub(crate) trigger: String,
    pub(crate) verb: String,
    pub(crate) object: Option<ObjectLink>,
    /// The task that it is about, if that is not the object.
    pub(crate) task: Option<ObjectLink>,
    /// The states of the task before and after, if they differ.
    pub(crate) states: Option<(String, String)>,
}

impl EventText {
    /// Whether another event of the same kind adds nothing for a reader.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// An object with its page; without one, its path is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectLink {
    pub(crate) noun: &'static str,
    pub(crate) path: String,
    pub(crate) label: String,
    /// The whole id.
    pub(crate) title: String,
}

/// Verbs that are not the fact itself in the past tense.
const VERBS: &[(&str, &str)] = &[
    ("task:state_changed", "assigned reviewers to"),
    ("task:preview_requested", "asked for a preview of"),
    ("task:preview_stale", "found the preview out of date of"),
    ("task:override_requested", "asked to override the approval of"),
    ("task:force_applied", "forced the application of"),
    ("task:apply_started", "began to apply"),
    ("task:stop_requested", "asked to stop"),
    ("task:rollback_requested", "asked to roll back"),
    ("task:rollback_started", "began to roll back"),
    ("task:rolled_back", "rolled back"),
    ("task:rollback_failed", "could not roll back"),
    ("task:failed", "recorded the failure of"),
    ("task:commented", "commented on"),
    ("task:expired", "sent back, because its approval expired,"),
    ("approval:requested", "asked for approval of"),
    ("approval:changes_requested", "requested changes to"),
    ("approval:delegated", "delegated the request about"),
    ("approval:reassigned", "asked somebody else about"),
    ("approval:followed", "followed another decision on"),
    ("approval:escalated", "escalated the request about"),
    ("approval:unanswered", "got no answer about"),
    ("approval:resolved", "closed the request about"),
    ("approval:lapsed", "withdrew the request about"),
    ("approval:priority_raised", "raised the priority of the request about"),
    ("lock:deadlock", "broke a deadlock at"),
    ("lock:queue_full", "refused a request, because the queue is full, at"),
    ("lock:broken", "broke"),
    ("policy:activated", "activated"),
    ("config:changed", "changed"),
    ("feature:changed", "switched"),
    ("change:proposed", "proposed, to a second administrator,"),
    ("session:created", "signed in:"),
    ("session:refused", "was refused a sign-in:"),
    ("session:ended", "ended"),
    ("session:reauthenticated", "gave the password again in"),
    ("user:slack_code_created", "created a Slack code for"),
    ("user:slack_linked", "linked Slack to"),
    ("user:slack_unlinked", "unlinked Slack from"),
    ("audit:quarantined", "quarantined rows of the audit log:"),
    ("audit:mismatch", "found a mismatch in the audit log:"),
];

/// What objects are called, and where their pages are. `*` is the id.
const OBJECTS: &[(&str, &str, &str)] = &[
    ("task", "task", "/tasks/*"),
    ("approval", "approval request", ""),
    ("lock", "lock", "/locks/*"),
    ("agent", "agent", "/agents/*"),
    ("policy", "policy", "/policies/*"),
    ("delegation", "delegation", "/delegations/*"),
    ("resource", "resource", ""),
    ("config", "setting", ""),
    ("feature", "feature", ""),
    ("change", "change", "/policies"),
    ("user", "user", ""),
    ("token", "token", ""),
    ("session", "session", ""),
    ("webhook", "webhook", ""),
    ("hook", "inbound hook", ""),
    ("archive", "archive", ""),
    ("audit", "audit log", "/audit"),
];

/// The nouns of events, to filter by.
pub(crate) fn topics() -> impl Iterator<Item = (&'static str, &'static str)> {
    OBJECTS.iter().map(|(topic, noun, _)| (*topic, *noun))
}

pub(crate) fn describe(event: &Event) -> EventText {
    let (topic, fact) = event.event.split_once(':').unwrap_or((&event.event, ""));
    let verb = VERBS.iter().find(|(name, _)| *name == event.event).map(|(_, verb)| (*verb).to_owned());
    let text = |name: &str| event.payload.get(name).and_then(Value::as_str).unwrap_or_default();
    // A request has no page of its own: its event is about the task.
    let topic = if topic == "approval" { "task" } else { topic };
    let object = OBJECTS.iter().find(|(known, ..)| *known == topic).map(|(_, noun, path)| {
        let id = text(&format!("{topic}_id"));
        link(noun, path, id)
    });
    let task = text("task_id");
    let (from, to) = (text("from"), text("to"));
    let trigger = who_text(event, "trigger").unwrap_or_default();
    let who = |name: &str| who_text(event, name);
    let actor = match (who("user_id"), who("agent_id"), who("service")) {
        (Some(user), Some(agent), _) => format!("{agent} for {user}"),
        (Some(one), None, _) | (None, Some(one), _) => one,
        (None, None, Some(service)) => format!("ADE ({service})"),
        (None, None, None) => "the operator".to_owned(),
    };
    EventText {
        actor,
        trigger: words::trigger(&trigger),
        verb: verb.unwrap_or_else(|| visible(fact.replace('_', " "))),
        object,
        task: Some(task)
            .filter(|task| !task.is_empty() && topic != "task")
            .map(|task| link("task", "/tasks/*", task)),
        states: Some((visible(from), visible(to)))
            .filter(|(from, to)| from != to && !from.is_empty() && !to.is_empty()),
    }
}

fn who_text(event: &Event, name: &str) -> Option<String> {
    event.payload.get("who").and_then(|who| who.get(name)).and_then(Value::as_str).map(visible)
}

fn link(noun: &'static str, path: &str, id: &str) -> ObjectLink {
    let path = if id.is_empty() { "" } else { path };
    ObjectLink {
        noun,
        path: path.replace('*', &segment(id)),
        label: visible(short_id(id)),
        title: visible(id),
    }
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Time;
    use jiff::Timestamp;
    use serde_json::{Map, json};

    use super::*;

    fn event(name: &str, payload: Value) -> Event {
        let Value::Object(payload) = payload else { unreachable!("an object") };
        Event {
            id: Some("7".to_owned()),
            event_id: None,
            event: name.to_owned(),
            timestamp: Time(Timestamp::UNIX_EPOCH),
            payload,
            source: "ade".to_owned(),
            sequence: None,
        }
    }

    #[test]
    fn events_are_sentences_with_links() {
        let id = "019a9d1e-3c4f-7a10-8f00-1234567890ab";
        let approved = event(
            "approval:approved",
            json!({"approval_id": "a", "task_id": id, "from": "REVIEWING", "to": "APPROVED", "who": {"user_id": "carol", "agent_id": null}}),
        );
        let text = describe(&approved);
        assert_eq!((&*text.actor, &*text.verb), ("carol", "approved"));
        let task = text.object.expect("the task");
        assert_eq!((&*task.path, &*task.label), (&*format!("/tasks/{id}"), "019a9d1e-3c4f"));
        assert_eq!(text.states, Some(("REVIEWING".to_owned(), "APPROVED".to_owned())));
    }

    #[test]
    fn the_service_says_why_it_acted() {
        let payload =
            json!({"task_id": "t", "who": {"service": "worker", "instance": "w1", "trigger": "attempt 1"}});
        let text = describe(&event("task:completed", payload));
        assert_eq!((&*text.actor, &*text.trigger, &*text.verb), ("ADE (worker)", "attempt 1", "completed"));
        assert_eq!(text.task, None, "the task is the object");
    }

    #[test]
    fn unknown_events_and_unusual_ids_stay_readable() {
        let lock = describe(&event("lock:melted_away", json!({"lock_id": "a/<b>\u{202e}"})));
        let object = lock.object.expect("a lock");
        assert_eq!((&*lock.verb, &*object.path), ("melted away", "/locks/a%2F%3Cb%3E%E2%80%AE"));
        assert_eq!(object.label, "a/<b>⟦U+202E⟧");
        let unknown = describe(&Event { payload: Map::new(), ..event("comet:seen", json!({})) });
        assert_eq!((&*unknown.actor, &*unknown.verb, unknown.object), ("the operator", "seen", None));
    }
}
