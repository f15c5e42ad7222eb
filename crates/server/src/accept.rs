//! Connections: bounded in number, patient with slow callers only so long, ended politely.

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

use crate::caller::Peer;

/// Connections that are served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a caller may take to send the head of a request, or be idle between two.
const HEAD: Duration = Duration::from_secs(75);
/// How long requests may take to finish once the server stops.
const FAREWELL: Duration = Duration::from_secs(10);
/// The pause after the system had no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Serves connections until `end`; then accepts nothing more and finishes what is open.
pub(crate) async fn serve(listener: &TcpListener, router: Router, end: impl Future<Output = ()>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    tokio::pin!(end);
    loop {
        let next = async {
            // The semaphore is never closed: without a permit nothing would be accepted.
            let permit = room.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut end => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = graceful.watch(connection(stream, peer, router.clone()));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    drop(permit);
                });
            }
            Err(error) if is_of_the_caller(&error) => {
                tracing::debug!(%error, "a caller was gone before it was accepted");
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection; is the limit of open files too low?");
                tokio::time::sleep(NO_ROOM).await;
            }
        }
    }
    if tokio::time::timeout(FAREWELL, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time");
    }
}

/// One connection, every request of which knows from where it comes.
fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
) -> impl GracefulConnection<Error = hyper::Error> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot switch off delays of a connection");
    }
    let from_peer = move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request
    };
    let service = TowerToHyperService::new(MapRequest::new(router, from_peer));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
}

fn is_of_the_caller(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
