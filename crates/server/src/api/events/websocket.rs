//! The WebSocket: one subscription, which the client may replace. A client that does not read is closed, and nobody waits for it.

use std::time::Duration;

use ade_app::FeedError;
use ade_domain::event_filter::EventFilter;
use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::HeaderMap;
use futures_util::SinkExt;
use tokio::time::{Instant, timeout};

use super::follower::{EndReason, Follower, Update};
use super::{origin, parse_id};
use crate::api::prelude::*;
use crate::auth::Credentials;
use crate::http::connections::Connection;

const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Buffers of one connection. The second one bounds what waits for a client that does not read.
const BUFFER_BYTES: usize = 4 << 10;
const MAX_WRITE_BUFFER_BYTES: usize = 256 << 10;
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages of a client within [`MESSAGE_WINDOW`].
const MAX_MESSAGES: u32 = 120;
const MESSAGE_WINDOW: Duration = Duration::from_secs(60);
/// Bytes of the reason in a close frame.
const MAX_CLOSE_REASON: usize = 120;

/// Follow events over a WebSocket.
///
/// Send `{"type": "subscribe"}` with topics, events, task_id and last_event_id as needed; see EventRequest and EventMessage.
#[utoipa::path(get, path = "/ws", operation_id = "follow_events", tag = "events", responses(
    (status = 101, description = "The connection becomes a WebSocket, whose messages are EventRequest and EventMessage", body = wire::EventMessage),
    CommonErrors,
    (status = 403, description = "ORIGIN_NOT_ALLOWED, FORBIDDEN, SCOPE_MISSING, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED", body = wire::Problem),
    (status = 426, description = "UPGRADE_REQUIRED: this is not a WebSocket request", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED or TOO_MANY_FOLLOWERS", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE or TOO_MANY_FOLLOWERS", body = wire::Problem),
))]
pub(super) async fn websocket(
    app: App,
    caller: Caller,
    credentials: Credentials,
    http: Option<Extension<Connection>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult {
    origin::check(&headers, &app.hosts, credentials.is_session())?;
    let follower = Follower::new(&app, &caller, credentials, http.map(|Extension(http)| http))?;
    let upgrade = upgrade.map_err(|rejection| {
        let detail =
            format!("expected a WebSocket request: {rejection}; use /api/v1/events/stream without one");
        Problem::new(StatusCode::UPGRADE_REQUIRED, "UPGRADE_REQUIRED", detail).header("upgrade", "websocket")
    })?;
    let slow_after = app.write_timeout / 2;
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let head = move || app.feed.head();
        let session = Session { socket, follower, slow_after, head, messages: (Instant::now(), 0) };
        session.run().await;
    }))
}

struct Session<H> {
    socket: WebSocket,
    follower: Follower,
    /// How long the client may take to receive a batch.
    slow_after: Duration,
    head: H,
    /// Messages of the client since a time.
    messages: (Instant, u32),
}

/// How a connection ends: with a reason, or because the client has closed it.
type Ended = Option<EndReason>;

impl<H: Fn() -> u64> Session<H> {
    async fn run(mut self) {
        let end = match timeout(SUBSCRIBE_TIMEOUT, self.wait_for_subscription()).await {
            Ok(Ok(())) => self.follow().await,
            Ok(Err(end)) => end,
            Err(_) => Some(EndReason::Idle),
        };
        let Some(reason) = end else { return };
        tracing::debug!(reason = reason.code(), "a follower of events is dropped");
        // What is left of the write timeout is enough for a client that reads again.
        let told = async {
            let dropped =
                wire::EventMessage::Dropped { reason: reason.code().to_owned(), detail: reason.detail() };
            self.socket.send(text(&dropped)).await?;
            self.socket.send(Message::Close(Some(close_frame(&reason)))).await?;
            // The client answers by closing.
            while let Some(Ok(_)) = self.socket.recv().await {}
            Ok::<_, axum::Error>(())
        };
        let _ = timeout(self.slow_after, told).await;
    }

