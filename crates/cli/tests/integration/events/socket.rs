//! A WebSocket as a foreign client uses it.

use ade_testkit::AdeServer;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::TIMEOUT;

pub(super) struct Socket(pub(super) WebSocketStream<TcpStream>);

/// What a server closes a connection with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) code: u16,
    /// Of the last message.
    pub(super) reason: String,
}

/// Opens a WebSocket; `Err` with the status and code of a refusal.
pub(super) async fn open(
    ade: &AdeServer,
    headers: &[(&'static str, &str)],
    stream: Option<TcpStream>,
) -> Result<Socket, (u16, String)> {
    let address = ade.url().trim_start_matches("http://").to_owned();
    let mut request = format!("ws://{address}/api/v1/ws").into_client_request().expect("a request");
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).expect("a value");
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    let stream = match stream {
        Some(stream) => stream,
        None => TcpStream::connect(&address).await.expect("connected"),
    };
    match client_async(request, stream).await {
        Ok((socket, _)) => Ok(Socket(socket)),
        Err(tokio_tungstenite::tungstenite::Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
            Err((response.status().as_u16(), problem["code"].as_str().unwrap_or_default().to_owned()))
        }
        Err(error) => panic!("{error}"),
    }
}

impl Socket {
    pub(super) async fn with_token(ade: &AdeServer, token: &str) -> Self {
        open(ade, &[("authorization", &format!("Bearer {token}"))], None).await.expect("opened")
    }

    pub(super) async fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.expect("sent");
    }

    /// The next message; `Err` if the server closes the connection.
    pub(super) async fn receive(&mut self) -> Result<Value, Closed> {
        loop {
            match timeout(TIMEOUT, self.0.next()).await.expect("a message in time") {
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).expect("JSON");
                    match message["type"].as_str() {
                        Some("dropped") => return Err(self.close(&message).await),
                        Some("heartbeat") => {}
                        _ => return Ok(message),
                    }
                }
                Some(Ok(Message::Close(frame))) => panic!("closed without a last message: {frame:?}"),
                Some(Ok(_)) => {}
                other => panic!("broken: {other:?}"),
            }
        }
    }

    async fn close(&mut self, last: &Value) -> Closed {
        let reason = last["reason"].as_str().expect("a reason").to_owned();
        assert!(last["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{last}");
        match timeout(TIMEOUT, self.0.next()).await.expect("closed in time") {
            Some(Ok(Message::Close(Some(frame)))) => Closed { code: frame.code.into(), reason },
            other => panic!("not closed: {other:?}"),
        }
    }

    pub(super) async fn subscribe(&mut self, fields: Value) -> Value {
        let mut message = json!({ "type": "subscribe" });
        message.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        self.send(&message).await;
        self.receive().await.expect("an answer")
    }

    /// Names of events until one with this name; `Err` if the server closes the connection.
    pub(super) async fn names_until(&mut self, last: &str) -> Result<Vec<String>, Closed> {
        let mut names = Vec::new();
        loop {
            let message = self.receive().await?;
            assert_eq!(message["type"], "event", "{message}");
            names.push(message["event"].as_str().expect("a name").to_owned());
            if names.last().is_some_and(|name| name == last) {
                return Ok(names);
            }
        }
    }
}
