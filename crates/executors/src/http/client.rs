//! One HTTP/1.1 call to an address that the egress policy has checked. It follows no redirects, uses no proxy, does not reuse
//! connections, and reads a limited part of the response. Errors tell whether the request was sent.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
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

/// An HTTP client. Clones share its TLS configuration.
#[derive(Debug, Clone, Default)]
pub struct HttpClient {
    tls_config: Arc<OnceLock<Arc<ClientConfig>>>,
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

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("{0}")]
    NotSent(String),
    /// The request was sent, at least in part, and its effects are unknown.
    #[error("{0}")]
    Sent(String),
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
        Self { tls_config: Arc::default(), roots: Some(Arc::new(roots)) }
    }

    fn tls_config(&self) -> Result<Arc<ClientConfig>, CallError> {
        if let Some(config) = self.tls_config.get() {
            return Ok(Arc::clone(config));
        }
        let roots = self.roots.clone().unwrap_or_else(|| {
            let mut roots = RootCertStore::empty();
            // Certificates that cannot be read are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Arc::new(roots)
        });
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| CallError::NotSent(error.to_string()))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::clone(self.tls_config.get_or_init(|| Arc::new(config))))
    }

    /// Connects to the first reachable address of the URL.
    pub async fn connect(&self, pinned: PinnedUrl) -> Result<HttpConnection, CallError> {
        let stream = connect_tcp(&pinned).await?;
        let stream: Box<dyn Stream> = match (pinned.url().scheme(), pinned.url().host_str()) {
            ("https", Some(host)) => {
                let failed = |reason: String| CallError::NotSent(format!("TLS handshake failed: {reason}"));
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
                let handshake = TlsConnector::from(self.tls_config()?).connect(name, stream);
                let encrypted = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, handshake).await;
                let encrypted = encrypted.map_err(|_| failed("timed out".to_owned()))?;
                Box::new(encrypted.map_err(|error| failed(error.to_string()))?)
            }
            _ => Box::new(stream),
        };
        let mut builder = Builder::new();
        builder.max_buf_size(MAX_RESPONSE_HEAD_BYTES);
        let connected = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(|error| CallError::NotSent(error.to_string()))?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(HttpConnection { sender, driver, pinned })
    }
}

async fn connect_tcp(pinned: &PinnedUrl) -> Result<TcpStream, CallError> {
    let mut reason = "no address".to_owned();
    for address in pinned.addresses() {
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => reason = format!("{address}: {error}"),
            Err(_) => reason = format!("{address}: no answer within {} seconds", CONNECT_TIMEOUT.as_secs()),
        }
    }
    Err(CallError::NotSent(format!("cannot connect: {reason}")))
}

impl HttpConnection {
    /// Sends one request, and waits for the head of the response.
    pub async fn send(
        mut self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ResponseHead, CallError> {
        let url = self.pinned.url();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let target = &url[Position::BeforePath..Position::AfterQuery];
        *request.uri_mut() =
            target.parse().map_err(|_| CallError::NotSent("the path of the URL is invalid".to_owned()))?;
        *request.headers_mut() = headers;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(host)
            .map_err(|_| CallError::NotSent("the host of the URL is invalid".to_owned()))?;
        request.headers_mut().insert(HOST, host);
        self.sender.ready().await.map_err(|error| CallError::NotSent(error.to_string()))?;
        let response = self.sender.try_send_request(request).await.map_err(|mut error| {
            let is_sent = error.take_message().is_none();
            let reason = with_cause(&error.into_error());
            if is_sent { CallError::Sent(reason) } else { CallError::NotSent(reason) }
        })?;
        let (parts, body) = response.into_parts();
        Ok(ResponseHead { status: parts.status, body, _driver: self.driver })
    }
}

impl ResponseHead {
    /// Reads the body up to the limit.
    pub async fn read_body(mut self) -> HttpResponse {
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
        let timed_out = |_| Err(format!("the response took longer than {} seconds", BODY_TIMEOUT.as_secs()));
        let truncation = tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or_else(timed_out).err();
        HttpResponse { status: self.status, body, truncation }
    }
}

/// The error of hyper often names the cause only in its source.
fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
