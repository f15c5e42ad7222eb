//! Wire types of events: as items of a page, and as messages of a WebSocket.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Time;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event as text: numbers have no gaps and are in order. Absent for lock events that are not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Id of its audit entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Name, such as `task:approved`.
    pub event: String,
    /// When it happened.
    pub timestamp: Time,
    /// Ids of the object and of its task, `from`, `to`, `revision` and `who`, as far as they apply.
    pub payload: Map<String, Value>,
    /// The server that received the request, or the process that acted by itself.
    pub source: String,
    /// Counts the events of one lock and source, if the event has no `id`: a gap shows missed events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// Events that match, in order; with `before`, the newest first.
    pub items: Vec<Event>,
    /// Value of `after` for the next page. Events up to it that are not among the items do not match. With `before`: its value for the
    /// next page, or 0 if no older events are kept.
    pub next_cursor: String,
}

/// A message to the server on a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum EventRequest {
    /// Follow events that match all conditions; replaces the previous subscription.
    Subscribe {
        /// Nouns such as `task`; all if empty.
        #[serde(default)]
        topics: Vec<String>,
        /// Names, with `*` for any characters, such as `approval:*`; all if empty.
        #[serde(default)]
        events: Vec<String>,
        /// Only events of this task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<String>,
        /// Continue after this event; from now on if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_event_id: Option<String>,
    },
    /// Answered by `pong`.
    Ping,
}

/// A message from the server on a WebSocket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventMessage {
    /// The subscription is in effect.
    Subscribed {
        /// Id of the last event at present.
        head: String,
        /// Events after this one follow.
        last_event_id: String,
    },
    /// An event.
    Event(Event),
    /// The connection is alive, and events up to this one were sent or do not match.
    Heartbeat {
        /// Resume here.
        last_event_id: String,
    },
    /// The answer to `ping`.
    Pong,
    /// A message was refused; the connection stays open.
    Error {
        /// Stable code for programs.
        code: String,
        /// What failed, why, and what to do.
        detail: String,
        /// Id of the oldest event that is kept, with the code EVENTS_EXPIRED.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oldest: Option<String>,
    },
    /// The last message: the server closes the connection.
    Dropped {
        /// `stopping`, `unauthenticated`, `expired`, `slow`, `idle`, `too_many_messages` or `unavailable`.
        reason: String,
        /// Why, and what to do.
        detail: String,
    },
}
