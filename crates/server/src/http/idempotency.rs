//! Idempotent POST requests: a repeated `Idempotency-Key` with the same body gets the stored response and changes nothing.
//!
//! The use case stores its outcome in the transaction of its change, so there is never one without the other. Every response,
//! the first and a repeated one, is rendered from the outcome.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ade_app::{IdempotentRequest, Outcome, TaskView};
use ade_domain::Moment;
use ade_domain::task::Digest;
use ade_store::DatabaseError;
use ade_store::database::StoredTask;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::json;
use super::problem::{ApiResult, Problem};
use crate::api::{
    AppState,
    convert::{self, RenderedOutcome},
};
use crate::auth::Caller;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY_LEN: usize = 255;

/// Owner and idempotency key of each request that this server is processing.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlightKeys(Arc<Mutex<HashSet<(String, String)>>>);

/// Removes its key from the set when dropped.
#[derive(Debug)]
struct InFlightGuard {
    keys: InFlightKeys,
    key: (String, String),
}

impl InFlightKeys {
    fn insert(&self, owner: &str, key: &str) -> Option<InFlightGuard> {
        let key = (owner.to_owned(), key.to_owned());
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key.clone()).then(|| InFlightGuard { keys: self.clone(), key })
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.keys.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Caller and body of a POST request. If its idempotency key has a stored response, that response is sent and the handler
/// is not called.
#[derive(Debug)]
pub(crate) struct IdempotentPost<T, const STATUS: u16 = 200> {
    pub(crate) caller: Caller,
    pub(crate) body: T,
    received_at: Moment,
    _in_flight: Option<InFlightGuard>,
}

impl<T, const STATUS: u16> IdempotentPost<T, STATUS> {
    pub(crate) fn respond(&self, outcome: Outcome) -> Response {
        response(STATUS, outcome)
    }

    /// Responds with a task as the caller sees it.
    pub(crate) fn respond_task(&self, task: &StoredTask) -> Response {
        self.respond(Outcome::Task(self.view(task)))
    }

    /// The task as the caller sees it; the same as in the stored outcome.
    pub(crate) fn view(&self, task: &StoredTask) -> Box<TaskView> {
        TaskView::new(task, &self.caller, self.received_at)
    }
}

/// A response with the revision of its object as ETag.
fn response(status: u16, outcome: Outcome) -> Response {
    if let Outcome::AwaitsConfirmation { change_id, expires_at } = outcome {
        return Problem::from(ade_app::Error::AwaitsConfirmation { change_id, expires_at }).into_response();
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    if status == StatusCode::NO_CONTENT {
        return status.into_response();
    }
    let RenderedOutcome { json, revision } = convert::outcome(outcome);
    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let mut response = (status, content_type, json).into_response();
    if let Some(tag) = revision.and_then(etag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

pub(crate) fn etag(revision: u64) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("\"{revision}\"")).ok()
}

impl<T: DeserializeOwned, const STATUS: u16> FromRequest<AppState> for IdempotentPost<T, STATUS> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Response> {
        match Self::extract(request, app).await {
            Ok(Ok(post)) => Ok(post),
            Ok(Err(stored_response)) => Err(stored_response),
            Err(problem) => Err(problem.into_response()),
        }
    }
}

impl<T: DeserializeOwned, const STATUS: u16> IdempotentPost<T, STATUS> {
    /// The request, or the stored response of an earlier one with the same key.
    async fn extract(request: Request, app: &AppState) -> ApiResult<Result<Self, Response>> {
        let (mut parts, body) = request.into_parts();
        let mut caller = Caller::from_request_parts(&mut parts, app).await?;
        let key = idempotency_key(parts.headers.get(IDEMPOTENCY_KEY))?;
        let received_at = app.tasks.now();
        let route = format!("{} {}", parts.method, parts.uri.path());
        let bytes = json::read_body(Request::from_parts(parts, body), app).await?;
        let Some(key) = key else {
            let body = json::parse_or_empty(&bytes)?;
            return Ok(Ok(Self { caller, body, received_at, _in_flight: None }));
        };
        let owner = key_owner(&caller);
        let digest =
            Digest::of_bytes(&[route.as_bytes(), b"\n", &without_password(&bytes)].concat()).to_string();
        let in_flight = app.in_flight.insert(&owner, &key);
        if let Some(stored) = app.database.stored_response(&owner, &key).await? {
            if stored.request_digest != digest {
                let detail = "this Idempotency-Key was already used for a different request; use a new key for a new request";
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_KEY_REUSED", detail));
            }
            let outcome = serde_json::from_value(stored.outcome);
            let outcome = outcome.map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
            let mut response = response(STATUS, outcome);
            response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
            return Ok(Err(response));
        }
        if in_flight.is_none() {
            return Err(Problem::in_flight());
        }
        caller.0.idempotent_request =
            Some(IdempotentRequest { owner, key, request_digest: digest, received_at });
        let body = json::parse_or_empty(&bytes)?;
        Ok(Ok(Self { caller, body, received_at, _in_flight: in_flight }))
    }
}

/// The digest of a request is stored. A fast hash of a password could be reversed by guessing, so the password is left out.
fn without_password(bytes: &Bytes) -> Bytes {
    match serde_json::from_slice::<serde_json::Map<String, Value>>(bytes) {
        Ok(mut body) if body.contains_key("password") => {
            body.remove("password");
            Value::Object(body).to_string().into()
        }
        _ => bytes.clone(),
    }
}

fn idempotency_key(value: Option<&HeaderValue>) -> ApiResult<Option<String>> {
    let Some(value) = value else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > MAX_KEY_LEN {
        let detail = format!("must be 1 to {MAX_KEY_LEN} printable characters");
        return Err(Problem::invalid_at("Idempotency-Key", detail));
    }
    Ok(Some(text.to_owned()))
}

/// Two callers may use the same key without affecting each other.
fn key_owner(caller: &Caller) -> String {
    match (&caller.agent_id, &caller.user) {
        (Some(agent), _) => format!("agent:{agent}"),
        (None, Some(user)) => format!("user:{}", user.user_id),
        (None, None) => "bootstrap".to_owned(),
    }
}
