//! Names of events. An audit entry names the command (`task.submit`), its event names the fact (`task:submitted`); there is exactly
//! one event for each.

/// The fact that each command leaves behind, by the part of its audit action behind the dot.
const FACTS: &[(&str, &str)] = &[
    ("activate", "activated"),
    ("apply_first", "prioritized"),
    ("approve", "approved"),
    ("begin_apply", "apply_started"),
    ("break", "broken"),
    ("cancel", "cancelled"),
    ("comment", "commented"),
    ("complete", "completed"),
    ("confirm_override", "overridden"),
    ("create", "created"),
    ("deadlock", "deadlock"),
    ("delegate", "delegated"),
    ("delete", "deleted"),
    ("end", "ended"),
    ("escalate", "escalated"),
    ("expire", "expired"),
    ("fail", "failed"),
    ("force_apply", "force_applied"),
    ("go_stale", "preview_stale"),
    ("modify", "modified"),
    ("override", "override_requested"),
    ("previewed", "previewed"),
    ("raise", "priority_raised"),
    ("reassign", "reassigned"),
    ("recover", "recovered"),
    ("refuse", "refused"),
    ("reject", "rejected"),
    ("request", "requested"),
    ("request_changes", "changes_requested"),
    ("restore", "restored"),
    ("resubmit", "resubmitted"),
    ("retry", "retried"),
    ("revoke", "revoked"),
    ("roll_back", "rollback_requested"),
    ("rollback_failed", "rollback_failed"),
    ("rolled_back", "rolled_back"),
    ("rolling_back", "rollback_started"),
    ("set", "changed"),
    ("started", "started"),
    ("stop", "stop_requested"),
    ("submit", "submitted"),
    ("unanswered", "unanswered"),
    ("update", "updated"),
];

/// The event of an audit action: `task.approve` is `task:approved`. An action without a name of its own is a `state_changed`.
#[must_use]
pub fn event_name(action: &str) -> String {
    let (noun, verb) = action.split_once('.').unwrap_or((action, ""));
    let fact = FACTS.iter().find(|(command, _)| *command == verb).map_or("state_changed", |(_, fact)| fact);
    format!("{noun}:{fact}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::task::TRANSITIONS;

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
