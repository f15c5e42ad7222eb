//! Events over a WebSocket.

use futures_util::{SinkExt, StreamExt};
use reqwest::header::HeaderValue;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::{Filter, FollowError, Interruption, Received};
use crate::Client;
use crate::wire::{EventMessage, EventRequest};

const MAX_MESSAGE_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct EventSocket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl EventSocket {
    pub(super) async fn open(
        client: &Client,
        filter: &Filter,
        after: Option<u64>,
    ) -> Result<(Self, u64), Interruption> {
        let mut request = client.websocket_url().into_client_request().map_err(|_| Interruption::Cut)?;
        for (name, value) in client.websocket_headers() {
            let mut value = HeaderValue::from_str(&value).map_err(|_| Interruption::Cut)?;
            value.set_sensitive(true);
            request.headers_mut().insert(name, value);
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES))
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES);
        let connected = connect_async_with_config(request, Some(config), true).await;
        let (socket, _) = connected.map_err(|error| match error {
            tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                client.refusal(response.status().as_u16(), body).into()
            }
            _ => Interruption::Cut,
        })?;
        let mut socket = Self(socket);
        socket
            .send(&EventRequest::Subscribe {
                topics: filter.topics.clone(),
                events: filter.events.clone(),
                task_id: filter.task_id.clone(),
                last_event_id: after.map(|id| id.to_string()),
            })
            .await?;
        loop {
            match socket.message().await? {
                Some(EventMessage::Subscribed { last_event_id, .. }) => {
                    let position = last_event_id.parse().map_err(|_| Interruption::Cut)?;
                    return Ok((socket, position));
                }
                Some(EventMessage::Error { oldest: Some(oldest), .. }) => {
                    let oldest = oldest.parse().map_err(|_| Interruption::Cut)?;
                    return Err(Interruption::Failed(FollowError::Expired { oldest }));
                }
                Some(EventMessage::Error { code, detail, .. }) => {
                    // A problem as the other transports have it: they would be refused, too.
                    let problem = serde_json::json!({ "status": 422, "code": code, "detail": detail });
                    return Err(client.refusal(422, problem.to_string().as_bytes()).into());
                }
                Some(EventMessage::Dropped { .. } | EventMessage::Event(_)) => return Err(Interruption::Cut),
                Some(EventMessage::Heartbeat { .. } | EventMessage::Pong) | None => {}
            }
        }
    }

    pub(super) async fn receive(&mut self) -> Result<Vec<Received>, Interruption> {
        loop {
            return Ok(vec![match self.message().await? {
                Some(EventMessage::Event(event)) => Received::Event(event),
                Some(EventMessage::Heartbeat { last_event_id }) => {
                    Received::Position(last_event_id.parse().map_err(|_| Interruption::Cut)?)
                }
                // Connecting again finds out whether it is final.
                Some(EventMessage::Dropped { .. }) => return Err(Interruption::Cut),
                Some(EventMessage::Subscribed { .. } | EventMessage::Pong | EventMessage::Error { .. })
                | None => {
                    continue;
                }
            }]);
        }
    }

    async fn send(&mut self, request: &EventRequest) -> Result<(), Interruption> {
        let text = serde_json::to_string(request).map_err(|_| Interruption::Cut)?;
        self.0.send(Message::text(text)).await.map_err(|_| Interruption::Cut)
    }

    /// The next message; `None` for one of the protocol itself.
    async fn message(&mut self) -> Result<Option<EventMessage>, Interruption> {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => {
                serde_json::from_str(&text).map(Some).map_err(|_| Interruption::Cut)
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Interruption::Cut),
            Some(Ok(_)) => Ok(None),
        }
    }
}
