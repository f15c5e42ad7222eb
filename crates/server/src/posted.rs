//! Requests that make or change something on the record, and may be repeated: the same `Idempotency-Key` with the same body is
//! answered the same, and changes nothing the second time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ade_app::{IdempotentRequest, Outcome};
use ade_domain::Moment;
use ade_domain::task::Digest;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::App;
use crate::api::extract::{parse, read};
use crate::api::made;
use crate::caller::Caller;
use crate::problem::{Answer, Problem};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const LONGEST_KEY: usize = 255;

/// Keys of requests that are served just now.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashSet<(String, String)>>>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Flight {
    all: InFlight,
    own: (String, String),
}

impl InFlight {
    fn begin(&self, owner: &str, key: &str) -> Option<Flight> {
        let own = (owner.to_owned(), key.to_owned());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(own.clone()).then(|| Flight { all: self.clone(), own })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.own);
    }
}

/// A body and whoever sent it. An answer that was given before is given again instead of reaching the handler.
#[derive(Debug)]
pub(crate) struct Posted<T, const STATUS: u16 = 200> {
    pub(crate) caller: Caller,
    pub(crate) body: T,
    /// When it came.
    at: Moment,
    _flight: Option<Flight>,
}

impl<T, const STATUS: u16> Posted<T, STATUS> {
    /// The answer to what was made.
    pub(crate) fn answer(&self, made: Outcome<'_>) -> Response {
        let (status, body) = made::answer(STATUS, made, &self.caller, self.at);
        respond(status, &body)
    }
}

/// An answer with the revision of what it tells of, for `If-Match`.
fn respond(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    if status == StatusCode::NO_CONTENT {
        return status.into_response();
    }
    let mut response = (status, Json(body)).into_response();
    if let Some(tag) = body.get("revision").and_then(Value::as_u64).and_then(etag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// A revision as a tag.
pub(crate) fn etag(revision: u64) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("\"{revision}\"")).ok()
}

impl<T: DeserializeOwned, const STATUS: u16> FromRequest<App> for Posted<T, STATUS> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await.map_err(Problem::into_response)?;
        let key = key(parts.headers.get(KEY)).map_err(Problem::into_response)?;
        let at = app.reviews.now();
        let what = format!("{} {}", parts.method, parts.uri.path());
        let bytes = read(Request::from_parts(parts, body), app).await.map_err(Problem::into_response)?;
        let Some(key) = key else {
            return Ok(Self {
                caller,
                body: parse_or_nothing(&bytes).map_err(Problem::into_response)?,
                at,
                _flight: None,
            });
        };
        let owner = owner(&caller);
        let asked =
            Digest::of_bytes(&[what.as_bytes(), b"\n", &without_password(&bytes)].concat()).to_string();
        let flight = app.in_flight.begin(&owner, &key);
        if let Some(known) =
            app.record.answer(&owner, &key).await.map_err(|error| Problem::from(error).into_response())?
        {
            if known.asked != asked {
                let detail =
                    "this Idempotency-Key was used for something else; use a new one for a new request";
                let problem =
                    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_KEY_REUSED", detail);
                return Err(problem.into_response());
            }
            let mut response = respond(known.status, &known.body);
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            return Err(response);
        }
        if flight.is_none() {
            return Err(Problem::in_flight().into_response());
        }
        let reader = caller.0.clone();
        let render = Arc::new(move |made: Outcome<'_>| made::answer(STATUS, made, &reader, at));
        let mut caller = caller;
        caller.0.keep = Some(IdempotentRequest { owner, key, asked, render });
        let body = parse_or_nothing(&bytes).map_err(Problem::into_response)?;
        Ok(Self { caller, body, at, _flight: flight })
    }
}

/// What was asked, as it is remembered: a fast hash of a password would be as good as the password.
fn without_password(bytes: &Bytes) -> Bytes {
    match serde_json::from_slice::<serde_json::Map<String, Value>>(bytes) {
        Ok(mut body) if body.contains_key("password") => {
            body.remove("password");
            Value::Object(body).to_string().into()
        }
        _ => bytes.clone(),
    }
}

/// No body at all is one without fields.
fn parse_or_nothing<T: DeserializeOwned>(bytes: &Bytes) -> Answer<T> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}".as_slice() } else { bytes };
    parse(bytes)
}

fn key(value: Option<&HeaderValue>) -> Answer<Option<String>> {
    let Some(value) = value else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > LONGEST_KEY {
        let detail = format!("must be 1 to {LONGEST_KEY} printable characters");
        return Err(Problem::invalid_at("Idempotency-Key", detail));
    }
    Ok(Some(text.to_owned()))
}

/// Keys belong to whoever uses them.
fn owner(caller: &Caller) -> String {
    match (&caller.agent_id, &caller.user) {
        (Some(agent), _) => format!("agent:{agent}"),
        (None, Some(user)) => format!("user:{}", user.user_id),
        (None, None) => "bootstrap".to_owned(),
    }
}
