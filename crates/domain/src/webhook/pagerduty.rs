//! Events for PagerDuty (Events API v2): all events of a task belong to one alert, which is acknowledged when somebody decides and resolved
//! when nothing is left to do. The routing key is added when the event is sent.

use serde_json::{Map, Value, json};

use super::notification::{Notification, Urgency, one_line};

const MAX_SUMMARY_CHARS: usize = 1_024;

/// What happens to the alert of a task.
fn action(event: &str) -> &'static str {
    match event {
        "task:completed" | "task:cancelled" | "task:rejected" | "task:rolled_back" | "task:deleted"
        | "task:archived" => "resolve",
        "approval:approved"
        | "approval:rejected"
        | "approval:changes_requested"
        | "task:approved"
        | "task:apply_started"
        | "task:overridden" => "acknowledge",
        _ => "trigger",
    }
}

pub fn event(notification: &Notification<'_>) -> Value {
    let severity = match notification.urgency() {
        Urgency::Critical => "critical",
        Urgency::Error => "error",
        Urgency::Warning => "warning",
        Urgency::Info => "info",
    };
    let details: Map<String, Value> =
        notification.facts().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut event = json!({
        "event_action": action(&notification.event.event),
        "dedup_key": notification.correlation_id(),
        "client": "ADE",
        "payload": {
            "summary": one_line(&notification.title(), MAX_SUMMARY_CHARS),
            "source": "ade",
            "severity": severity,
            "timestamp": notification.event.at.to_string(),
            "class": notification.event.event,
            "custom_details": details,
        },
    });
    if let (Some(link), Some(fields)) = (notification.link(), event.as_object_mut()) {
        fields.insert("client_url".to_owned(), json!(link));
        fields.insert("links".to_owned(), json!([{ "href": link, "text": "Open task" }]));
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risk::RiskLevel;
    use crate::webhook::notification::fixture;

    #[test]
    fn one_alert_follows_a_task() {
        let task = fixture::task("Grow the pool", RiskLevel::High);
        let sent = |name: &str| {
            let happened = fixture::event(name);
            event(&Notification { event: &happened, task: Some(&task), public_url: None })
        };
        let events = ["approval:escalated", "approval:approved", "task:failed", "task:completed"].map(sent);
        assert!(events.iter().all(|event| event["dedup_key"] == "ade-task-t1"));
        let actions: Vec<&str> = events.iter().filter_map(|event| event["event_action"].as_str()).collect();
        assert_eq!(actions, ["trigger", "acknowledge", "trigger", "resolve"]);
        assert_eq!(events[0]["payload"]["severity"], "warning");
        assert_eq!(events[2]["payload"]["severity"], "error");
        assert_eq!(events[0]["payload"]["custom_details"]["Author"], "ann");
    }
}
