//! Events, for subscribers. An audit entry names the command (`task.submit`), its event names the fact (`task:submitted`); there is
//! exactly one event for each entry, with its id and its place in the order, and it follows from the entry.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::audit::{AuditBody, Principal};
use crate::people::UserId;
use crate::{Moment, glob};

/// The source of an event whose server is not known.
const SERVICE: &str = "ade";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The id of its entry.
    pub event_id: String,
    /// As `task:approved`.
    pub event: String,
    pub at: Moment,
    pub task_id: Option<String>,
    /// Users to be notified by name.
    pub notify: Vec<UserId>,
    /// The ids of the object and of its task, `from`, `to`, `revision` and `who`, as far as they apply.
    pub payload: Map<String, Value>,
    /// The server that received the request, or the process that acted by itself.
    pub source: String,
}

impl Event {
    pub fn of(entry: &AuditBody, notify: Vec<UserId>) -> Self {
        let (who, source) = match &entry.who {
            Principal::Caller(caller) => {
                (json!({ "user_id": caller.user_id, "agent_id": caller.agent_id }), caller.service.as_deref())
            }
            Principal::Service(service) => {
                let trigger = service.trigger.to_string();
                let who =
                    json!({ "service": service.service, "instance": service.instance, "trigger": trigger });
                (who, Some(service.instance.as_str()))
            }
        };
        let fields = [
            ("task_id".to_owned(), json!(entry.task_id)),
            (format!("{}_id", entry.object_type), json!(entry.object_id)),
            ("from".to_owned(), json!(entry.from)),
            ("to".to_owned(), json!(entry.to)),
            ("revision".to_owned(), json!(entry.revision)),
            ("who".to_owned(), who),
        ];
        Self {
            event_id: entry.entry_id.clone(),
            event: event_name(&entry.action),
            at: entry.at,
            task_id: entry.task_id.clone(),
            notify,
            payload: fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            source: source.unwrap_or(SERVICE).to_owned(),
        }
    }
}

/// The nouns of events, sorted: what comes before the colon of a name.
pub const TOPICS: [&str; 17] = [
    "agent",
    "approval",
    "archive",
    "audit",
    "change",
    "config",
    "delegation",
    "feature",
    "hook",
    "lock",
    "policy",
    "resource",
    "session",
    "task",
    "token",
    "user",
    "webhook",
];

/// The noun of an event: `task` of `task:approved`.
#[must_use]
pub fn topic(event: &str) -> &str {
    event.split_once(':').map_or(event, |(topic, _)| topic)
}

/// What comes after the colon in names of events, sorted by command; `state_changed` is not among them.
pub fn facts() -> impl Iterator<Item = &'static str> {
    FACTS.iter().map(|(_, fact)| *fact)
}

/// Facts about locks that are not stored, hence of no audit entry.
pub const UNSTORED_LOCK_FACTS: [&str; 5] = ["acquired", "promoted", "queued", "released", "wait_ended"];

/// Refuses a pattern that matches no name of an event, such as one with a typing error.
pub(crate) fn check_event_pattern(pattern: &str) -> Result<(), String> {
    glob::check_pattern(pattern)?;
    let mut names = TOPICS.iter().flat_map(|topic| {
        let facts = facts().chain(UNSTORED_LOCK_FACTS).chain([UNNAMED]);
        facts.map(move |fact| format!("{topic}:{fact}"))
    });
    if names.any(|name| glob::matches(pattern, &name)) {
        return Ok(());
    }
    Err(format!("must match names of events, such as task:approved or approval:*; {pattern:?} matches none"))
}

/// The fact of an action without a name of its own.
const UNNAMED: &str = "state_changed";

/// The fact that each command leaves behind, by the part of its audit action behind the dot.
const FACTS: &[(&str, &str)] = &[
    ("activate", "activated"),
    ("approve", "approved"),
    ("archive", "archived"),
    ("begin_apply", "apply_started"),
    ("break", "broken"),
    ("cancel", "cancelled"),
    ("comment", "commented"),
    ("complete", "completed"),
    ("confirm", "confirmed"),
    ("confirm_override", "overridden"),
    ("create", "created"),
    ("deadlock", "deadlock"),
    ("delegate", "delegated"),
    ("delete", "deleted"),
    ("disable", "disabled"),
    ("end", "ended"),
    ("escalate", "escalated"),
    ("expire", "expired"),
    ("fail", "failed"),
    ("follow", "followed"),
    ("force_apply", "force_applied"),
    ("go_stale", "preview_stale"),
    ("invite", "invited"),
    ("join", "joined"),
    ("lapse", "lapsed"),
    ("mismatch", "mismatch"),
    ("modify", "modified"),
    ("override", "override_requested"),
    ("preview", "preview_requested"),
    ("previewed", "previewed"),
    ("propose", "proposed"),
    ("quarantine", "quarantined"),
    ("queue_full", "queue_full"),
    ("raise", "priority_raised"),
    ("reassign", "reassigned"),
    ("reauthenticate", "reauthenticated"),
    ("recover", "recovered"),
    ("redeliver", "redelivered"),
    ("refuse", "refused"),
    ("reject", "rejected"),
    ("request", "requested"),
    ("request_changes", "changes_requested"),
    ("resolve", "resolved"),
    ("restore", "restored"),
    ("resubmit", "resubmitted"),
    ("retry", "retried"),
    ("revoke", "revoked"),
    ("roll_back", "rollback_requested"),
    ("rollback_failed", "rollback_failed"),
    ("rolled_back", "rolled_back"),
    ("rolling_back", "rollback_started"),
    ("rotate", "rotated"),
    ("set", "changed"),
    ("slack_code", "slack_code_created"),
    ("slack_link", "slack_linked"),
    ("slack_unlink", "slack_unlinked"),
    ("started", "started"),
    ("stop", "stop_requested"),
    ("submit", "submitted"),
    ("test", "tested"),
    ("unanswered", "unanswered"),
    ("update", "updated"),
];

