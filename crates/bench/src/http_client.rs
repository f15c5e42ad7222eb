//! The HTTP client of the load generator: keep-alive connections with as little work as possible. Responses stay bytes.

use ade_client::wire::DecisionRequest;
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

/// Characters of a response body shown in an error.
const MAX_ERROR_BODY: usize = 300;

/// The server to send load to, with a token.
#[derive(Debug, Clone)]
pub(super) struct Target {
    authority: String,
    host: HeaderValue,
    bearer: HeaderValue,
}

#[derive(Debug)]
pub(super) struct Connection {
    target: Target,
    sender: SendRequest<Full<Bytes>>,
}

#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

impl Target {
    pub(super) fn new(url: &str, token: &str) -> Result<Self, BenchError> {
        let invalid = || {
            BenchError::new(
                ErrorKind::Input,
                format!("cannot measure {url}: only plain HTTP with a port is supported"),
            )
            .hint("use a URL such as http://127.0.0.1:8300")
        };
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let authority = uri.authority().filter(|authority| authority.port().is_some()).ok_or_else(invalid)?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid());
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid())?;
        Ok(Self { authority: authority.to_string(), host, bearer: bearer(token)? })
    }

    /// The same server with the same token for the Rust client.
    pub(super) fn client(&self) -> Result<ade_client::Client, BenchError> {
        let bearer = self.bearer.to_str().unwrap_or_default();
        let token = bearer.strip_prefix("Bearer ").unwrap_or_default();
        let client = ade_client::Client::new(&format!("http://{}", self.authority), token);
        client.map_err(|error| BenchError::new(ErrorKind::Unavailable, error.to_string()))
    }

    pub(super) fn with_token(&self, token: &str) -> Result<Self, BenchError> {
        Ok(Self { bearer: bearer(token)?, ..self.clone() })
    }

    pub(super) async fn connect(&self) -> Result<Connection, BenchError> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let (sender, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // The next request on the connection reports why it closed.
        tokio::spawn(async move { drop(driver.await) });
        Ok(Connection { target: self.clone(), sender })
    }

    pub(super) async fn connect_many(&self, count: usize) -> Result<Vec<Connection>, BenchError> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(self.connect().await?);
        }
        Ok(connections)
    }
}

impl Connection {
    pub(super) async fn get(&mut self, path: &str) -> Result<Response, BenchError> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Response, BenchError> {
        self.send(Method::POST, path, body.into()).await
    }

    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response, BenchError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|error| failed(&error))?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.host.clone());
        headers.insert(AUTHORIZATION, self.target.bearer.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.sender.ready().await.map_err(|error| failed(&error))?;
        let response = self.sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        Ok(Response { status, body })
    }
}

impl Response {
    /// Fails unless the response has this status.
    pub(super) fn expect(self, status: u16) -> Result<Self, BenchError> {
        if self.status == status {
            return Ok(self);
        }
        let body: String = String::from_utf8_lossy(&self.body).chars().take(MAX_ERROR_BODY).collect();
        let message = format!("the server responded with {} instead of {status}: {body}", self.status);
        Err(BenchError::new(ErrorKind::Unavailable, message))
    }

    /// Parses the body; too slow for use while time is measured.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, BenchError> {
        serde_json::from_slice(&self.body).map_err(|error| failed(&error))
    }

    /// The first text field with this name, found without parsing.
    pub(super) fn find_text(&self, field: &str) -> Option<&str> {
        let body = std::str::from_utf8(&self.body).ok()?;
        let (_, rest) = body.split_once(&format!("\"{field}\":\""))?;
        rest.split_once('"').map(|(text, _)| text)
    }

    /// The first fencing token, found without parsing.
    pub(super) fn find_fencing_token(&self) -> Result<u64, BenchError> {
        const FIELD: &[u8] = b"\"fencing_token\":";
        let found = self.body.windows(FIELD.len()).position(|window| window == FIELD);
        let digits = found.and_then(|at| self.body.get(at + FIELD.len()..)).unwrap_or_default();
        let digits = digits.iter().map_while(|byte| byte.is_ascii_digit().then(|| u64::from(byte - b'0')));
        let token = digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(digit));
        if token > 0 { Ok(token) } else { Err(failed(&"a response has no fencing token")) }
    }
}

/// The body of an approval, as somebody sends it who has seen the task. No task of a benchmark is of level CRITICAL.
pub(super) fn approval_body(digest: String, scope_digest: Option<String>) -> Result<Bytes, BenchError> {
    let (reason, digest) = (Some("measured".to_owned()), Some(digest));
    to_json(&DecisionRequest { reason, digest, scope_digest, confirm: None })
}

pub(super) fn to_json(value: &impl Serialize) -> Result<Bytes, BenchError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| failed(&error))
}

fn bearer(token: &str) -> Result<HeaderValue, BenchError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        BenchError::new(ErrorKind::Input, "the token has characters that HTTP headers do not allow")
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

fn failed(cause: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("the benchmark failed: {cause}"))
}
