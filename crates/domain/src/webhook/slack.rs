//! Messages for Slack, in Block Kit. Texts of others are either plain text, or escaped and fenced as code: they can neither mention
//! anybody nor look like a link.

use serde_json::{Value, json};

use super::notification::{Notification, one_line};
use super::slack_request::{APPROVE, ButtonContent, MAX_REASON_CHARS, REASON, REJECT};
use crate::task::Task;

/// The limits of Block Kit.
const MAX_HEADER_CHARS: usize = 150;
const MAX_SECTION_CHARS: usize = 2_900;
const MAX_FIELDS: usize = 10;
const MAX_FIELD_CHARS: usize = 2_000;
const MAX_DESCRIPTION_CHARS: usize = 1_000;

/// Escapes the characters that Slack interprets, and ends no code block.
pub fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('`', "'")
}

fn plain(text: &str) -> Value {
    json!({ "type": "plain_text", "text": text, "emoji": false })
}

/// The buttons that decide about a task; they name what the message shows.
fn decision_buttons(task: &Task) -> Option<[Value; 2]> {
    let value = serde_json::to_string(&ButtonContent::of(task)).ok()?;
    let button = |action: &str, style: &str, text: &str| json!({ "type": "button", "action_id": action, "style": style, "text": plain(text), "value": value });
    Some([button(APPROVE, "primary", "Approve"), button(REJECT, "danger", "Reject")])
}

fn reason_input() -> Value {
    let element = json!({ "type": "plain_text_input", "action_id": REASON, "max_length": MAX_REASON_CHARS });
    json!({ "type": "input", "optional": true, "label": plain("Reason"), "element": element })
}

/// An answer that only the person who asked sees.
pub fn ephemeral(text: &str) -> Value {
    let text: String = escape(text).chars().take(MAX_SECTION_CHARS).collect();
    json!({ "response_type": "ephemeral", "replace_original": false, "text": text })
}

