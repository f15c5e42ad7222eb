//! Accepts connections: limits their number, times out clients that do not send or do not read, and shuts down gracefully.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_user_timeout};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tower::util::MapRequest;

use super::client_address::TrustedProxies;
use super::connections::{Connection, Connections, MAX_CONNECTIONS};
use super::pending_writes::PendingWrites;

/// Bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// For the head of a request, and for the idle time between two requests.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// What the operating system takes over for a client that does not read. By default it is megabytes, of thousands of connections.
const SEND_BUFFER_BYTES: usize = 256 << 10;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after an error such as "too many open files".
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How connections are served.
#[derive(Debug, Clone)]
pub(crate) struct ServeOptions {
    pub(crate) connections: Connections,
    pub(crate) trusted_proxies: TrustedProxies,
    /// How long a connection with a request waits for its turn.
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
}

/// Serves connections until `shutdown` completes. Then accepts no more and finishes the open requests.
pub(crate) async fn serve(
    listener: &TcpListener,
    router: Router,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let (closing, is_closing) = watch::channel(false);
    tokio::pin!(shutdown);
    loop {
        let next = async {
            // Fails only for a closed semaphore, and this one is never closed.
            let permit = permits.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let is_proxy = options.trusted_proxies.contains(peer.ip().to_canonical());
                let Some(connection) = options.connections.admit(peer, is_proxy, Instant::now()) else {
                    tracing::debug!(%peer, "too many connections without authentication; closed one");
                    continue;
                };
                let connection = connection.with_permit(permit);
                let (options, router) = (options.clone(), router.clone());
                let mut is_closing = is_closing.clone();
                tokio::spawn(async move {
                    let served = async {
                        let ready = tokio::select! {
                            ready = wait_until_ready(&stream, &connection, &options) => ready,
                            _ = is_closing.wait_for(|is_closing| *is_closing) => false,
                        };
                        if ready {
                            let served =
                                serve_connection(stream, connection.clone(), router, &options, is_closing);
                            if let Err(error) = served.await {
                                tracing::debug!(%error, "connection ended early");
                            }
                        }
                    };
                    tokio::select! {
                        () = served => {}
                        () = connection.closed_to_make_room() => {
                            tracing::debug!(%peer, "closed a connection without authentication to make room");
                        }
                    }
                });
            }
            Err(error) if is_client_error(&error) => {
                tracing::debug!(%error, "client disconnected before it was accepted");
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection; check the limit of open files");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    closing.send_replace(true);
    // Every connection has a permit, also one that became a WebSocket. Fails only for a closed semaphore.
    let all = u32::try_from(MAX_CONNECTIONS).unwrap_or(u32::MAX);
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, permits.acquire_many(all)).await.is_err() {
        tracing::warn!("shutdown timeout: some requests did not finish");
    }
}

/// Waits for the first bytes, and for the turn of the connection. Until then nothing is buffered for it.
async fn wait_until_ready(stream: &TcpStream, connection: &Connection, options: &ServeOptions) -> bool {
    let has_bytes = tokio::time::timeout(HEADER_READ_TIMEOUT, stream.readable()).await;
    if !matches!(has_bytes, Ok(Ok(()))) {
        return false;
    }
    let turn = tokio::time::timeout(options.read_timeout, connection.wait_for_turn()).await;
    if turn.is_err() {
        tracing::debug!(peer = %connection.peer, "too many requests without authentication; closed a connection");
    }
    turn.is_ok()
}

/// Serves one connection, which is added to each request; once `is_closing`, it finishes the open one. What the connection is upgraded to
/// keeps its write timeout.
async fn serve_connection(
    stream: TcpStream,
    connection: Connection,
    router: Router,
    options: &ServeOptions,
    mut is_closing: watch::Receiver<bool>,
) -> hyper::Result<()> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    if let Err(error) = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES) {
        tracing::debug!(%error, "cannot set SO_SNDBUF");
    }
    // For what the operating system has taken over but the client does not accept.
    let user_timeout = u32::try_from(options.write_timeout.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = set_tcp_user_timeout(&stream, user_timeout) {
        tracing::debug!(%error, "cannot set TCP_USER_TIMEOUT");
    }
    let add_connection = move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        request
    };
    let service = TowerToHyperService::new(MapRequest::new(router, add_connection));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_header_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(PendingWrites::new(stream, options.write_timeout)), service)
        .with_upgrades();
    let mut served = pin!(served);
    tokio::select! {
        ended = served.as_mut() => return ended,
        _ = is_closing.wait_for(|is_closing| *is_closing) => {}
    }
    served.as_mut().graceful_shutdown();
    served.await
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
