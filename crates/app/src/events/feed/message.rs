//! An event as followers receive it: its JSON is made once and shared by all of them.

use std::borrow::Cow;
use std::sync::OnceLock;

use ade_domain::Moment;
use ade_domain::audience::{Account, Audience, Viewer};
use ade_domain::event::Event;
use ade_domain::event_filter::EventFilter;
use ade_domain::lock::LockName;
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

/// How a message begins; the fields of the event follow.
const MESSAGE_START: &str = "{\"type\":\"event\",";

/// An event of a lock, on its way to followers. It is in no database and has no number.
#[derive(Debug, Clone, PartialEq)]
pub struct LockEventMessage {
    pub lock: LockName,
    /// As `lock:acquired`.
    pub event: Cow<'static, str>,
    pub at: Moment,
    /// The process that counted it.
    pub source: String,
    /// Counts the events of this lock and source: where a number is missing, events are.
    pub sequence: u64,
    pub payload: Map<String, Value>,
}

/// An event with its audience, ready to be sent.
#[derive(Debug)]
pub struct FeedEvent {
    /// `None` for events of locks that are in no database.
    pub number: Option<u64>,
    name: String,
    task_id: Option<String>,
    audience: Audience,
    /// The account that it is about.
    pub(super) account: Option<Account>,
    message: Bytes,
    frame: OnceLock<Bytes>,
}

#[derive(Serialize)]
struct Fields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    event: &'a str,
    timestamp: String,
    payload: &'a Map<String, Value>,
    source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

impl Fields<'_> {
    fn message(&self) -> Bytes {
        // Strings and maps of JSON values always serialize.
        let object = serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned());
        let fields = object.strip_prefix('{').unwrap_or_default();
        format!("{MESSAGE_START}{fields}").into()
    }
}

impl FeedEvent {
    pub(super) fn new(number: u64, event: Event, audience: Audience) -> Self {
        let fields = Fields {
            id: Some(number.to_string()),
            event_id: Some(&event.event_id),
            event: &event.event,
            timestamp: event.at.to_string(),
            payload: &event.payload,
            source: &event.source,
            sequence: None,
        };
        let (message, account) = (fields.message(), event.account());
        let Event { event: name, task_id, .. } = event;
        let frame = OnceLock::new();
        Self { number: Some(number), name, task_id, audience, account, message, frame }
    }

    pub(super) fn of_lock(event: &LockEventMessage, audience: Audience) -> Self {
        let fields = Fields {
            id: None,
            event_id: None,
            event: &event.event,
            timestamp: event.at.to_string(),
            payload: &event.payload,
            source: &event.source,
            sequence: Some(event.sequence),
        };
        Self {
            number: None,
            name: event.event.clone().into_owned(),
            task_id: ade_domain::audience::task_of_lock(&event.lock).map(str::to_owned),
            audience,
            account: None,
            message: fields.message(),
            frame: OnceLock::new(),
        }
    }

    /// Whether it is for this viewer, who asks for what the filter says.
    #[must_use]
    pub fn is_for(&self, viewer: &Viewer, filter: &EventFilter) -> bool {
        filter.matches(&self.name, self.task_id.as_deref()) && self.audience.includes(viewer)
    }

    /// The message of a WebSocket, in JSON.
    #[must_use]
    pub fn message(&self) -> Bytes {
        self.message.clone()
    }

    /// The event as a JSON object, without its opening brace.
    #[must_use]
    pub fn fields(&self) -> &[u8] {
        self.message.get(MESSAGE_START.len()..).unwrap_or_default()
    }

    /// The frame of an event stream. JSON has no line breaks, so it is one line of data.
    #[must_use]
    pub fn frame(&self) -> Bytes {
        let frame = || {
            let mut frame = Vec::with_capacity(self.message.len() + 48);
            if let Some(number) = self.number {
                frame.extend_from_slice(format!("id: {number}\n").as_bytes());
            }
            frame.extend_from_slice(b"data: {");
            frame.extend_from_slice(self.fields());
            frame.extend_from_slice(b"\n\n");
            frame.into()
        };
        self.frame.get_or_init(frame).clone()
    }

    /// The bytes that it takes in memory, about.
    pub(super) const fn size(&self) -> usize {
        2 * self.message.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_event_in_its_three_forms() {
        let payload = Map::from_iter([("task_id".to_owned(), json!("t\nx"))]);
        let event = Event {
            event_id: "e".to_owned(),
            event: "task:approved".to_owned(),
            at: Moment::from_micros(1),
            task_id: Some("t".to_owned()),
            notify: Vec::new(),
            payload,
            source: "ade".to_owned(),
        };
        let event = FeedEvent::new(7, event, Audience::default());
        let fields = r#""id":"7","event_id":"e","event":"task:approved","timestamp":"1970-01-01T00:00:00.000001Z","payload":{"task_id":"t\nx"},"source":"ade"}"#;
        assert_eq!(event.message(), format!("{{\"type\":\"event\",{fields}"));
        assert_eq!(event.fields(), fields.as_bytes());
        assert_eq!(event.frame(), format!("id: 7\ndata: {{{fields}\n\n"));
        let lock = LockEventMessage {
            lock: "task:t".parse().expect("a name"),
            event: "lock:acquired".into(),
            at: Moment::from_micros(1),
            source: "ade".to_owned(),
            sequence: 3,
            payload: Map::new(),
        };
        let event = FeedEvent::of_lock(&lock, Audience::default());
        let fields = r#""event":"lock:acquired","timestamp":"1970-01-01T00:00:00.000001Z","payload":{},"source":"ade","sequence":3}"#;
        assert_eq!(event.frame(), format!("data: {{{fields}\n\n"));
    }
}
