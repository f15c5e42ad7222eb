//! One keep-alive connection of the load generator. It does as little as it can: answers are bytes.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::error::{BenchError, ErrorKind};

/// Where the load goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    authority: String,
    host: HeaderValue,
    bearer: HeaderValue,
}

#[derive(Debug)]
pub(super) struct Link {
    target: Target,
    sender: SendRequest<Full<Bytes>>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

impl Target {
    pub(super) fn new(url: &str, token: &str) -> Result<Self, BenchError> {
        let wrong = || {
            BenchError::new(ErrorKind::Input, format!("{url} is not an address that can be measured"))
                .hint("give plain HTTP with a port, such as http://127.0.0.1:8300")
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| authority.port().is_some()).ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong());
        }
        let header = |text: &str| HeaderValue::from_str(text).map_err(|_| wrong());
        let mut bearer = header(&format!("Bearer {token}"))?;
        bearer.set_sensitive(true);
        Ok(Self { authority: authority.to_string(), host: header(authority.as_str())?, bearer })
    }

    /// The same server with another token.
    pub(super) fn with_token(&self, token: &str) -> Result<Self, BenchError> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| broken(&error))?;
        bearer.set_sensitive(true);
        Ok(Self { bearer, ..self.clone() })
    }

    /// Opens a connection.
    pub(super) async fn link(&self) -> Result<Link, BenchError> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| broken(&error))?;
        stream.set_nodelay(true).map_err(|error| broken(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        // Whatever ends the connection is told to whoever sends the next request.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Link { target: self.clone(), sender })
    }

    /// Opens several.
    pub(super) async fn links(&self, count: usize) -> Result<Vec<Link>, BenchError> {
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            links.push(self.link().await?);
        }
        Ok(links)
    }
}

impl Link {
    pub(super) async fn get(&mut self, path: &str) -> Result<Answer, BenchError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Answer, BenchError> {
        self.call(Method::POST, path, body.into()).await
    }

    pub(super) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, BenchError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|error| broken(&error))?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.host.clone());
        headers.insert(AUTHORIZATION, self.target.bearer.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.sender.ready().await.map_err(|error| broken(&error))?;
        let answer = self.sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
        Ok(Answer { status, body })
    }
}

impl Answer {
    /// The answer, if it has the status that the measurement needs.
    pub(super) fn expect(self, status: u16) -> Result<Self, BenchError> {
        if self.status == status {
            return Ok(self);
        }
        let body: String = String::from_utf8_lossy(&self.body).chars().take(300).collect();
        let message = format!("the server answered {} where {status} was needed: {body}", self.status);
        Err(BenchError::new(ErrorKind::Unavailable, message))
    }

    /// The whole answer, where time is not measured.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, BenchError> {
        serde_json::from_slice(&self.body).map_err(|error| broken(&error))
    }

    /// The first text of a field, found without reading the rest.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        let body = std::str::from_utf8(&self.body).ok()?;
        let (_, rest) = body.split_once(&format!("\"{field}\":\""))?;
        rest.split_once('"').map(|(text, _)| text)
    }

    /// The first fencing token, found without reading the rest.
    pub(super) fn token(&self) -> Result<u64, BenchError> {
        const FIELD: &[u8] = b"\"fencing_token\":";
        let found = self.body.windows(FIELD.len()).position(|window| window == FIELD);
        let digits = found.and_then(|at| self.body.get(at + FIELD.len()..)).unwrap_or_default();
        let digits = digits.iter().map_while(|byte| byte.is_ascii_digit().then(|| u64::from(byte - b'0')));
        let token = digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(digit));
        if token > 0 { Ok(token) } else { Err(broken(&"an answer has no fencing token")) }
    }
}

/// A body for a request.
pub(super) fn body(value: &impl Serialize) -> Result<Bytes, BenchError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| broken(&error))
}

fn broken(cause: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("the measurement was cut short: {cause}"))
}
