//! One call over HTTP/1.1, to addresses that a guard has looked at. It follows no redirect, uses no proxy, keeps no connection,
//! and reads no more of the answer than it is asked to. Whoever makes it knows whether anything was sent.

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
use url::{Host, Position};

use crate::guard::Pinned;

/// How long connecting to one address may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long agreeing on a cipher may take.
const SHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long the rest of an answer is waited for once it has begun.
const REST_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of the head of an answer.
const LONGEST_HEAD: usize = 65_536;
/// Bytes of the rest of an answer that are read.
pub const LONGEST_BODY: usize = 65_536;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes calls; clones trust the same certificates.
#[derive(Clone, Default)]
pub struct Caller {
    tls: Arc<OnceLock<Arc<ClientConfig>>>,
    roots: Option<Arc<RootCertStore>>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub status: StatusCode,
    /// The beginning of what was said.
    pub body: Vec<u8>,
    /// Why that is not all, if it is not.
    pub cut: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent.
    #[error("{0}")]
    NotSent(String),
    /// Something was sent, and nobody knows what came of it.
    #[error("{0}")]
    Sent(String),
}

/// A connection over which nothing was sent yet.
pub struct Open {
    sender: SendRequest<Full<Bytes>>,
    /// Ends with it.
    connection: JoinSet<Result<(), hyper::Error>>,
    pinned: Pinned,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

/// An answer that has begun: how it went is known.
pub struct Begun {
    /// How it went.
    pub status: StatusCode,
    rest: Incoming,
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Caller {
    /// Trusts these certificates only, instead of those that this machine trusts.
    #[must_use]
    pub fn trusting(roots: RootCertStore) -> Self {
        Self { tls: Arc::default(), roots: Some(Arc::new(roots)) }
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, CallError> {
        if let Some(made) = self.tls.get() {
            return Ok(Arc::clone(made));
        }
        let roots = self.roots.clone().unwrap_or_else(|| {
            let mut roots = RootCertStore::empty();
            // What cannot be read is not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Arc::new(roots)
        });
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| CallError::NotSent(error.to_string()))?;
        let mut made = versions.with_root_certificates(roots).with_no_client_auth();
        made.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::clone(self.tls.get_or_init(|| Arc::new(made))))
    }

    /// Connects to the first of the addresses that answers.
    pub async fn open(&self, pinned: Pinned) -> Result<Open, CallError> {
        let stream = connect(&pinned).await?;
        let stream: Box<dyn Stream> = match (pinned.url().scheme(), pinned.url().host()) {
            ("https", Some(host)) => {
                let not_sent = |why: String| CallError::NotSent(format!("no encrypted connection: {why}"));
                let name = match host {
                    Host::Domain(name) => {
                        ServerName::try_from(name.to_owned()).map_err(|error| not_sent(error.to_string()))?
                    }
                    Host::Ipv4(address) => ServerName::IpAddress(std::net::IpAddr::from(address).into()),
                    Host::Ipv6(address) => ServerName::IpAddress(std::net::IpAddr::from(address).into()),
                };
                let shaken = TlsConnector::from(self.tls()?).connect(name, stream);
                let shaken = tokio::time::timeout(SHAKE_WITHIN, shaken).await;
                let shaken = shaken.map_err(|_| not_sent("no answer".to_owned()))?;
                Box::new(shaken.map_err(|error| not_sent(error.to_string()))?)
            }
            _ => Box::new(stream),
        };
        let mut builder = Builder::new();
        builder.max_buf_size(LONGEST_HEAD);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (sender, driver) = shaken.map_err(|error| CallError::NotSent(error.to_string()))?;
        let mut connection = JoinSet::new();
        connection.spawn(driver);
        Ok(Open { sender, connection, pinned })
    }
}

async fn connect(pinned: &Pinned) -> Result<TcpStream, CallError> {
    let mut why = "no address".to_owned();
    for address in pinned.addresses() {
        match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => why = format!("{address}: {error}"),
            Err(_) => why = format!("{address}: no answer within {} seconds", CONNECT_WITHIN.as_secs()),
        }
    }
    Err(CallError::NotSent(format!("cannot connect: {why}")))
}

impl Open {
    /// Sends one request, and waits until the answer begins.
    pub async fn send(mut self, method: Method, headers: HeaderMap, body: Bytes) -> Result<Begun, CallError> {
        let url = self.pinned.url();
        let not_sent = |why: String| CallError::NotSent(why);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let target = &url[Position::BeforePath..Position::AfterQuery];
        *request.uri_mut() = target.parse().map_err(|_| not_sent("its path cannot be sent".to_owned()))?;
        *request.headers_mut() = headers;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::from_str(host).map_err(|_| not_sent("its host cannot be sent".to_owned()))?;
        request.headers_mut().insert(HOST, host);
        self.sender.ready().await.map_err(|error| not_sent(error.to_string()))?;
        let answer = self.sender.try_send_request(request).await.map_err(|mut error| {
            let sent = error.take_message().is_none();
            let why = with_cause(&error.into_error());
            if sent { CallError::Sent(why) } else { CallError::NotSent(why) }
        })?;
        let (parts, rest) = answer.into_parts();
        Ok(Begun { status: parts.status, rest, _connection: self.connection })
    }
}

impl Begun {
    /// Reads the beginning of what is said, and no more.
    pub async fn read(mut self) -> Answer {
        let mut body = Vec::new();
        let all = async {
            while let Some(frame) = self.rest.frame().await {
                let frame = frame.map_err(|error| format!("the answer broke off: {}", with_cause(&error)))?;
                let data = frame.into_data().unwrap_or_default();
                let room = LONGEST_BODY.saturating_sub(body.len());
                body.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
                if data.len() > room {
                    return Err(format!("only the first {LONGEST_BODY} bytes of the answer were read"));
                }
            }
            Ok(())
        };
        let late = |_| Err(format!("the answer took longer than {} seconds", REST_WITHIN.as_secs()));
        let cut = tokio::time::timeout(REST_WITHIN, all).await.unwrap_or_else(late).err();
        Answer { status: self.status, body, cut }
    }
}

/// What went wrong is often said only by what was behind it.
fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
