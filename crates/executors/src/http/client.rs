//! One HTTP/1.1 call to an address that the egress policy has checked. It follows no redirects, uses no proxy, does not reuse
//! connections, and reads a limited part of the response. Errors tell whether the request was sent.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use url::Position;

use crate::egress::PinnedUrl;

/// For each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RESPONSE_HEAD_BYTES: usize = 65_536;
/// The rest of a longer response is not read.
pub const MAX_RESPONSE_BODY_BYTES: usize = 65_536;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The root certificates of the operating system. Certificates that cannot be read are not trusted.
static SYSTEM_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

#[derive(Debug, Clone, Default)]
pub struct HttpClient {
    /// None trusts the root certificates of the operating system.
    roots: Option<Arc<RootCertStore>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: StatusCode,
    /// The beginning of the body.
    pub body: Vec<u8>,
    /// Why the body is incomplete, if it is.
    pub truncation: Option<String>,
}

type Result<T, E = CallError> = std::result::Result<T, E>;

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("{0}")]
    NotSent(String),
    /// The request was sent, at least in part, and its effects are unknown.
    #[error("{0}")]
    Sent(String),
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn not_sent(reason: impl ToString) -> CallError {
    CallError::NotSent(reason.to_string())
}

/// An open connection on which nothing was sent yet.
#[derive(Debug)]
pub struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Drives the connection; aborted when dropped.
    driver: JoinSet<Result<(), hyper::Error>>,
    pinned: PinnedUrl,
}

/// A response whose head was received and whose body was not read yet.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    body: Incoming,
    _driver: JoinSet<Result<(), hyper::Error>>,
}

impl HttpClient {
    /// Trusts only these root certificates instead of those of the operating system.
    #[must_use]
    pub fn with_roots(roots: RootCertStore) -> Self {
        Self { roots: Some(Arc::new(roots)) }
    }

    fn tls_connector(&self) -> Result<TlsConnector> {
        let roots = self.roots.clone().unwrap_or_else(|| Arc::clone(&SYSTEM_ROOTS));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(not_sent)?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config).into())
    }

    /// Sends one POST request within a time limit. Once the head of the response has arrived, a slow body is only cut.
    pub async fn post(
        &self,
        pinned: PinnedUrl,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<HttpResponse> {
        let mut map = HeaderMap::new();
        for (name, text) in headers {
            let invalid = |_| not_sent(format!("the value of the header {name} is invalid"));
            let mut value = HeaderValue::from_str(text).map_err(invalid)?;
            value.set_sensitive(true);
            map.insert(HeaderName::from_static(name), value);
        }
        let deadline = Instant::now() + timeout;
        let late = || format!("no answer within {} seconds", timeout.as_secs_f32());
        let connection = timeout_at(deadline, self.connect(pinned)).await.map_err(|_| not_sent(late()))??;
        let sending = connection.send(Method::POST, map, body.into());
        let head = timeout_at(deadline, sending).await.map_err(|_| CallError::Sent(late()))??;
        Ok(head.read_body_until(deadline).await)
    }

    /// Connects to the first reachable address of the URL.
    pub async fn connect(&self, pinned: PinnedUrl) -> Result<HttpConnection> {
        let stream = connect_tcp(&pinned).await?;
        let stream: Box<dyn Stream> = match (pinned.url.scheme(), pinned.url.host_str()) {
            ("https", Some(host)) => {
                let failed = |reason: String| not_sent(format!("TLS handshake failed: {reason}"));
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
                let handshake = self.tls_connector()?.connect(name, stream);
                let encrypted = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, handshake).await;
                let encrypted = encrypted.map_err(|_| failed("timed out".to_owned()))?;
                Box::new(encrypted.map_err(|error| failed(error.to_string()))?)
            }
            _ => Box::new(stream),
        };
        let mut builder = Builder::new();
        builder.max_buf_size(MAX_RESPONSE_HEAD_BYTES);
        let connected = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(not_sent)?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(HttpConnection { sender, driver, pinned })
    }
}

async fn connect_tcp(pinned: &PinnedUrl) -> Result<TcpStream> {
    let mut reason = "no address".to_owned();
    for address in &pinned.addresses {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => reason = format!("{address}: {error}"),
            Err(_) => reason = format!("{address}: no answer within {} seconds", CONNECT_TIMEOUT.as_secs()),
        }
    }
    Err(not_sent(format!("cannot connect: {reason}")))
}

impl HttpConnection {
    /// Sends one request, and waits for the head of the response.
    pub async fn send(mut self, method: Method, headers: HeaderMap, body: Bytes) -> Result<ResponseHead> {
        let url = &self.pinned.url;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let target = &url[Position::BeforePath..Position::AfterQuery];
        *request.uri_mut() = target.parse().map_err(|_| not_sent("the path of the URL is invalid"))?;
        *request.headers_mut() = headers;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(host).map_err(|_| not_sent("the host of the URL is invalid"))?;
        request.headers_mut().insert(HOST, host);
        self.sender.ready().await.map_err(not_sent)?;
        let response = self.sender.try_send_request(request).await.map_err(|mut error| {
            let is_sent = error.take_message().is_none();
            let reason = with_cause(&error.into_error());
            if is_sent { CallError::Sent(reason) } else { not_sent(reason) }
        })?;
        let (parts, body) = response.into_parts();
        Ok(ResponseHead { status: parts.status, body, _driver: self.driver })
    }
}

impl ResponseHead {
    /// Reads the body up to the limit.
    pub async fn read_body(self) -> HttpResponse {
        self.read_body_until(Instant::now() + BODY_TIMEOUT).await
    }

    async fn read_body_until(mut self, deadline: Instant) -> HttpResponse {
        let mut body = Vec::new();
        let read = async {
            while let Some(frame) = self.body.frame().await {
                let frame =
                    frame.map_err(|error| format!("the response broke off: {}", with_cause(&error)))?;
                let data = frame.into_data().unwrap_or_default();
                let remaining = MAX_RESPONSE_BODY_BYTES.saturating_sub(body.len());
                body.extend_from_slice(data.get(..remaining.min(data.len())).unwrap_or_default());
                if data.len() > remaining {
                    return Err(format!(
                        "only the first {MAX_RESPONSE_BODY_BYTES} bytes of the response were read"
                    ));
                }
            }
            Ok(())
        };
        let timed_out = |_| Err("the response did not end in time".to_owned());
        let truncation = timeout_at(deadline, read).await.unwrap_or_else(timed_out).err();
        HttpResponse { status: self.status, body, truncation }
    }
}

/// The error of hyper often names the cause only in its source.
fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
