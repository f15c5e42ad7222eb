//! Accepts connections: limits their number, times out slow clients, and shuts down gracefully.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::util::MapRequest;

use crate::auth::PeerAddress;

/// Further connections wait in the accept queue of the operating system.
const MAX_CONNECTIONS: usize = 16_384;
/// For the head of a request, and for the idle time between two requests.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after an error such as "too many open files".
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Serves connections until `shutdown` completes. Then accepts no more and finishes the open requests.
pub(crate) async fn serve(listener: &TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
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
                let connection = graceful.watch(connection(stream, peer, router.clone()));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "connection ended early");
                    }
                    drop(permit);
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
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("shutdown timeout: some requests did not finish");
    }
}

/// Serves one connection. The address of the peer is added to each request.
fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
) -> impl GracefulConnection<Error = hyper::Error> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let add_peer = move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(PeerAddress(peer));
        request
    };
    let service = TowerToHyperService::new(MapRequest::new(router, add_peer));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
