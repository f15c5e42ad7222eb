//! Messages for Slack, in Block Kit. Texts of others are either plain text, or escaped and fenced as code: they can neither mention
//! anybody nor look like a link.

use serde_json::{Value, json};

use super::notification::{Notification, one_line};

/// The limits of Block Kit.
const MAX_HEADER_CHARS: usize = 150;
const MAX_SECTION_CHARS: usize = 2_900;
const MAX_FIELDS: usize = 10;
const MAX_DESCRIPTION_CHARS: usize = 1_000;

/// Escapes the characters that Slack interprets, and ends no code block.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('`', "'")
}

fn plain(text: &str) -> Value {
    json!({ "type": "plain_text", "text": text, "emoji": false })
}

/// A message about an event. `channel` is needed with a bot token only.
pub fn message(notification: &Notification<'_>, channel: Option<&str>) -> Value {
    let mut blocks = vec![
        json!({ "type": "header", "text": plain(&one_line(&notification.headline(), MAX_HEADER_CHARS)) }),
    ];
    if let Some(description) = notification.description(MAX_DESCRIPTION_CHARS) {
        blocks.push(json!({ "type": "section", "text": plain(&description) }));
    }
    let facts: Vec<Value> = notification
        .facts()
        .into_iter()
        .take(MAX_FIELDS)
        .map(|(name, value)| plain(&format!("{name}: {value}")))
        .collect();
    if !facts.is_empty() {
        blocks.push(json!({ "type": "section", "fields": facts }));
    }
    let items = notification.changed_items();
    if !items.is_empty() {
        let listed: String = escape(&items.join("\n")).chars().take(MAX_SECTION_CHARS).collect();
        let text = json!({ "type": "mrkdwn", "text": format!("```{listed}```"), "verbatim": true });
        blocks.push(json!({ "type": "section", "text": text }));
    }
    if let Some(link) = notification.link() {
        let open = json!({
            "type": "button", "action_id": "ade_open", "style": "primary", "text": plain("Open task"), "url": link,
        });
        blocks.push(json!({ "type": "actions", "elements": [open] }));
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
    use crate::webhook::notification::fixture;

    #[test]
    fn texts_of_others_stay_text() {
        let event = fixture::event("approval:requested");
        let mut task = fixture::task("<!channel> *bold* <https://evil.test|ok> `x`", RiskLevel::High);
        task.preview.changes[0].what = "```<!here>&".to_owned();
        let notification =
            Notification { event: &event, task: Some(&task), public_url: Some("https://a.test") };
        let message = message(&notification, Some("C1"));
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
}
