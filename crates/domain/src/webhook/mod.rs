//! Webhooks: where events are sent, in which format, and which of them. Also the signatures and the retries of deliveries, and hooks that
//! receive proposals (`inbound.rs`).
//!
//! Secrets are stored encrypted, and appear in no view of a webhook.

pub mod chat_secret;
pub mod delivery;
pub mod email;
pub mod inbound;
pub mod notification;
pub mod pagerduty;
pub mod servicenow;
pub mod signature;
pub mod slack;
pub mod slack_account;
pub mod slack_request;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::email::is_email_address;
use crate::event::{Event, check_event_pattern};
use crate::glob::matches_any;
use crate::people::UserId;
use crate::{InvalidField, Moment, Validator};

use email::{MAX_ADDRESSES, MAX_DIGEST_MINUTES};

pub const MAX_WEBHOOKS: usize = 100;
const MAX_NAME_LEN: usize = 128;
const MAX_PATTERNS: usize = 50;
/// Bytes of a credential or of the name of a channel.
const MAX_CREDENTIAL_LEN: usize = 4_096;

/// What a receiver understands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum WebhookFormat {
    /// JSON with the signature of the Standard Webhooks specification.
    #[default]
    Standard,
    /// A message for Slack, by an incoming webhook or a bot token.
    Slack,
    /// An event for PagerDuty.
    Pagerduty,
    /// A record in a table of ServiceNow.
    Servicenow,
    /// Messages to the people whom an event concerns.
    Email,
}

/// Follows the decision that closed the request, so that a receiver which opens something for each event would open it again.
const CLOSED_REQUEST: &str = "approval:resolved";

impl WebhookFormat {
    pub const ALL: [Self; 5] = [Self::Standard, Self::Slack, Self::Pagerduty, Self::Servicenow, Self::Email];

    /// Whether the receiver is sent such events at all.
    fn accepts(self, event: &str) -> bool {
        event != CLOSED_REQUEST || !matches!(self, Self::Pagerduty | Self::Servicenow)
    }
}

/// A text that is encrypted with the key of the installation; see [`Keys::seal`](crate::Keys::seal).
pub type SealedText = String;

/// The previous signing secret, which signs for a while after a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousSecret {
    pub secret: SealedText,
    pub valid_until: Moment,
}

/// The Slack app whose buttons decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlackApp {
    pub signing_secret: SealedText,
    /// Changes with the secret, and ends the links that were made with it.
    pub secret_id: String,
    /// Who set it last; none for the operator. Others may know it too: see [`ChatSecret`](chat_secret::ChatSecret).
    pub set_by: Option<UserId>,
}

/// Where events are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    pub name: String,
    pub format: WebhookFormat,
    /// Patterns of event names, such as `approval:*`.
    pub events: Vec<String>,
    /// Patterns of task types; without any, events of all tasks and of everything else match.
    pub task_types: Vec<String>,
    pub active: bool,
    /// Why the service deactivated it.
    pub disabled_reason: Option<String>,
    /// Who created it; none for the bootstrap token.
    pub owner: Option<UserId>,
    pub created_at: Moment,
    /// Scheme, host and port of the URL.
    pub destination: String,
    /// The URL without what may be secret in it.
    pub masked_url: String,
    pub url: SealedText,
    /// Signs what is sent, in the format `standard`.
    pub secret: Option<SealedText>,
    pub previous_secret: Option<PreviousSecret>,
    /// What the receiver asks for: the routing key of PagerDuty, the header `Authorization` of ServiceNow, the bot token of Slack.
    pub credential: Option<SealedText>,
    /// The channel of Slack that a bot token posts to.
    pub channel: Option<String>,
    /// Addresses that get every event, besides the people whom it concerns, in the format `email`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Sends one message for each recipient and interval, in the format `email`; none: one for each event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_minutes: Option<u32>,
    /// Lets linked users decide in Slack.
    pub slack_app: Option<SlackApp>,
}

