//! Records for ServiceNow (Table API), such as incidents and change requests: the table is part of the URL. The fields exist in every
//! table that extends `task`.

use serde_json::{Value, json};

use super::notification::{Notification, Urgency, one_line};

/// The sizes of the fields.
const MAX_SHORT_DESCRIPTION_CHARS: usize = 160;
const MAX_CORRELATION_CHARS: usize = 100;

pub fn record(notification: &Notification<'_>) -> Value {
    // From 1, high, to 3, low.
    let level = match notification.urgency() {
        Urgency::Critical | Urgency::Error => "1",
        Urgency::Warning => "2",
        Urgency::Info => "3",
    };
    json!({
        "short_description": one_line(&notification.title(), MAX_SHORT_DESCRIPTION_CHARS),
        "description": notification.text(),
        "correlation_id": one_line(&notification.correlation_id(), MAX_CORRELATION_CHARS),
        "correlation_display": "ADE",
        "urgency": level,
        "impact": level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risk::RiskLevel;
    use crate::webhook::notification::fixture;

    #[test]
    fn records_fit_their_fields() {
        let task = fixture::task(&"long ".repeat(100), RiskLevel::Medium);
        let failed = fixture::event("task:failed");
        let record = record(&Notification { event: &failed, task: Some(&task), public_url: None });
        assert_eq!(record["short_description"].as_str().map(|text| text.chars().count()), Some(133));
        assert_eq!((&record["urgency"], &record["correlation_id"]), (&json!("1"), &json!("ade-task-t1")));
    }
}