/// A message about an event. `channel` is needed with a bot token only. With `offers_decisions`, it has buttons that decide if the task
/// can be decided in a chat.
pub fn message(notification: &Notification<'_>, channel: Option<&str>, offers_decisions: bool) -> Value {
    let mut blocks = vec![
        json!({ "type": "header", "text": plain(&one_line(&notification.headline(), MAX_HEADER_CHARS)) }),
    ];
    if let Some(description) = notification.description(MAX_DESCRIPTION_CHARS) {
        blocks.push(json!({ "type": "section", "text": plain(&description) }));
    }
    let facts: Vec<Value> = notification
        .facts()
        .into_iter()
        .map(|(name, value)| plain(&one_line(&format!("{name}: {value}"), MAX_FIELD_CHARS)))
        .collect();
    blocks.extend(facts.chunks(MAX_FIELDS).map(|fields| json!({ "type": "section", "fields": fields })));
    let items = notification.changed_items();
    if !items.is_empty() {
        let listed: String = escape(&items.join("\n")).chars().take(MAX_SECTION_CHARS).collect();
        let text = json!({ "type": "mrkdwn", "text": format!("```{listed}```"), "verbatim": true });
        blocks.push(json!({ "type": "section", "text": text }));
    }
    let mut buttons = Vec::new();
    if let Some(link) = notification.link() {
        buttons.push(
            json!({ "type": "button", "action_id": "ade_open", "text": plain("Open task"), "url": link }),
        );
    }
    // Nobody decides about what is not shown.
    let offers_decisions = offers_decisions && notification.is_complete(MAX_DESCRIPTION_CHARS);
    let decidable = notification.task.filter(|task| offers_decisions && task.is_decidable_in_chat());
    if let Some(decisions) = decidable.and_then(decision_buttons) {
        blocks.push(reason_input());
        buttons.extend(decisions);
    }
    if !buttons.is_empty() {
        blocks.push(json!({ "type": "actions", "elements": buttons }));
    }
    let mut message = json!({
        // Shown in notifications, where blocks are not.
        "text": escape(&notification.title()),
        "blocks": blocks,
        "unfurl_links": false,
        "unfurl_media": false,
    });
    if let (Some(channel), Some(fields)) = (channel, message.as_object_mut()) {
        fields.insert("channel".to_owned(), json!(channel));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risk::RiskLevel;
    use crate::task::TaskState;
    use crate::webhook::notification::fixture;

    #[test]
    fn texts_of_others_stay_text() {
        let event = fixture::event("approval:requested");
        let mut task = fixture::task("<!channel> *bold* <https://evil.test|ok> `x`", RiskLevel::High);
        task.preview.changes[0].what = "```<!here>&".to_owned();
        let notification =
            Notification { event: &event, task: Some(&task), public_url: Some("https://a.test") };
        let message = message(&notification, Some("C1"), true);
        assert_eq!(message["channel"], "C1");
        assert_eq!(
            message["text"],
            "Approval requested: &lt;!channel&gt; *bold* &lt;https://evil.test|ok&gt; 'x'"
        );
        assert_eq!(message["blocks"][1]["text"]["type"], "plain_text");
        let code = message["blocks"][3]["text"]["text"].as_str().expect("a text");
        assert!(
            code.starts_with("```~ '''&lt;!here&gt;&amp;\n") && code.matches("```").count() == 2,
            "{code}"
        );
        assert_eq!(message["blocks"][4]["elements"][0]["url"], "https://a.test/tasks/t1");
        assert!(message["blocks"].as_array().expect("blocks").len() <= 50);
    }

    #[test]
    fn only_low_risk_in_review_gets_buttons_that_decide() {
        let event = fixture::event("approval:requested");
        for (level, state, offers, expected) in [
            (RiskLevel::Low, TaskState::Reviewing, true, 2),
            (RiskLevel::Low, TaskState::Reviewing, false, 0),
            (RiskLevel::Low, TaskState::Approved, true, 0),
            (RiskLevel::Medium, TaskState::Reviewing, true, 0),
        ] {
            let mut task = fixture::with_resources(fixture::task("grow", level), 10);
            task.preview.changes.truncate(10);
            task.state = state;
            let notification = Notification { event: &event, task: Some(&task), public_url: None };
            let text = message(&notification, Some("C1"), offers).to_string();
            let buttons = [APPROVE, REJECT].iter().filter(|action| text.contains(**action)).count();
            assert_eq!(buttons, expected, "{level:?} {state:?} {offers}");
            assert_eq!(text.contains(&task.digest.to_string()), expected > 0);
        }
    }

    #[test]
    fn what_is_not_shown_is_not_decided() {
        let event = fixture::event("approval:requested");
        let buttons = |change: &dyn Fn(&mut Task)| {
            let mut task = fixture::with_resources(fixture::task("grow", RiskLevel::Low), 10);
            task.preview.changes.truncate(10);
            task.state = TaskState::Reviewing;
            change(&mut task);
            let notification = Notification { event: &event, task: Some(&task), public_url: None };
            let message = message(&notification, Some("C1"), true);
            let text = message.to_string();
            assert!(text.contains("Resources: database:db-00") && text.contains("Targets: files:handbook/"));
            text.contains(APPROVE)
        };
        assert!(buttons(&|_| {}));
        let long = "x".repeat(121);
        assert!(!buttons(&|task| task.config.description = "x".repeat(1_001)));
        assert!(!buttons(&|task| *task = fixture::with_resources(task.clone(), 11)));
        assert!(!buttons(&|task| task.scope.0[0].targets.push(long.clone())));
        assert!(!buttons(&|task| task.preview.changes.push(task.preview.changes[0].clone())));
        assert!(!buttons(&|task| task.preview.changes[0].what.clone_from(&long)));
        assert!(!buttons(&|task| task.preview.warnings.push("locks the table".to_owned())));
        assert!(!buttons(&|task| task.preview.errors.push("no such table".to_owned())));
    }
}