impl Webhook {
    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        check_name(&mut input, &self.name);
        let needs_credential = matches!(self.format, WebhookFormat::Pagerduty | WebhookFormat::Servicenow);
        let has_credential = self.credential.is_some();
        let detail = "is required for this format";
        input.check(has_credential || !needs_credential, "credential", detail);
        let detail = "is not used by this format";
        let uses_credential = !matches!(self.format, WebhookFormat::Standard | WebhookFormat::Email);
        input.check(!has_credential || uses_credential, "credential", detail);
        let is_email = self.format == WebhookFormat::Email;
        input.check(is_email || self.addresses.is_empty(), "addresses", detail);
        input.check(is_email || self.digest_minutes.is_none(), "digest_minutes", detail);
        let many = format_args!("must be at most {MAX_ADDRESSES} addresses");
        input.check(self.addresses.len() <= MAX_ADDRESSES, "addresses", many);
        for (index, address) in self.addresses.iter().take(MAX_ADDRESSES).enumerate() {
            let path = format_args!("addresses.{index}");
            input.check(is_email_address(address), path, "must be an address such as ann@example.com");
        }
        let range = 1..=MAX_DIGEST_MINUTES;
        let detail = format_args!("must be 1 to {MAX_DIGEST_MINUTES}");
        input.check(
            self.digest_minutes.is_none_or(|minutes| range.contains(&minutes)),
            "digest_minutes",
            detail,
        );
        let detail = "must be set with a bot token of Slack, and only then";
        input.check(self.channel.is_some() == self.updates_messages(), "channel", detail);
        let detail = "needs a bot token of Slack, which updates the messages with buttons";
        input.check(self.updates_messages() || self.slack_app.is_none(), "signing_secret", detail);
        let is_channel = |text: &String| {
            (1..=80).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        input.check(
            self.channel.iter().all(is_channel),
            "channel",
            "must be the id or the name of a channel",
        );
        let (count, many) = (1..=MAX_PATTERNS, format_args!("must be 1 to {MAX_PATTERNS} patterns"));
        input.check(count.contains(&self.events.len()), "events", many);
        let many = format_args!("must be at most {MAX_PATTERNS} patterns");
        input.check(self.task_types.len() <= MAX_PATTERNS, "task_types", many);
        for (index, pattern) in self.events.iter().take(MAX_PATTERNS).enumerate() {
            if let Err(detail) = check_event_pattern(pattern) {
                input.check(false, format_args!("events.{index}"), detail);
            }
        }
        let task_types = self.task_types.iter().take(MAX_PATTERNS);
        input.check_patterns("task_types", task_types.clone().map(String::as_str));
        for (index, pattern) in task_types.enumerate() {
            let is_text = !pattern.is_empty() && !pattern.chars().any(|c| c.is_control() || c == ' ');
            input.check(is_text, format_args!("task_types.{index}"), "must be a pattern without spaces");
        }
        input.errors
    }

    /// Whether an event is sent here. `task_type` is that of its task, if it has one that still exists.
    pub fn wants(&self, event: &Event, task_type: Option<&str>) -> bool {
        // Not what happened before somebody wanted to know it.
        self.active
            && event.at >= self.created_at
            && self.format.accepts(&event.event)
            && matches_any(&self.events, &event.event)
            && (self.task_types.is_empty()
                || task_type.is_some_and(|task_type| matches_any(&self.task_types, task_type)))
    }

    /// When what happens at a time is sent: at the end of the interval of a digest. `None`: at once.
    pub fn digest_at(&self, now: Moment) -> Option<Moment> {
        let interval = u64::from(self.digest_minutes.filter(|minutes| *minutes > 0)?) * 60_000_000;
        Some(Moment::from_micros((now.micros() / interval + 1) * interval))
    }

    /// Whether the receiver keeps one message for each task, which later events change.
    pub fn updates_messages(&self) -> bool {
        self.format == WebhookFormat::Slack && self.credential.is_some()
    }

    /// Whether the type of a task decides.
    pub const fn filters_tasks(&self) -> bool {
        !self.task_types.is_empty()
    }
}

fn check_name(input: &mut Validator, name: &str) {
    let is_name = !name.trim().is_empty()
        && name.len() <= MAX_NAME_LEN
        && !name.chars().any(|c| !crate::text::is_shown(c));
    input.check(is_name, "name", format_args!("must be 1 to {MAX_NAME_LEN} bytes of visible characters"));
}

/// Checks a credential: it becomes part of a header or of a body.
pub fn check_credential(path: &str, text: &str) -> Result<(), InvalidField> {
    let is_valid = !text.is_empty()
        && text.len() <= MAX_CREDENTIAL_LEN
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let detail = format!("must be 1 to {MAX_CREDENTIAL_LEN} visible ASCII characters");
    if is_valid { Ok(()) } else { Err(InvalidField::at(path, detail)) }
}