/// The event of an audit action: `task.approve` is `task:approved`. An action without a name of its own is a `state_changed`.
fn event_name(action: &str) -> String {
    let (noun, verb) = action.split_once('.').unwrap_or((action, ""));
    let fact = FACTS.iter().find(|(command, _)| *command == verb).map_or(UNNAMED, |(_, fact)| fact);
    format!("{noun}:{fact}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::audit::{AuditActor, ServiceActor, Trigger};
    use crate::task::{TRANSITIONS, TaskState};

    #[test]
    fn event_of_a_decision_names_task_approval_and_actor() {
        let who = AuditActor {
            user_id: Some(UserId::new("ann")),
            ip: Some("10.0.0.1".to_owned()),
            service: Some("ade at 127.0.0.1:8300".to_owned()),
            ..AuditActor::default()
        };
        let entry = AuditBody {
            entry_id: "e".to_owned(),
            at: Moment::from_micros(7),
            who: who.into(),
            action: "approval.approve".to_owned(),
            object_type: "approval".to_owned(),
            object_id: "a".to_owned(),
            task_id: Some("t".to_owned()),
            from: Some(TaskState::Reviewing),
            to: Some(TaskState::Reviewing),
            revision: Some(4),
            digest: None,
            reviewed: None,
            reason: Some("fine".to_owned()),
            ticket: None,
            details: Map::new(),
        };
        let event = Event::of(&entry, Vec::new());
        assert_eq!(
            (event.event.as_str(), event.source.as_str()),
            ("approval:approved", "ade at 127.0.0.1:8300")
        );
        let expected = json!({
            "task_id": "t", "approval_id": "a", "from": "REVIEWING", "to": "REVIEWING", "revision": 4,
            "who": { "user_id": "ann", "agent_id": null },
        });
        assert_eq!(Value::Object(event.payload), expected);
        let service = ServiceActor {
            service: "worker".to_owned(),
            instance: "worker-1".to_owned(),
            trigger: Trigger::Attempt(2),
        };
        let internal = AuditBody { who: service.into(), task_id: None, from: None, to: None, ..entry };
        let event = Event::of(&internal, Vec::new());
        let who = json!({ "service": "worker", "instance": "worker-1", "trigger": "attempt 2" });
        assert_eq!(Value::Object(event.payload), json!({ "approval_id": "a", "revision": 4, "who": who }));
        assert_eq!(event.source, "worker-1");
    }

    #[test]
    fn every_command_of_a_task_has_one_event_and_only_assignment_has_no_name() {
        let commands: BTreeSet<String> =
            TRANSITIONS.iter().map(|(_, command, _)| command.to_string()).collect();
        let events: BTreeSet<String> =
            commands.iter().map(|command| event_name(&format!("task.{command}"))).collect();
        assert_eq!(events.len(), commands.len(), "{events:?}");
        let unnamed: Vec<&String> = commands
            .iter()
            .filter(|command| event_name(&format!("task.{command}")) == "task:state_changed")
            .collect();
        assert_eq!(unnamed, ["assign"]);
    }

    #[test]
    fn patterns_without_any_event_are_refused() {
        for pattern in
            ["*", "task:*", "*:approved", "lock:released", "Task:Approved", "task:state_changed", "*ed"]
        {
            assert_eq!(check_event_pattern(pattern), Ok(()), "{pattern}");
        }
        for pattern in ["task:aproved", "tasks:*", "task.approved", "task", "", "nothing:*"] {
            assert!(check_event_pattern(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn facts_are_sorted_and_unique() {
        assert!(FACTS.is_sorted_by(|one, next| one.0 < next.0));
        let facts: BTreeSet<&str> = FACTS.iter().map(|(_, fact)| *fact).collect();
        assert_eq!(facts.len(), FACTS.len());
    }

    #[test]
    fn names_are_those_of_the_contract() {
        for (action, event) in [
            ("task.create", "task:created"),
            ("task.approve", "task:approved"),
            ("task.complete", "task:completed"),
            ("task.fail", "task:failed"),
            ("task.assign", "task:state_changed"),
            ("approval.request", "approval:requested"),
            ("approval.delegate", "approval:delegated"),
            ("approval.escalate", "approval:escalated"),
            ("lock.deadlock", "lock:deadlock"),
        ] {
            assert_eq!(event_name(action), event);
        }
    }
}