    async fn wait_for_subscription(&mut self) -> Result<(), Ended> {
        loop {
            tokio::select! {
                update = self.follower.next() => {
                    if let Update::End(reason) = update {
                        return Err(Some(reason));
                    }
                }
                received = self.socket.recv() => {
                    if self.receive(received).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn follow(&mut self) -> Ended {
        loop {
            let messages: Vec<_> = tokio::select! {
                update = self.follower.next() => match update {
                    Update::Events(events) => events
                        .iter()
                        // They are made of strings, so they are UTF-8.
                        .filter_map(|event| Utf8Bytes::try_from(event.message()).ok())
                        .map(Message::Text)
                        .collect(),
                    Update::Heartbeat => {
                        let last_event_id = self.follower.position().to_string();
                        vec![text(&wire::EventMessage::Heartbeat { last_event_id })]
                    }
                    Update::End(reason) => return Some(reason),
                },
                received = self.socket.recv() => match self.receive(received).await {
                    Ok(_) => continue,
                    Err(end) => return end,
                },
            };
            let count = messages.len();
            if let Err(end) = self.send(messages).await {
                return end;
            }
            tracing::trace!(count, "sent to a follower of events");
        }
    }

    /// Sends messages together. Fails if the client does not read them in time.
    async fn send(&mut self, messages: Vec<Message>) -> Result<(), Ended> {
        let sent = async {
            for message in messages {
                self.socket.feed(message).await?;
            }
            self.socket.flush().await
        };
        match timeout(self.slow_after, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the connection of a follower broke");
                Err(None)
            }
            Err(_) => Err(Some(EndReason::Slow)),
        }
    }

    /// Handles a message of the client; returns whether it has subscribed.
    async fn receive(&mut self, received: Option<Result<Message, axum::Error>>) -> Result<bool, Ended> {
        let message = match received {
            None | Some(Ok(Message::Close(_)) | Err(_)) => return Err(None),
            Some(Ok(message)) => message,
        };
        let now = Instant::now();
        if now.duration_since(self.messages.0) >= MESSAGE_WINDOW {
            self.messages = (now, 0);
        }
        self.messages.1 += 1;
        if self.messages.1 > MAX_MESSAGES {
            return Err(Some(EndReason::TooManyMessages));
        }
        let Message::Text(message) = message else { return Ok(false) };
        let answer = match serde_json::from_str(&message) {
            Ok(wire::EventRequest::Ping) => wire::EventMessage::Pong,
            Ok(wire::EventRequest::Subscribe { topics, events, task_id, last_event_id }) => {
                self.subscribe(EventFilter { topics, events, task_id }, last_event_id).await
            }
            Err(error) => refusal("INVALID_MESSAGE", format!("cannot read the message: {error}")),
        };
        self.send(vec![text(&answer)]).await?;
        Ok(matches!(answer, wire::EventMessage::Subscribed { .. }))
    }

    async fn subscribe(&mut self, filter: EventFilter, last_event_id: Option<String>) -> wire::EventMessage {
        if let Err(invalid) = filter.validate() {
            return refusal("INVALID_REQUEST", invalid.to_string());
        }
        let after = last_event_id.map(|id| parse_id("/last_event_id", &id)).transpose();
        let subscribed = match after {
            Ok(after) => self.follower.subscribe(after, filter).await,
            Err(problem) => return refusal(problem.code(), problem.detail().to_owned()),
        };
        match subscribed {
            Ok(position) => wire::EventMessage::Subscribed {
                head: (self.head)().to_string(),
                last_event_id: position.to_string(),
            },
            Err(error) => {
                let oldest = match &error {
                    FeedError::Expired { oldest } => Some(oldest.to_string()),
                    _ => None,
                };
                let problem = Problem::from(error);
                let (code, detail) = (problem.code().to_owned(), problem.detail().to_owned());
                wire::EventMessage::Error { code, detail, oldest }
            }
        }
    }
}

fn refusal(code: &str, detail: String) -> wire::EventMessage {
    wire::EventMessage::Error { code: code.to_owned(), detail, oldest: None }
}

fn text(message: &wire::EventMessage) -> Message {
    // Plain types always serialize.
    Message::Text(serde_json::to_string(message).unwrap_or_default().into())
}

fn close_frame(reason: &EndReason) -> CloseFrame {
    let code = match reason {
        EndReason::Stopping => close_code::AWAY,
        EndReason::Unauthenticated(_)
        | EndReason::Expired(_)
        | EndReason::Idle
        | EndReason::TooManyMessages => close_code::POLICY,
        EndReason::Slow | EndReason::Unavailable => close_code::AGAIN,
    };
    let detail = format!("{}: {}", reason.code(), reason.detail());
    let end = (0..=MAX_CLOSE_REASON).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or_default();
    CloseFrame { code, reason: detail.get(..end).unwrap_or(&detail).to_owned().into() }
}
