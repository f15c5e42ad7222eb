//! The typed client: one method per route.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::wire::{
    AcquireRequest, Agent, AgentRequest, Broken, Grants, Graph, HeartbeatRequest, HoldRequest, HoldResults,
    Lock, Page, Problem, Ticket, Verified, VerifyRequest,
};

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
    token: String,
}

/// What an acquisition gives.
#[derive(Debug, Clone, PartialEq)]
pub enum Acquired {
    /// Every lock is held.
    Granted(Grants),
    /// The request waits with a ticket.
    Ticket(Ticket),
}

impl Client {
    /// A client for the server at `url`, such as `http://127.0.0.1:8300`, which acts with `token`.
    ///
    /// # Errors
    /// The platform has no usable HTTP client.
    pub fn new(url: &str, token: &str) -> Result<Self, Error> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT).pool_idle_timeout(IDLE);
        let built = http.tcp_nodelay(true).build();
        let base = url.trim_end_matches('/').to_owned();
        let http = built.map_err(|error| Error::Unreachable { url: base.clone(), cause: cause(&error) })?;
        Ok(Self { http, base, token: token.to_owned() })
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Takes locks, or queues for them.
    ///
    /// # Errors
    /// They cannot be had.
    pub async fn acquire(&self, request: &AcquireRequest) -> Result<Acquired, Error> {
        let open = if request.queue { 0.0 } else { request.wait_seconds.unwrap_or(0.0) };
        let open = Duration::try_from_secs_f64(open).unwrap_or(Duration::ZERO);
        let call = self.call(Method::POST, "/locks/acquire").timeout(open + PATIENCE).json(request);
        let (status, body) = self.send(call).await?;
        if status == 202 {
            self.read(&body).map(Acquired::Ticket)
        } else {
            self.read(&body).map(Acquired::Granted)
        }
    }

    /// How a ticket stands.
    ///
    /// # Errors
    /// There is no such ticket, or it came to its end.
    pub async fn ticket(&self, ticket: &str) -> Result<Ticket, Error> {
        self.get(&format!("/locks/tickets/{}", segment(ticket)), &[]).await
    }

    /// Starts the leases of a ticket.
    ///
    /// # Errors
    /// It came to its end.
    pub async fn claim(&self, ticket: &str) -> Result<Ticket, Error> {
        self.post(&format!("/locks/tickets/{}/claim", segment(ticket)), &()).await
    }

    /// Gives a ticket up.
    ///
    /// # Errors
    /// There is no such ticket.
    pub async fn cancel(&self, ticket: &str) -> Result<(), Error> {
        self.send(self.call(Method::DELETE, &format!("/locks/tickets/{}", segment(ticket)))).await.map(|_| ())
    }

    /// Extends leases.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn heartbeat(&self, request: &HeartbeatRequest) -> Result<HoldResults, Error> {
        self.post("/locks/heartbeat", request).await
    }

    /// Gives locks up.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn release(&self, request: &HoldRequest) -> Result<HoldResults, Error> {
        self.post("/locks/release", request).await
    }

    /// From exclusive to shared.
    ///
    /// # Errors
    /// Some are lost; the problem has the results of all.
    pub async fn downgrade(&self, request: &HoldRequest) -> Result<HoldResults, Error> {
        self.post("/locks/downgrade", request).await
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// It is not a current holder's.
    pub async fn verify(&self, request: &VerifyRequest) -> Result<Verified, Error> {
        self.post("/locks/verify", request).await
    }

    /// Locks by name. Filters are `agent`, `resource_type`, `kind`, `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn locks(&self, filters: &[(&str, &str)]) -> Result<Page<Lock>, Error> {
        self.get("/locks", filters).await
    }

    /// One lock.
    ///
    /// # Errors
    /// Its name is not one.
    pub async fn lock(&self, lock: &str) -> Result<Lock, Error> {
        self.get(&format!("/locks/{}", segment(lock)), &[]).await
    }

    /// Takes a lock from its holders.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn break_lock(&self, lock: &str, reason: &str) -> Result<Broken, Error> {
        let call = self.call(Method::DELETE, &format!("/locks/{}", segment(lock)));
        let (_, body) = self.send(self.with_query(call, &[("reason", reason)])).await?;
        self.read(&body)
    }

    /// Who waits for whom.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn graph(&self) -> Result<Graph, Error> {
        self.get("/locks/graph", &[]).await
    }

    /// Registers an agent.
    ///
    /// # Errors
    /// Its id is taken.
    pub async fn register(&self, agent: &AgentRequest) -> Result<Agent, Error> {
        self.post("/agents", agent).await
    }

    /// Agents by id.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn agents(&self, filters: &[(&str, &str)]) -> Result<Page<Agent>, Error> {
        self.get("/agents", filters).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Error> {
        let (_, body) = self.send(self.with_query(self.call(Method::GET, path), query)).await?;
        self.read(&body)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        let (_, body) = self.send(self.call(Method::POST, path).json(body)).await?;
        self.read(&body)
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}/api/v1{path}", self.base))
            .bearer_auth(&self.token)
            .timeout(PATIENCE)
    }

    fn with_query(&self, call: RequestBuilder, query: &[(&str, &str)]) -> RequestBuilder {
        if query.is_empty() { call } else { call.query(query) }
    }

    async fn send(&self, call: RequestBuilder) -> Result<(u16, Vec<u8>), Error> {
        let unreachable =
            |error: reqwest::Error| Error::Unreachable { url: self.base.clone(), cause: cause(&error) };
        let answer = call.send().await.map_err(unreachable)?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(unreachable)?.to_vec();
        if (200..300).contains(&status) {
            return Ok((status, body));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if !problem.code.is_empty() => Err(Error::Problem(Box::new(problem))),
            _ => {
                let (url, cause) = (self.base.clone(), format!("status {status}"));
                Err(Error::Foreign { url, status: Some(status), cause })
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
