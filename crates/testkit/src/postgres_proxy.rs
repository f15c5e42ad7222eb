//! A TCP proxy to PostgreSQL that injects faults: it disconnects clients, or drops a COMMIT or its response.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const BUFFER_SIZE: usize = 65_536;
/// A COMMIT as a simple query on the wire.
const COMMIT: &[u8] = b"COMMIT\0";

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
    next_fault: Option<CommitFault>,
    /// Whether the proxy stays disconnected after the fault.
    disconnect_after_fault: bool,
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
            next_fault: None,
            disconnect_after_fault: false,
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

    /// Closes all connections and accepts no new ones.
    pub fn disconnect(&self) {
        self.state.send_modify(|state| state.is_disconnected = true);
    }

    /// Accepts connections again.
    pub fn reconnect(&self) {
        self.state.send_modify(|state| state.is_disconnected = false);
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
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let bytes = from_client.get(..read?).unwrap_or_default();
                if bytes.is_empty() {
                    return Ok(());
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
                client.write_all(bytes).await?;
            }
        }
    }
}
