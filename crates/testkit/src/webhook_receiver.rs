//! A receiver of webhooks that answers as a test says, and records what it gets.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// How the receiver answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Status(u16),
    /// Status 200 with this body.
    Body(String),
    /// Status 302 to this URL.
    Redirect(String),
    /// Status 200, and a body that never ends.
    EndlessBody,
    /// Nothing, while the connection stays open.
    Silence,
    /// Whatever the test sets next, once it does.
    Hold,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedRequest {
    pub path: String,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl ReceivedRequest {
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a JSON body")
    }
}

/// It stops with its test.
#[derive(Debug)]
pub struct WebhookReceiver {
    port: u16,
    reply: watch::Sender<Reply>,
    requests: mpsc::UnboundedReceiver<ReceivedRequest>,
}

impl WebhookReceiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (reply, replies) = watch::channel(Reply::Status(204));
        let (received, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, replies.clone(), received.clone()));
            }
        });
        Self { port, reply, requests }
    }

    /// As operators list it.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn reply_with(&self, reply: Reply) {
        self.reply.send_replace(reply);
    }

    pub async fn next_request(&mut self) -> ReceivedRequest {
        self.requests.recv().await.expect("the receiver runs")
    }

    /// A request that has arrived already.
    pub fn received(&mut self) -> Option<ReceivedRequest> {
        self.requests.try_recv().ok()
    }
}

async fn serve(
    mut stream: TcpStream,
    mut replies: watch::Receiver<Reply>,
    received: mpsc::UnboundedSender<ReceivedRequest>,
) {
    let Some(request) = read_request(&mut stream).await else { return };
    let mut reply = replies.borrow_and_update().clone();
    // Its test may have ended.
    let _ = received.send(request);
    while reply == Reply::Hold && replies.changed().await.is_ok() {
        reply = replies.borrow_and_update().clone();
    }
    let head = |status: u16, headers: &str, length: usize| {
        format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let text = match &reply {
        Reply::Status(status) => head(*status, "", 0),
        Reply::Body(body) => head(200, "", body.len()) + body,
        Reply::Redirect(to) => head(302, &format!("Location: {to}\r\n"), 0),
        Reply::EndlessBody => head(200, "", 1 << 30),
        Reply::Silence | Reply::Hold => String::new(),
    };
    // The sender may have closed the connection.
    let _ = stream.write_all(text.as_bytes()).await;
    match reply {
        Reply::EndlessBody => while stream.write_all(&[b'x'; 65_536]).await.is_ok() {},
        Reply::Silence => {
            let _ = stream.read(&mut [0]).await;
        }
        _ => {
            let _ = stream.shutdown().await;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 8_192]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines();
            let path = lines.next()?.split(' ').nth(1)?.to_owned();
            let headers: BTreeMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length: usize = headers.get("content-length")?.parse().ok()?;
            if body.len() >= length {
                return Some(ReceivedRequest { path, headers, body: body.to_owned() });
            }
        }
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(buffer.get(..read)?);
    }
}
