//! A server that answers as it is told, and remembers what it was asked.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// How it answers.
#[derive(Debug, Clone)]
pub(crate) enum How {
    /// With these bytes.
    Say(String),
    /// With a body that never ends.
    Endless,
    /// With a head, and then nothing.
    Head,
    /// Not at all, while the connection stays open.
    Never,
    /// Not at all: it hangs up.
    HangUp,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    /// What it was asked, as it came.
    pub(crate) asked: mpsc::UnboundedReceiver<String>,
    /// Bytes of endless bodies that were taken before somebody hung up.
    pub(crate) taken: mpsc::UnboundedReceiver<usize>,
}

pub(crate) fn ok(body: &str) -> How {
    How::Say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

pub(crate) fn status(line: &str) -> How {
    How::Say(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n"))
}

impl Server {
    pub(crate) async fn start(how: How) -> Self {
        Self::start_with(how, None).await
    }

    pub(crate) async fn start_with(how: How, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (asks, asked) = mpsc::unbounded_channel();
        let (takes, taken) = mpsc::unbounded_channel();
        let tls = tls.map(Arc::new);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                let (how, asks, takes, tls) = (how.clone(), asks.clone(), takes.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, how, asks, takes).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, how, asks, takes).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, asked, taken }
    }

    /// As it is listed.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A URL of it.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host())
    }

    /// The next thing that it was asked.
    pub(crate) async fn next(&mut self) -> String {
        self.asked.recv().await.expect("it runs")
    }

    pub(crate) fn was_asked(&mut self) -> bool {
        self.asked.try_recv().is_ok()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    how: How,
    asks: mpsc::UnboundedSender<String>,
    takes: mpsc::UnboundedSender<usize>,
) {
    let Some(request) = read(&mut stream).await else { return };
    asks.send(request).expect("somebody listens");
    match how {
        How::Say(answer) => {
            // Whoever asked may have gone.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        How::Endless => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n").await;
            let (part, mut taken) = ([b'x'; 65_536], 0);
            while let Ok(more) = stream.write(&part).await {
                taken += more;
            }
            takes.send(taken).expect("somebody listens");
        }
        How::Head => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
            let _ = stream.read(&mut [0]).await;
        }
        How::Never => {
            let _ = stream.read(&mut [0]).await;
        }
        How::HangUp => {}
    }
}

/// A whole request.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let (mut all, mut part) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let long = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= long.parse().expect("a number") {
                return Some(text);
            }
        }
        let read = stream.read(&mut part).await.ok().filter(|read| *read > 0)?;
        all.extend_from_slice(&part[..read]);
    }
}
