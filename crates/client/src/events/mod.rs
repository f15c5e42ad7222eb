//! Follows events: over a WebSocket, else an event stream, else by polling, whichever works; resumes after every interruption.
//!
//! No stored event that matches is left out, and none is yielded twice. Lock events without an id are best effort.

mod polling;
mod stream;
mod websocket;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::wire::Event;
use crate::{Backoff, Client, Error, ErrorKind};
use polling::Polling;
use stream::EventStream;
use websocket::EventSocket;

/// After three heartbeats of the server: the connection is broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// For a connection to be established and subscribed.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a worse transport is used before a better one is tried again.
const UPGRADE_INTERVAL: Duration = Duration::from_secs(300);

/// How events are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTransport {
    /// `GET /api/v1/ws`.
    WebSocket,
    /// `GET /api/v1/events/stream`.
    Stream,
    /// `GET /api/v1/events`, again and again. Without lock events that are not stored.
    Polling,
}

/// From best to worst.
const TRANSPORTS: [EventTransport; 3] =
    [EventTransport::WebSocket, EventTransport::Stream, EventTransport::Polling];

/// Why events cannot be followed any longer. Everything else is retried.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Some of the next events have been deleted because they are old.
    #[error("the next events have been deleted; the oldest that is kept is {oldest}")]
    Expired {
        /// Number of the oldest event that is kept.
        oldest: u64,
    },
    /// The server refuses the follower.
    #[error(transparent)]
    Refused(#[from] Error),
}

/// Follows events. Created by [`Client::follow_events`].
#[derive(Debug)]
pub struct EventFollower {
    client: Client,
    filter: Filter,
    /// Events up to this one were yielded, or do not match.
    last_event_id: Option<u64>,
    transports: Vec<EventTransport>,
    connection: Option<(Connection, EventTransport, Instant)>,
    received: VecDeque<Received>,
    backoff: Backoff,
}

/// Which events are followed.
#[derive(Debug, Clone, Default)]
struct Filter {
    topics: Vec<String>,
    events: Vec<String>,
    task_id: Option<String>,
}

impl Filter {
    /// As parameters of a query.
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if !self.topics.is_empty() {
            query.push(("topics", self.topics.join(",")));
        }
        if !self.events.is_empty() {
            query.push(("events", self.events.join(",")));
        }
        query.extend(self.task_id.clone().map(|task| ("task_id", task)));
        query
    }
}

#[derive(Debug)]
enum Connection {
    WebSocket(Box<EventSocket>),
    Stream(EventStream),
    Polling(Polling),
}

/// What a connection receives.
#[derive(Debug)]
enum Received {
    Event(Event),
    /// Events up to this one were received, or do not match.
    Position(u64),
}

/// Why a connection cannot be used, or not any longer.
#[derive(Debug)]
enum Interruption {
    /// Connect again.
    Cut,
    Failed(FollowError),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        match &error {
            Error::Problem(problem) if problem.code == "EVENTS_EXPIRED" => {
                let oldest = problem.extension::<String>("oldest").and_then(|oldest| oldest.parse().ok());
                Self::Failed(FollowError::Expired { oldest: oldest.unwrap_or_default() })
            }
            // Only what the server itself says is final.
            Error::Problem(_) if error.kind() == ErrorKind::Permanent => Self::Failed(error.into()),
            _ => Self::Cut,
        }
    }
}

