//! The typed client: one method per route, in a file per noun; this one has what all of them go through.
//!
//! A call that changes something names itself with a key of its own, so that it can be sent again when a connection broke
//! and still happens once. Redirects are not followed: what proves who calls goes to the server that was named, or nowhere.

mod audit;
mod locks;
mod rules;
mod tasks;
mod users;

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{COOKIE, IF_MATCH};
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub use audit::Export;
pub use locks::Acquired;
pub use users::SignedIn;

use crate::Error;
use crate::wire::Problem;

/// What stays readable in a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');
/// How long an answer may take beyond the time that it is held open.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an idle connection is kept: less than the server keeps it.
const IDLE: Duration = Duration::from_secs(30);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A client of one server; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    proof: Proof,
}

/// What proves who calls. It never shows up in anything that is printed.
#[derive(Clone)]
enum Proof {
    Nothing,
    Token(String),
    Session { cookie: String, csrf: String },
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Token(_) => "a token",
            Self::Session { .. } => "a session",
        })
    }
}

impl Client {
    /// A client for the server at `url`, such as `http://127.0.0.1:8300`, which acts with `token`.
    ///
    /// # Errors
    /// The platform has no usable HTTP client.
    pub fn new(url: &str, token: &str) -> Result<Self, Error> {
        Self::with(url, Proof::Token(token.to_owned()))
    }

    fn with(url: &str, proof: Proof) -> Result<Self, Error> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT).pool_idle_timeout(IDLE);
        let built = http.tcp_nodelay(true).redirect(reqwest::redirect::Policy::none()).build();
        let base = url.trim_end_matches('/').to_owned();
        let http = built.map_err(|error| Error::Unreachable { url: base.clone(), cause: cause(&error) })?;
        Ok(Self { http, base, proof })
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.base
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Error> {
        let (_, body) = self.send(self.with_query(self.call(Method::GET, path), query)).await?;
        self.read(&body)
    }

    /// A question that needs a body, or a command that names itself in it.
    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        let (_, body) = self.send(self.call(Method::POST, path).json(body)).await?;
        self.read(&body)
    }

    /// A command.
    async fn make<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        self.command(self.call(Method::POST, path).json(body)).await
    }

    /// A command that may be answered with nothing.
    async fn make_or_nothing<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        waits: Duration,
    ) -> Result<Option<T>, Error> {
        let call = self.call(Method::POST, path).timeout(PATIENCE + waits);
        let (status, body) = self.send_named(call.json(body)).await?;
        if status == 204 { Ok(None) } else { self.read(&body).map(Some) }
    }

    /// A command that needs no more than its path.
    async fn make_bare<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        // Longer than a server waits for a preview before it answers.
        self.command(self.call(Method::POST, path).timeout(3 * PATIENCE)).await
    }

    /// Changes something, if it still has this revision.
    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        revision: Option<u64>,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        // Without a key: whoever repeats it sends what it saw along.
        let (_, body) = self.send(if_match(self.call(method, path), revision).json(body)).await?;
        self.read(&body)
    }

    /// Removes something, if it still has this revision.
    async fn remove(&self, path: &str, revision: Option<u64>) -> Result<(), Error> {
        let call = if_match(self.call(Method::DELETE, path), revision);
        self.send(call).await.map(|_| ())
    }

    async fn command<T: DeserializeOwned>(&self, call: RequestBuilder) -> Result<T, Error> {
        let (_, body) = self.send_named(call).await?;
        self.read(&body)
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        let changes = method != Method::GET;
        let call = self.http.request(method, format!("{}/api/v1{path}", self.base)).timeout(PATIENCE);
        match &self.proof {
            Proof::Nothing => call,
            Proof::Token(token) => call.bearer_auth(token),
            Proof::Session { cookie, csrf } if changes => {
                call.header(COOKIE, cookie).header("X-CSRF-Token", csrf)
            }
            Proof::Session { cookie, .. } => call.header(COOKIE, cookie),
        }
    }

    fn with_query(&self, call: RequestBuilder, query: &[(&str, &str)]) -> RequestBuilder {
        if query.is_empty() { call } else { call.query(query) }
    }

    /// Sends a command under a key of its own. If the connection breaks on the way it is sent once more: the server knows the
    /// key, and answers what it answered.
    async fn send_named(&self, call: RequestBuilder) -> Result<(u16, Vec<u8>), Error> {
        let call = call.header("Idempotency-Key", Uuid::new_v4().to_string());
        let again = call.try_clone();
        match (self.fetch(call).await, again) {
            (Err(error), Some(again)) if broke(&error) => self.answer(self.fetch(again).await),
            (fetched, _) => self.answer(fetched),
        }
    }

    async fn send(&self, call: RequestBuilder) -> Result<(u16, Vec<u8>), Error> {
        self.answer(self.fetch(call).await)
    }

    async fn fetch(&self, call: RequestBuilder) -> Result<(u16, Vec<u8>), reqwest::Error> {
        let answer = call.send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.bytes().await?.to_vec()))
    }

    /// Opens an answer that is read in pieces.
    async fn open(&self, call: RequestBuilder) -> Result<Response, Error> {
        let answer = call.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let body = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        Err(self.refused(status, &body))
    }

    fn answer(&self, fetched: Result<(u16, Vec<u8>), reqwest::Error>) -> Result<(u16, Vec<u8>), Error> {
        match fetched {
            Ok((status, body)) if (200..300).contains(&status) => Ok((status, body)),
            Ok((status, body)) => Err(self.refused(status, &body)),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        Error::Unreachable { url: self.base.clone(), cause: cause(error) }
    }

    fn refused(&self, status: u16, body: &[u8]) -> Error {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) if !problem.code.is_empty() => Error::Problem(Box::new(problem)),
            _ => {
                let (url, cause) = (self.base.clone(), format!("status {status}"));
                Error::Foreign { url, status: Some(status), cause }
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| Error::Foreign {
            url: self.base.clone(),
            status: None,
            cause: error.to_string(),
        })
    }
}

fn if_match(call: RequestBuilder, revision: Option<u64>) -> RequestBuilder {
    match revision {
        Some(revision) => call.header(IF_MATCH, format!("\"{revision}\"")),
        None => call,
    }
}

/// Whether a connection was there and broke: it is worth trying once more, on a new one.
fn broke(error: &reqwest::Error) -> bool {
    !error.is_connect() && !error.is_timeout() && !error.is_builder() && !error.is_redirect()
}

fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The innermost reason: the outer ones repeat the address.
fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests;
