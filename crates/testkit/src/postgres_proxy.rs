//! A TCP proxy to PostgreSQL that injects faults: it disconnects clients, at once or after some messages, stops forwarding while the
//! connections stay open, or drops a COMMIT or its response.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const BUFFER_SIZE: usize = 65_536;
/// A COMMIT as a simple query on the wire.
const COMMIT: &[u8] = b"COMMIT\0";
/// The server is ready for the first query, or the next.
const READY: &[u8] = b"Z\0\0\0\x05I";
/// The type of a message and its length, which counts itself.
const HEADER_BYTES: usize = 5;

/// What happens to the next COMMIT. The connection is closed in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// The server commits, but the client gets no response.
    LoseResponse,
    /// The server never gets the COMMIT.
    LoseRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProxyState {
    is_disconnected: bool,
    /// Connections are accepted and stay open, but nothing is forwarded.
    is_frozen: bool,
    next_fault: Option<CommitFault>,
    /// Whether the proxy stays disconnected after the fault.
    disconnect_after_fault: bool,
    /// How many more messages of clients are forwarded before a connection is closed.
    messages_left: Option<usize>,
    is_dropped: bool,
}

/// Dropping it closes all connections.
#[derive(Debug)]
pub struct PostgresProxy {
    url: String,
    state: watch::Sender<ProxyState>,
}

impl PostgresProxy {
    /// Starts a proxy to the server and database of a URL.
    pub async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (head, rest) = url.split_once("127.0.0.1:").expect("an address");
        let (server, database) = rest.split_once('/').expect("a database");
        let url = format!("{head}127.0.0.1:{port}/{database}");
        let server = format!("127.0.0.1:{server}");
        let (state, _) = watch::channel(ProxyState {
            is_disconnected: false,
            is_frozen: false,
            next_fault: None,
            disconnect_after_fault: false,
            messages_left: None,
            is_dropped: false,
        });
        let shared = state.clone();
        tokio::spawn(async move {
            let accept = async {
                while let Ok((client, _)) = listener.accept().await {
                    if !shared.borrow().is_disconnected {
                        tokio::spawn(serve(client, server.clone(), shared.clone()));
                    }
                }
            };
            let mut changes = shared.subscribe();
            tokio::select! {
                () = accept => {}
                _ = changes.wait_for(|state| state.is_dropped) => {}
            }
        });
        Self { url, state }
    }

    /// The URL of the same database through the proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Injects a fault at the next COMMIT. With `stay_disconnected` no client can connect afterwards.
    pub fn inject_fault(&self, fault: CommitFault, stay_disconnected: bool) {
        self.state.send_modify(|state| {
            (state.next_fault, state.disconnect_after_fault) = (Some(fault), stay_disconnected);
        });
    }

    /// Waits until the fault has happened.
    pub async fn wait_for_fault(&self) {
        let mut state = self.state.subscribe();
        state.wait_for(|state| state.next_fault.is_none()).await.expect("the proxy runs");
    }

    /// Forwards this many more messages of clients, then closes the connection that sent the last one, before its response, or the
    /// next one if it is none. Clients must be idle. The messages with which a client connects do not count.
    pub fn disconnect_after(&self, messages: usize) {
        self.state.send_modify(|state| state.messages_left = Some(messages));
    }

    /// Whether so many messages came that the connection was closed. If not, it no longer happens.
    #[must_use]
    pub fn take_disconnected(&self) -> bool {
        let mut was_disconnected = false;
        self.state.send_modify(|state| was_disconnected = state.messages_left.take().is_none());
        was_disconnected
    }

    /// Closes all connections and accepts no new ones.
    pub fn disconnect(&self) {
        self.state.send_modify(|state| state.is_disconnected = true);
    }

    /// Accepts connections again.
    pub fn reconnect(&self) {
        self.state.send_modify(|state| state.is_disconnected = false);
    }

    /// Forwards nothing any more, as if the server hung or the network swallowed everything.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.is_frozen = true);
    }

    /// Forwards again, also what was sent meanwhile.
    pub fn thaw(&self) {
        self.state.send_modify(|state| state.is_frozen = false);
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.state.send_modify(|state| (state.is_disconnected, state.is_dropped) = (true, true));
    }
}

/// Serves one connection until either side closes it or a fault does.
async fn serve(client: TcpStream, server: String, state: watch::Sender<ProxyState>) {
    let mut changes = state.subscribe();
    tokio::select! {
        // Errors close the connection like an end of file.
        _ = forward(client, &server, &state) => {}
        _ = changes.wait_for(|state| state.is_disconnected) => {}
    }
}

async fn forward(mut client: TcpStream, server: &str, state: &watch::Sender<ProxyState>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut from_server) = (vec![0; BUFFER_SIZE], vec![0; BUFFER_SIZE]);
    let (mut unsent, mut is_connected) = (Vec::new(), false);
    let mut changes = state.subscribe();
    loop {
        // The sender lives as long as this connection.
        let _ = changes.wait_for(|state| !state.is_frozen).await;
        tokio::select! {
            read = client.read(&mut from_client) => {
                let bytes = from_client.get(..read?).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(());
                }
                unsent.extend_from_slice(bytes);
                let (complete, is_last) = take_messages(&mut unsent, is_connected, state);
                let bytes = complete.as_slice();
                if is_last {
                    server.write_all(bytes).await?;
                    // Unread responses would reset the connection, and the server would ignore what it has not read yet. It has dealt
                    // with everything before the client notices.
                    server.shutdown().await?;
                    return server.read_to_end(&mut from_server).await.map(drop);
                }
                let is_commit = bytes.windows(COMMIT.len()).any(|window| window == COMMIT);
                let fault = state.borrow().next_fault.filter(|_| is_commit);
                if fault != Some(CommitFault::LoseRequest) {
                    server.write_all(bytes).await?;
                }
                if fault == Some(CommitFault::LoseResponse) && server.read(&mut from_server).await? == 0 {
                    return Ok(());
                }
                if fault.is_some() {
                    state.send_modify(|state| {
                        (state.next_fault, state.is_disconnected) = (None, state.disconnect_after_fault);
                    });
                    return Ok(());
                }
            }
            read = server.read(&mut from_server) => {
                let bytes = from_server.get(..read?).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(());
                }
                is_connected = is_connected || bytes.ends_with(READY);
                client.write_all(bytes).await?;
            }
        }
    }
}

/// Takes the messages that may be forwarded, all that came if their number is not limited. Returns also whether the connection is
/// closed after them.
fn take_messages(
    unsent: &mut Vec<u8>,
    is_connected: bool,
    state: &watch::Sender<ProxyState>,
) -> (Vec<u8>, bool) {
    let limit = state.borrow().messages_left.filter(|_| is_connected);
    let Some(mut left) = limit else { return (std::mem::take(unsent), false) };
    let (mut end, mut is_last) = (0, left == 0);
    while !is_last && let Some(length) = message_length(unsent.get(end..).unwrap_or_default()) {
        (end, left) = (end + length, left - 1);
        is_last = left == 0;
    }
    state.send_modify(|state| state.messages_left = Some(left).filter(|_| !is_last));
    (unsent.drain(..end).collect(), is_last)
}

/// The length of the first message, if it is complete.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(1..HEADER_BYTES)?.try_into().ok().map(u32::from_be_bytes)?;
    let length = usize::try_from(length).ok()?.saturating_add(1);
    (length <= bytes.len()).then_some(length)
}