impl EventFollower {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            filter: Filter::default(),
            last_event_id: None,
            transports: TRANSPORTS.to_vec(),
            connection: None,
            received: VecDeque::new(),
            backoff: Backoff::default(),
        }
    }

    /// Follows events after this one, instead of from now on. Zero is before the first.
    #[must_use]
    pub const fn after(mut self, event_id: u64) -> Self {
        self.last_event_id = Some(event_id);
        self
    }

    /// Follows events of these nouns only, such as `task`.
    #[must_use]
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.filter.topics = topics.into_iter().map(Into::into).collect();
        self
    }

    /// Follows events with these names only; `*` stands for any characters, as in `approval:*`.
    #[must_use]
    pub fn events<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.filter.events = names.into_iter().map(Into::into).collect();
        self
    }

    /// Follows events of this task only.
    #[must_use]
    pub fn task(mut self, task_id: impl Into<String>) -> Self {
        self.filter.task_id = Some(task_id.into());
        self
    }

    /// Uses only these transports, the first that works.
    #[must_use]
    pub fn transports(mut self, transports: impl IntoIterator<Item = EventTransport>) -> Self {
        self.transports = transports.into_iter().collect();
        self
    }

    /// The transport in use at the moment.
    #[must_use]
    pub fn transport(&self) -> Option<EventTransport> {
        self.connection.as_ref().map(|(_, transport, _)| *transport)
    }

    /// Events up to this one were yielded, or do not match: where to continue after a restart.
    #[must_use]
    pub const fn last_event_id(&self) -> Option<u64> {
        self.last_event_id
    }

    /// The next event. Waits for it, and connects again as often as needed. It can be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// The server refuses the follower, or has deleted the next events. Later calls try again.
    pub async fn next(&mut self) -> Result<Event, FollowError> {
        loop {
            while let Some(received) = self.received.pop_front() {
                if let Some(event) = self.take(received) {
                    return Ok(event);
                }
            }
            self.connect().await?;
            self.receive().await?;
        }
    }

    /// Connects unless it is connected, and returns when events from now on, or after the given one, cannot be missed any more.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub async fn connect(&mut self) -> Result<(), FollowError> {
        let first = self.transports.first().copied();
        if let Some((_, transport, since)) = &self.connection
            && first != Some(*transport)
            && since.elapsed() >= UPGRADE_INTERVAL
        {
            self.connection = None;
        }
        while self.connection.is_none() {
            for transport in self.transports.clone() {
                match self.open(transport).await {
                    Ok((connection, position)) => {
                        self.received.push_back(Received::Position(position));
                        self.connection = Some((connection, transport, Instant::now()));
                        return Ok(());
                    }
                    Err(Interruption::Cut) => {}
                    Err(Interruption::Failed(error)) => return Err(error),
                }
            }
            sleep(self.backoff.next_delay(None)).await;
        }
        Ok(())
    }

    async fn open(&self, transport: EventTransport) -> Result<(Connection, u64), Interruption> {
        let (client, filter, after) = (&self.client, &self.filter, self.last_event_id);
        let opened = async {
            Ok(match transport {
                EventTransport::WebSocket => {
                    let (socket, position) = EventSocket::open(client, filter, after).await?;
                    (Connection::WebSocket(Box::new(socket)), position)
                }
                EventTransport::Stream => {
                    let (stream, position) = EventStream::open(client, filter, after).await?;
                    (Connection::Stream(stream), position)
                }
                EventTransport::Polling => {
                    let (polling, position) = Polling::open(client, filter, after).await?;
                    (Connection::Polling(polling), position)
                }
            })
        };
        tokio::time::timeout(OPEN_TIMEOUT, opened).await.unwrap_or(Err(Interruption::Cut))
    }

    async fn receive(&mut self) -> Result<(), FollowError> {
        if !self.received.is_empty() {
            return Ok(());
        }
        let Some((connection, ..)) = &mut self.connection else { return Ok(()) };
        let received = async {
            match connection {
                Connection::WebSocket(socket) => socket.receive().await,
                Connection::Stream(stream) => stream.receive().await,
                Connection::Polling(polling) => polling.receive().await,
            }
        };
        match tokio::time::timeout(IDLE_TIMEOUT, received).await.unwrap_or(Err(Interruption::Cut)) {
            Ok(received) => {
                self.received.extend(received);
                self.backoff = Backoff::default();
            }
            Err(Interruption::Cut) => {
                self.connection = None;
                // A server that closes each connection at once must not be called in a loop.
                sleep(self.backoff.next_delay(None)).await;
            }
            Err(Interruption::Failed(error)) => {
                self.connection = None;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Notes how far it has got; returns the event unless it was yielded before.
    fn take(&mut self, received: Received) -> Option<Event> {
        let (number, event) = match received {
            Received::Position(number) => (number, None),
            Received::Event(event) => match event.id.as_deref().map(str::parse) {
                // A lock event.
                None | Some(Err(_)) => return Some(event),
                Some(Ok(number)) => (number, Some(event)),
            },
        };
        let is_new = self.last_event_id.is_none_or(|last| number > last);
        if is_new {
            self.last_event_id = Some(number);
        }
        event.filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>) -> Received {
        let fields = serde_json::json!({
            "id": id, "event": "task:created", "timestamp": "2026-01-01T00:00:00Z", "payload": {}, "source": "ade",
        });
        Received::Event(serde_json::from_value(fields).expect("an event"))
    }

    #[test]
    fn every_stored_event_is_taken_once_and_lock_events_move_nothing() {
        let client = Client::new("http://127.0.0.1:1", "token").expect("a client");
        let mut follower = client.follow_events().after(3);
        assert!(follower.take(event(Some("3"))).is_none(), "before the start");
        assert!(follower.take(event(Some("4"))).is_some());
        assert!(follower.take(event(Some("4"))).is_none(), "sent twice");
        assert!(follower.take(event(None)).is_some());
        assert_eq!(follower.last_event_id(), Some(4));
        assert!(follower.take(Received::Position(9)).is_none());
        assert!(follower.take(Received::Position(8)).is_none());
        assert_eq!(follower.last_event_id(), Some(9));
        assert!(follower.take(event(Some("9"))).is_none());
    }
}
