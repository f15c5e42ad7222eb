//! A test server that replies as configured and records the requests.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Bytes(String),
    EndlessBody,
    /// A head and the beginning of a body. The connection stays open.
    IncompleteBody,
    /// Nothing, while the connection stays open.
    None,
    /// Closes the connection without a response.
    Close,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    requests: mpsc::UnboundedReceiver<String>,
    /// How many bytes of each endless body were sent before the client closed the connection.
    pub(crate) sent_bytes: mpsc::UnboundedReceiver<usize>,
}

pub(crate) fn ok(body: &str) -> Reply {
    Reply::Bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

pub(crate) fn status(line: &str) -> Reply {
    Reply::Bytes(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n"))
}

impl Server {
    pub(crate) async fn start(reply: Reply) -> Self {
        Self::start_with(reply, None).await
    }

    pub(crate) async fn start_with(reply: Reply, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (request_sender, requests) = mpsc::unbounded_channel();
        let (sent_sender, sent_bytes) = mpsc::unbounded_channel();
        let tls = tls.map(Arc::new);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                let (reply, tls) = (reply.clone(), tls.clone());
                let (requests, sent_bytes) = (request_sender.clone(), sent_sender.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, reply, requests, sent_bytes).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, reply, requests, sent_bytes).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, requests, sent_bytes }
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host())
    }

    /// The next request, verbatim.
    pub(crate) async fn next_request(&mut self) -> String {
        self.requests.recv().await.expect("the server runs")
    }

    pub(crate) fn was_called(&mut self) -> bool {
        self.requests.try_recv().is_ok()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: Reply,
    requests: mpsc::UnboundedSender<String>,
    sent_bytes: mpsc::UnboundedSender<usize>,
) {
    let Some(request) = read_request(&mut stream).await else { return };
    requests.send(request).expect("the receiver exists");
    match reply {
        Reply::Bytes(bytes) => {
            // The client may have closed the connection.
            let _ = stream.write_all(bytes.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        Reply::EndlessBody => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n").await;
            let (chunk, mut sent) = ([b'x'; 65_536], 0);
            while let Ok(written) = stream.write(&chunk).await {
                sent += written;
            }
            sent_bytes.send(sent).expect("the receiver exists");
        }
        Reply::IncompleteBody => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
            let _ = stream.read(&mut [0]).await;
        }
        Reply::None => {
            let _ = stream.read(&mut [0]).await;
        }
        Reply::Close => {}
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let (mut received, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&received).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().expect("a number") {
                return Some(text);
            }
        }
        let read = stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        received.extend_from_slice(&buffer[..read]);
    }
}
