//! Failures as they are told: RFC 9457 bodies with a code that programs go by. What is internal is logged, not told.

mod reviews;

use std::collections::BTreeMap;

use ade_app::agents::AgentError;
use ade_app::locks::LockError;
use ade_client::wire::{self, FieldError};
use ade_domain::Invalid;
use ade_domain::Moment;
use ade_domain::lock::saga::Failure;
use ade_domain::lock::{Cycle, End, LockName, LockRefusal};
use ade_store::CoordinationError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::api::convert;

/// A failure, ready to be told.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    facts: BTreeMap<String, Value>,
    retry_after_seconds: Option<u64>,
    headers: Vec<(&'static str, String)>,
}

/// A result of a handler.
pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            facts: BTreeMap::new(),
            retry_after_seconds: None,
            headers: Vec::new(),
        }
    }

    pub(crate) fn fact(mut self, name: &str, value: impl Serialize) -> Self {
        // What is given here is plain data of our own, which always is JSON.
        self.facts.insert(name.to_owned(), serde_json::to_value(value).unwrap_or(Value::Null));
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self.fact("retry_after", seconds)
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Status and body, to be kept.
    pub(crate) fn parts(self) -> (u16, Value) {
        let status = self.status.as_u16();
        (status, serde_json::to_value(self.body()).unwrap_or(Value::Null))
    }

    fn body(&self) -> wire::Problem {
        wire::Problem {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or_default().to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            code: self.code.to_owned(),
            facts: self.facts.clone(),
        }
    }

    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    /// The body or the parameters are not what they should be.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [one] => format!("{} {}", one.pointer, one.detail).trim_start().to_owned(),
            several => format!("{} parts of the request are wrong", several.len()),
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "INVALID_REQUEST", detail).fact("errors", errors)
    }

    /// The same for one part.
    pub(crate) fn invalid_at(pointer: &str, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { pointer: pointer.to_owned(), detail: detail.into() }])
    }

    pub(crate) fn lock_lost(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "LOCK_LOST", detail)
    }

    pub(crate) fn stopping() -> Self {
        let detail = "the server is stopping; try again, on another server or after its restart";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "STOPPING", detail).retry_after(1)
    }

    /// Why locks were not granted, at a moment.
    pub(crate) fn of_lock(error: LockError, now: Moment) -> Self {
        match error {
            LockError::Failed { failure, now: view } => {
                let problem = Self::of_failure(failure, now);
                match view {
                    None => problem,
                    Some(view) => {
                        let lock = convert::lock(&view);
                        problem.fact("holders", lock.holders).fact("queue_length", lock.queue_length)
                    }
                }
            }
            LockError::RateLimited { retry_at } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", "the agent asks for locks too often")
                    .retry_after(seconds_until(retry_at, now))
            }
            LockError::RequestReused => {
                let detail = "this request_id was used with another body; use a new one for a new request";
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "REQUEST_ID_REUSED", detail)
            }
            LockError::NoTicket => {
                Self::new(StatusCode::NOT_FOUND, "TICKET_NOT_FOUND", LockError::NoTicket.to_string())
            }
            LockError::TooManyAgents => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TOO_MANY_AGENTS",
                LockError::TooManyAgents.to_string(),
            ),
            LockError::Unavailable(error) => error.into(),
        }
    }

    fn of_failure(failure: Failure, now: Moment) -> Self {
        match failure {
            Failure::Refused(lock, refusal) => Self::of_refusal(&lock, refusal, now),
            Failure::TimedOut(lock) => {
                Self::held(format!("{lock} was not free within the time that was waited")).fact("lock", lock)
            }
            Failure::Cancelled => Self::new(StatusCode::CONFLICT, "CANCELLED", "the request was cancelled"),
            Failure::Over(lock, end) => Self::of_end(&lock, end),
        }
    }

    fn of_refusal(lock: &LockName, refusal: LockRefusal, now: Moment) -> Self {
        match refusal {
            LockRefusal::Held { holders, queue_length } => {
                let who = holders.first().map_or_else(|| "waiters".to_owned(), |by| by.holder.to_string());
                let holders: Vec<wire::LockHolder> = holders.iter().map(convert::holder).collect();
                Self::held(format!("{lock} is held by {who}; wait with wait_seconds, or queue for it"))
                    .fact("lock", lock)
                    .fact("holders", holders)
                    .fact("queue_length", queue_length)
            }
            LockRefusal::QueueFull { queue_length } => {
                let detail = format!("{queue_length} requests wait for {lock} already; try again later");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "QUEUE_FULL", detail)
                    .fact("lock", lock)
                    .fact("queue_length", queue_length)
                    .retry_after(1)
            }
            LockRefusal::Contention { retry_at } => {
                let detail = format!("too many want {lock}; try again later");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "CONTENTION", detail)
                    .fact("lock", lock)
                    .retry_after(seconds_until(retry_at, now))
            }
            LockRefusal::Unconfirmed { acks, wanted } => {
                let detail = format!(
                    "only {acks} of {wanted} replicas had the grant of {lock} in time, so it was given back; try again when \
                     they are there, or lower lock.min_replica_acks"
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", detail)
                    .fact("lock", lock)
                    .retry_after(1)
            }
        }
    }

    fn of_end(lock: &LockName, end: End) -> Self {
        match end {
            End::Deadlock(cycle) => Self::deadlock(lock, &cycle),
            End::Superseded => {
                let detail = format!(
                    "a newer request of the same holder took this one's place in the queue of {lock}; give every \
                     activity a holder_id of its own"
                );
                Self::new(StatusCode::CONFLICT, "SUPERSEDED", detail).fact("lock", lock)
            }
            End::Cancelled | End::HungUp => {
                Self::new(StatusCode::CONFLICT, "CANCELLED", "the request was cancelled").fact("lock", lock)
            }
            End::AgentOffline => {
                let detail =
                    format!("the agent was not heard of for 30 seconds, so its request for {lock} was ended");
                Self::new(StatusCode::CONFLICT, "CANCELLED", detail).fact("lock", lock)
            }
            end => {
                let why = end.word();
                Self::lock_lost(format!("the grant of {lock} is gone ({why}); start a new request"))
                    .fact("lock", lock)
                    .fact("why", why)
            }
        }
    }

    fn deadlock(lock: &LockName, cycle: &Cycle) -> Self {
        let detail = format!(
            "{} holders would have waited for each other for ever, and this one gave way: its wait and all its locks are \
             gone, {lock} among them; take them again after a random pause",
            cycle.len()
        );
        let edges: Vec<wire::CycleEdge> = cycle.iter().map(convert::cycle_edge).collect();
        Self::new(StatusCode::LOCKED, "DEADLOCK_DETECTED", detail).fact("lock", lock).fact("cycle", edges)
    }

    fn held(detail: String) -> Self {
        Self::new(StatusCode::LOCKED, "LOCK_HELD", detail)
    }
}

fn seconds_until(moment: Moment, now: Moment) -> u64 {
    moment.ms_since(now).div_ceil(1000).max(1)
}

impl From<CoordinationError> for Problem {
    fn from(error: CoordinationError) -> Self {
        tracing::error!(%error, "coordination failed");
        let detail =
            "locks cannot be served now; what was asked may have happened: repeat it with its request_id";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", detail).retry_after(1)
    }
}

impl From<Vec<Invalid>> for Problem {
    fn from(faults: Vec<Invalid>) -> Self {
        let error = |fault: Invalid| FieldError { pointer: fault.pointer, detail: fault.detail };
        Self::invalid(faults.into_iter().map(error).collect())
    }
}

impl From<AgentError> for Problem {
    fn from(error: AgentError) -> Self {
        let detail = error.to_string();
        match error {
            AgentError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, "AGENT_NOT_FOUND", detail),
            AgentError::Taken(_) => Self::new(StatusCode::CONFLICT, "AGENT_EXISTS", detail),
            AgentError::Busy(_) => Self::new(StatusCode::CONFLICT, "AGENT_BUSY", detail),
            AgentError::Refused(error) => error.into(),
            AgentError::Unavailable(error) => error.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
