//! The typed client: one method per route, in one file per noun.
//!
//! Methods fail with [`Error::Problem`](crate::Error::Problem) if the server refuses the request; the OpenAPI document lists
//! the codes of each route. POST requests that change something carry a new idempotency key, so that they can be repeated
//! after a broken connection without being applied twice. Redirects are not followed, so that credentials are never sent to
//! another server.

mod audit;
mod events;
mod locks;
mod rules;
mod tasks;
#[cfg(test)]
mod tests;
mod users;
mod webhooks;

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{COOKIE, IF_MATCH};
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub use audit::AuditExport;
pub use locks::AcquireOutcome;
pub use users::UserSession;

use crate::Error;
use crate::wire::{Problem, Readiness};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Defines client methods, one route each. Arguments replace `{}` in the path; `:` precedes the type of the body.
///
/// `list` takes filters, `send` is a POST that changes nothing or is idempotent by its body, `post` carries an idempotency
/// key, `post_at`, `patch` and `put` take the expected revision.
macro_rules! routes {
    ($($(#[$doc:meta])* $kind:ident $name:ident($($id:ident),*) $path:literal $(: $body:ty)? => $output:ty;)+) => {
        impl $crate::Client {
            $(routes! { @$kind [$(#[$doc])*] $name($($id),*) $path $($body)? => $output })+
        }
    };
    (@get [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str),*) -> $crate::http::Result<$output> {
            self.get(&$crate::http::path($path, &[$($id),*]), &[]).await
        }
    };
    (@list [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* filters: &[(&str, &str)]) -> $crate::http::Result<$crate::wire::Page<$output>> {
            self.get(&$crate::http::path($path, &[$($id),*]), filters).await
        }
    };
    (@send [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal $body:ty => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* body: &$body) -> $crate::http::Result<$output> {
            self.post(&$crate::http::path($path, &[$($id),*]), body).await
        }
    };
    (@post [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str),*) -> $crate::http::Result<$output> {
            self.post_empty(&$crate::http::path($path, &[$($id),*])).await
        }
    };
    (@post [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal $body:ty => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* body: &$body) -> $crate::http::Result<$output> {
            self.post_idempotent(&$crate::http::path($path, &[$($id),*]), body).await
        }
    };
    (@post_at [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal $body:ty => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* revision: Option<u64>, body: &$body) -> $crate::http::Result<$output> {
            self.post_at(&$crate::http::path($path, &[$($id),*]), revision, body).await
        }
    };
    (@patch [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal $body:ty => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* revision: Option<u64>, body: &$body) -> $crate::http::Result<$output> {
            self.update(reqwest::Method::PATCH, &$crate::http::path($path, &[$($id),*]), revision, body).await
        }
    };
    (@put [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal $body:ty => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str,)* revision: Option<u64>, body: &$body) -> $crate::http::Result<$output> {
            self.update(reqwest::Method::PUT, &$crate::http::path($path, &[$($id),*]), revision, body).await
        }
    };
    (@delete [$($doc:tt)*] $name:ident($($id:ident),*) $path:literal => $output:ty) => {
        $($doc)*
        pub async fn $name(&self, $($id: &str),*) -> $crate::http::Result<$output> {
            self.delete(&$crate::http::path($path, &[$($id),*])).await
        }
    };
}

use routes;

/// Characters that are percent-encoded in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Besides the time for which the server holds a response open.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Shorter than the idle timeout of the server, so that no request is sent on a connection that the server closes.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one server. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    credentials: Credentials,
}

/// Debug never prints the secrets.
#[derive(Clone)]
enum Credentials {
    None,
    Token(String),
    Session { cookie: String, csrf: String },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Token(_) => "token",
            Self::Session { .. } => "session",
        })
    }
}

impl Client {
    /// A client of the server at `url`, such as `http://127.0.0.1:8300`, that authenticates with `token`.
    ///
    /// # Errors
    /// The HTTP client cannot be initialized.
    pub fn new(url: &str, token: &str) -> Result<Self> {
        Self::with_credentials(url, Credentials::Token(token.to_owned()))
    }

