//! A proxy between a client and a server that cuts connections, and can refuse paths.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Long enough for the paths that it refuses.
const PEEKED_BYTES: usize = 64;

pub(super) struct CutProxy {
    address: SocketAddr,
    cuts: watch::Sender<u64>,
}

impl CutProxy {
    /// Connections whose first request is for one of these paths are closed.
    pub(super) async fn start(server: &str, refused: &'static [&'static str]) -> Self {
        let server: Arc<str> = server.trim_start_matches("http://").into();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let cuts = watch::Sender::new(0);
        let receiver = cuts.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut receiver) = (server.clone(), receiver.clone());
                receiver.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        () = forward(client, &server, refused) => {}
                        _ = receiver.changed() => {}
                    }
                });
            }
        });
        Self { address, cuts }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes all connections.
    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn forward(mut client: TcpStream, server: &str, refused: &[&str]) {
    let mut start = [0; PEEKED_BYTES];
    let Ok(length) = client.peek(&mut start).await else { return };
    let start = String::from_utf8_lossy(&start[..length]).into_owned();
    if refused.iter().any(|path| start.starts_with(&format!("GET {path}"))) {
        return;
    }
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