/// What a receiver of the format `standard` gets: which fact, when, and the ids that lead to the rest. Never content of a task.
pub fn standard_payload(number: u64, event: &Event) -> Value {
    let mut data = event.payload.clone();
    data.insert("event_id".to_owned(), json!(event.event_id));
    data.insert("number".to_owned(), json!(number));
    if !event.notify.is_empty() {
        data.insert("notify".to_owned(), json!(event.notify));
    }
    json!({ "type": event.event, "timestamp": event.at.to_string(), "data": data })
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn webhook(events: &[&str], task_types: &[&str]) -> Webhook {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Webhook {
            name: "ci".to_owned(),
            format: WebhookFormat::Standard,
            events: texts(events),
            task_types: texts(task_types),
            active: true,
            disabled_reason: None,
            owner: None,
            created_at: Moment::from_micros(10),
            destination: "https://a.test:443".to_owned(),
            masked_url: "https://a.test/hook".to_owned(),
            url: String::new(),
            secret: None,
            previous_secret: None,
            credential: None,
            channel: None,
            addresses: Vec::new(),
            digest_minutes: None,
            slack_app: None,
        }
    }

    fn event(name: &str, at: u64) -> Event {
        Event {
            event_id: "e".to_owned(),
            event: name.to_owned(),
            at: Moment::from_micros(at),
            task_id: Some("t".to_owned()),
            notify: vec![UserId::new("rex")],
            payload: Map::from_iter([("task_id".to_owned(), json!("t"))]),
            source: "ade".to_owned(),
        }
    }

    #[test]
    fn wants_matching_events_since_its_creation() {
        let all = webhook(&["*"], &[]);
        assert!(all.wants(&event("user:created", 10), None) && !all.wants(&event("user:created", 9), None));
        assert!(!Webhook { active: false, ..all }.wants(&event("user:created", 10), None));
        let some = webhook(&["approval:*", "task:failed"], &["schema*"]);
        assert!(some.wants(&event("approval:requested", 11), Some("schema-change")));
        assert!(some.wants(&event("task:failed", 11), Some("schema")));
        assert!(!some.wants(&event("task:completed", 11), Some("schema")));
        assert!(!some.wants(&event("task:failed", 11), Some("docs")));
        assert!(!some.wants(&event("task:failed", 11), None));
    }

    #[test]
    fn closed_requests_open_no_alert_or_record_again() {
        for format in WebhookFormat::ALL {
            let webhook = Webhook { format, ..webhook(&["*", "approval:resolved"], &[]) };
            assert!(webhook.wants(&event("approval:requested", 11), None));
            let opens = matches!(format, WebhookFormat::Pagerduty | WebhookFormat::Servicenow);
            assert_eq!(webhook.wants(&event("approval:resolved", 11), None), !opens, "{format:?}");
        }
    }

    #[test]
    fn reports_every_invalid_field() {
        assert_eq!(webhook(&["task:*"], &[]).validate(), []);
        let mut invalid = webhook(&[], &["", "a b"]);
        invalid.name = "\u{202e}".to_owned();
        let paths: Vec<String> = invalid.validate().iter().map(|fault| fault.path.to_string()).collect();
        assert_eq!(paths, ["name", "events", "task_types.0", "task_types.1"]);
    }

    #[test]
    fn only_email_has_addresses_and_digests() {
        let mut webhook = webhook(&["*"], &[]);
        webhook.addresses = vec!["ops@example.com".to_owned(), "a@b.test\r\nBcc: c@d.test".to_owned()];
        webhook.digest_minutes = Some(0);
        let paths = |webhook: &Webhook| {
            webhook.validate().iter().map(|fault| fault.path.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(paths(&webhook), "addresses digest_minutes addresses.1 digest_minutes");
        webhook.format = WebhookFormat::Email;
        assert_eq!(paths(&webhook), "addresses.1 digest_minutes");
        webhook.addresses.truncate(1);
        webhook.digest_minutes = Some(15);
        assert_eq!(paths(&webhook), "");
    }

    #[test]
    fn digests_end_with_their_interval() {
        let webhook = Webhook { digest_minutes: Some(10), ..webhook(&["*"], &[]) };
        let at = |minutes: u64| Moment::default().plus_ms(minutes * 60_000);
        assert_eq!(
            [0, 9, 10].map(|now| webhook.digest_at(at(now))),
            [Some(at(10)), Some(at(10)), Some(at(20))]
        );
    }

    #[test]
    fn standard_payload_names_the_fact_and_ids_only() {
        let payload = standard_payload(7, &event("task:approved", 1_794_744_000_000_000));
        let data = json!({ "task_id": "t", "event_id": "e", "number": 7, "notify": ["rex"] });
        let expected =
            json!({ "type": "task:approved", "timestamp": "2026-11-15T12:00:00.000000Z", "data": data });
        assert_eq!(payload, expected);
    }
}