    fn with_credentials(url: &str, credentials: Credentials) -> Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build();
        let base = url.trim_end_matches('/').to_owned();
        let http =
            http.map_err(|error| Error::Unreachable { url: base.clone(), cause: root_cause(&error) })?;
        Ok(Self { http, base, credentials })
    }

    /// Address of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Whether the server is ready, and why it is degraded if it is.
    pub async fn readiness(&self) -> Result<Readiness> {
        let request = self.http.get(format!("{}/readyz", self.base)).timeout(RESPONSE_TIMEOUT);
        let (_, body) = self.send(request).await?;
        self.parse(&body)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T> {
        let (_, body) = self.send(self.with_query(self.request(Method::GET, path), query)).await?;
        self.parse(&body)
    }

    /// For requests that change nothing, or are idempotent by their body.
    async fn post<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + Sync)) -> Result<T> {
        let (_, body) = self.send(self.request(Method::POST, path).json(body)).await?;
        self.parse(&body)
    }

    async fn post_idempotent<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let (_, body) = self.send_idempotent(self.request(Method::POST, path).json(body)).await?;
        self.parse(&body)
    }

    async fn post_at<T: DeserializeOwned>(
        &self,
        path: &str,
        revision: Option<u64>,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let request = if_match(self.request(Method::POST, path), revision);
        let (_, body) = self.send_idempotent(request.json(body)).await?;
        self.parse(&body)
    }

    /// `None` for 204 No Content. `wait` is the time for which the server may hold the response open.
    async fn post_optional<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        wait: Duration,
    ) -> Result<Option<T>> {
        let request = self.request(Method::POST, path).timeout(RESPONSE_TIMEOUT + wait);
        let (status, body) = self.send_idempotent(request.json(body)).await?;
        if status == 204 { Ok(None) } else { self.parse(&body).map(Some) }
    }

    /// An idempotent POST without body.
    async fn post_empty<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        // Longer than the server waits for a preview.
        let request = self.request(Method::POST, path).timeout(3 * RESPONSE_TIMEOUT);
        let (_, body) = self.send_idempotent(request).await?;
        self.parse(&body)
    }

    /// An update needs no idempotency key: its revision makes a repeated one fail.
    async fn update<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        revision: Option<u64>,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let (_, body) = self.send(if_match(self.request(method, path), revision).json(body)).await?;
        self.parse(&body)
    }

    async fn delete(&self, path: &str) -> Result<()> {
        let request = self.request(Method::DELETE, path);
        self.send(request).await.map(|_| ())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let is_mutation = method != Method::GET;
        let url = format!("{}/api/v1{path}", self.base);
        let request = self.http.request(method, url).timeout(RESPONSE_TIMEOUT);
        match &self.credentials {
            Credentials::None => request,
            Credentials::Token(token) => request.bearer_auth(token),
            Credentials::Session { cookie, csrf } if is_mutation => {
                request.header(COOKIE, cookie).header("X-CSRF-Token", csrf)
            }
            Credentials::Session { cookie, .. } => request.header(COOKIE, cookie),
        }
    }

    fn with_query(&self, request: RequestBuilder, query: &[(&str, &str)]) -> RequestBuilder {
        if query.is_empty() { request } else { request.query(query) }
    }

    /// Sends a request with a new idempotency key, and once more if the connection breaks: the server returns the stored
    /// response if it has applied the first one.
    async fn send_idempotent(&self, request: RequestBuilder) -> Result<(u16, Vec<u8>)> {
        let request = request.header("Idempotency-Key", Uuid::new_v4().to_string());
        let retry = request.try_clone();
        match (self.fetch(request).await, retry) {
            (Err(error), Some(retry)) if is_broken_connection(&error) => self.check(self.fetch(retry).await),
            (fetched, _) => self.check(fetched),
        }
    }

    /// Status and body of a successful response.
    async fn send(&self, request: RequestBuilder) -> Result<(u16, Vec<u8>)> {
        self.check(self.fetch(request).await)
    }

    async fn fetch(&self, request: RequestBuilder) -> Result<(u16, Vec<u8>), reqwest::Error> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        Ok((status, response.bytes().await?.to_vec()))
    }

    /// A successful response whose body is streamed.
    async fn open(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Err(self.error_response(status, &body))
    }

    fn check(&self, fetched: Result<(u16, Vec<u8>), reqwest::Error>) -> Result<(u16, Vec<u8>)> {
        match fetched {
            // Accepted, but not done: it waits for a second administrator.
            Ok((202, body)) if self.is_problem(&body, "AWAITS_CONFIRMATION") => {
                Err(self.error_response(202, &body))
            }
            Ok((status, body)) if (200..300).contains(&status) => Ok((status, body)),
            Ok((status, body)) => Err(self.error_response(status, &body)),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        Error::Unreachable { url: self.base.clone(), cause: root_cause(error) }
    }

    fn is_problem(&self, body: &[u8], code: &str) -> bool {
        serde_json::from_slice::<Problem>(body).is_ok_and(|problem| problem.code == code)
    }

    /// The error of a response that another protocol than HTTP got.
    pub(crate) fn refusal(&self, status: u16, body: &[u8]) -> Error {
        self.error_response(status, body)
    }

    fn error_response(&self, status: u16, body: &[u8]) -> Error {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) if !problem.code.is_empty() => Error::Problem(Box::new(problem)),
            _ => {
                let (url, cause) = (self.base.clone(), format!("status {status}"));
                Error::UnexpectedResponse { url, status: Some(status), cause }
            }
        }
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T> {
        serde_json::from_slice(body).map_err(|error| Error::UnexpectedResponse {
            url: self.base.clone(),
            status: None,
            cause: error.to_string(),
        })
    }
}

fn if_match(request: RequestBuilder, revision: Option<u64>) -> RequestBuilder {
    match revision {
        Some(revision) => request.header(IF_MATCH, format!("\"{revision}\"")),
        None => request,
    }
}

/// Whether an established connection broke, so that a retry on a new one makes sense.
fn is_broken_connection(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder() && !error.is_redirect()
}

/// Replaces each `{}` by an argument, percent-encoded.
fn path(template: &str, arguments: &[&str]) -> String {
    let replace = |path: String, argument: &&str| path.replacen("{}", &segment(argument), 1);
    arguments.iter().fold(template.to_owned(), replace)
}

fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The innermost error; the outer ones repeat the address.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
