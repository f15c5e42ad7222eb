//! A web server with the pages of one test.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What ADE's own pages allow.
pub(super) const STRICT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; require-trusted-types-for 'script'; trusted-types ade";

/// It stops with its test.
pub(super) struct Site {
    port: u16,
}

impl Site {
    /// Serves files by path: `.js` as scripts, all others as pages, with a content security policy.
    pub(super) async fn start(policy: &'static str, files: &[(&'static str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let files: HashMap<&str, String> =
            files.iter().map(|(path, content)| (*path, (*content).to_owned())).collect();
        let files = Arc::new(files);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let files = Arc::clone(&files);
                // The browser may have gone away.
                tokio::spawn(async move { drop(serve(stream, policy, &files).await) });
            }
        });
        Self { port }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn url_at(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }
}

async fn serve(stream: TcpStream, policy: &str, files: &HashMap<&str, String>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut request, mut line) = (String::new(), String::new());
    while stream.read_line(&mut line).await? > 2 {
        if request.is_empty() {
            request.clone_from(&line);
        }
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let kind = if path.ends_with(".js") { "text/javascript" } else { "text/html" };
    let (status, content) = match files.get(path) {
        Some(content) => ("200 OK", content.as_str()),
        None if path == "/favicon.ico" => ("204 No Content", ""),
        None => ("404 Not Found", ""),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         Content-Security-Policy: {policy}\r\nConnection: close\r\n\r\n{content}",
        content.len()
    );
    stream.get_mut().write_all(response.as_bytes()).await
}
