//! Messages by e-mail: to whom they go, and their text. Plain text, and the same text as minimal HTML. A link only leads to the page of a
//! task: programs that check mail follow links, so no link may decide anything.

use serde::{Deserialize, Serialize};

use super::notification::{Notification, one_line};
use crate::email::is_email_address;
use crate::people::UserId;
use crate::text::counted;

/// Addresses that a webhook always writes to.
pub const MAX_ADDRESSES: usize = 50;
/// A week.
pub const MAX_DIGEST_MINUTES: u32 = 7 * 24 * 60;
const MAX_SUBJECT_CHARS: usize = 150;
/// Of the text of a whole message. A digest names what is left.
const MAX_TEXT_BYTES: usize = 100_000;
const SEPARATOR: &str = "\n\n----------\n\n";

/// To whom a message goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipient {
    /// The address of the user at the time of sending.
    User(UserId),
    Address(String),
}

impl Recipient {
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("user", id) => Some(Self::User(UserId::new(id))),
            ("address", address) if is_email_address(address) => Some(Self::Address(address.to_owned())),
            _ => None,
        }
    }
}

impl std::fmt::Display for Recipient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(id) => write!(f, "user:{id}"),
            Self::Address(address) => write!(f, "address:{address}"),
        }
    }
}

/// What one event contributes to a message. It is stored as the payload of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MailPart {
    pub subject: String,
    pub text: String,
    pub link: Option<String>,
}

/// Subject and texts of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    pub subject: String,
    pub text: String,
    pub html: String,
}

pub fn part(notification: &Notification<'_>) -> MailPart {
    MailPart {
        subject: one_line(&format!("[ADE] {}", notification.title()), MAX_SUBJECT_CHARS),
        text: notification.text(),
        link: notification.link(),
    }
}

/// One message from the parts of one or several events, in order.
pub fn mail(parts: &[MailPart]) -> Mail {
    let subject = match parts {
        [part] => part.subject.clone(),
        parts => format!("[ADE] {}", counted(parts.len() as u64, "notification", "notifications")),
    };
    let (mut text, mut html, mut shown) = (String::new(), String::new(), 0);
    for part in parts {
        if shown > 0 && text.len() + part.text.len() > MAX_TEXT_BYTES {
            break;
        }
        if shown > 0 {
            text.push_str(SEPARATOR);
            html.push_str("<hr>\n");
        }
        text.push_str(&part.text);
        html.push_str(&format!("<pre style=\"white-space: pre-wrap\">{}</pre>\n", escape(&part.text)));
        if let Some(link) = &part.link {
            html.push_str(&format!("<p><a href=\"{}\">Open task</a></p>\n", escape(link)));
        }
        shown += 1;
    }
    let left = parts.len() - shown;
    if left > 0 {
        let more = format!("And {}.", counted(left as u64, "more notification", "more notifications"));
        text.push_str(SEPARATOR);
        text.push_str(&more);
        html.push_str(&format!("<hr>\n<p>{more}</p>\n"));
    }
    text.push('\n');
    let html =
        format!("<!doctype html>\n<html><head><meta charset=\"utf-8\"></head><body>\n{html}</body></html>\n");
    Mail { subject: one_line(&subject, MAX_SUBJECT_CHARS), text, html }
}

/// Text that stays text in HTML, also within quotes.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::risk::RiskLevel;
    use crate::webhook::notification::fixture;

    #[test]
    fn texts_of_others_stay_text_on_one_line_of_the_subject() {
        let event = fixture::event("approval:requested");
        let description = "x\r\nBcc: evil@a.test\r\n\r\n<script>alert('1')</script>\u{202e}\u{0}";
        let task = fixture::task(description, RiskLevel::High);
        let notification =
            Notification { event: &event, task: Some(&task), public_url: Some("https://a.test/\"><b>") };
        let mail = mail(&[part(&notification)]);
        assert_eq!(
            mail.subject,
            "[ADE] Approval requested: x Bcc: evil@a.test <script>alert('1')</script>\\u{202e}\\u{0}"
        );
        let hidden = |c: char| c != '\n' && !crate::text::is_shown(c);
        assert!(!mail.text.contains(hidden) && !mail.html.contains(hidden));
        assert!(!mail.html.contains("<script") && !mail.html.contains("<b>"), "{}", mail.html);
        assert!(mail.html.contains("<a href=\"https://a.test/&quot;&gt;&lt;b&gt;/tasks/t1\">Open task</a>"));
        assert_eq!(mail.html.matches("href").count(), 1);
        let long = fixture::task(&"long ".repeat(200), RiskLevel::Low);
        let part = part(&Notification { event: &event, task: Some(&long), public_url: None });
        assert!(part.subject.chars().count() <= MAX_SUBJECT_CHARS && part.link.is_none());
    }

    #[test]
    fn digests_are_bounded_and_say_what_is_left() {
        let part = |text: String| MailPart { subject: "s".to_owned(), text, link: None };
        let two = mail(&[part("first".to_owned()), part("second".to_owned())]);
        assert_eq!(two.subject, "[ADE] 2 notifications");
        assert_eq!(two.text, format!("first{SEPARATOR}second\n"));
        let many: Vec<MailPart> = (0..5).map(|_| part("x".repeat(MAX_TEXT_BYTES / 2))).collect();
        let digest = mail(&many);
        assert!(digest.text.ends_with("And 3 more notifications.\n"));
        assert!(digest.text.len() < MAX_TEXT_BYTES + 200, "{}", digest.text.len());
    }

    #[test]
    fn recipients_are_users_or_addresses() {
        for recipient in [
            Recipient::User(UserId::new("ann@example.com")),
            Recipient::Address("ops@example.com".to_owned()),
        ] {
            assert_eq!(Recipient::parse(&recipient.to_string()), Some(recipient));
        }
        for text in ["", "ann", "address:ann", "address:a@b.test\r\nx", "group:x"] {
            assert_eq!(Recipient::parse(text), None, "{text}");
        }
    }
}
