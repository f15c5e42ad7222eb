//! Bodies, parameters and names of requests, or a problem that says where they are wrong.

use std::time::Duration;

use ade_client::wire::FieldError;
use ade_domain::lock::{Holder, LockName, RequestKey};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};

/// How long a body may take to arrive.
const READ: Duration = Duration::from_secs(30);

/// A JSON body.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let reading = tokio::time::timeout(READ, Bytes::from_request(request, app)).await;
        let slow =
            || Problem::new(StatusCode::REQUEST_TIMEOUT, "BODY_TOO_SLOW", "the body did not arrive in time");
        let bytes = reading.map_err(|_| slow())?.map_err(|rejection| match rejection {
            BytesRejection::FailedToBufferBody(failed)
                if failed.status() == StatusCode::PAYLOAD_TOO_LARGE =>
            {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", "a body may have at most 1 MiB")
            }
            other => Problem::new(StatusCode::BAD_REQUEST, "BAD_BODY", other.body_text()),
        })?;
        // What is made of fields could be written as a list of their values, too; nobody means that.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(Problem::invalid_at("", "the body must be an object"));
        }
        let mut reader = serde_json::Deserializer::from_slice(&bytes);
        let body = serde_path_to_error::deserialize(&mut reader).map_err(|error| wrong(&error))?;
        reader.end().map_err(|error| malformed(&error))?;
        Ok(Self(body))
    }
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "MALFORMED_JSON", format!("the body is not JSON: {error}"))
}

fn wrong(error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    use serde_path_to_error::Segment;
    let inner = error.inner();
    // A number beyond every range is well-formed JSON; everything else that is not data is not.
    if inner.classify() != Category::Data && !inner.to_string().starts_with("number out of range") {
        return malformed(inner);
    }
    let mut pointer = String::new();
    for segment in error.path().iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => {
                pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1")));
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    let detail = inner.to_string();
    let detail = detail.split(" at line ").next().unwrap_or_default();
    Problem::invalid(vec![FieldError { pointer, detail: detail.to_owned() }])
}

/// Parameters after the question mark.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, app).await;
        query.map(|Query(params)| Self(params)).map_err(|error| {
            let text = error.body_text();
            let detail = text.split_once(": ").map_or(text.as_str(), |(_, detail)| detail);
            Problem::invalid_at("?", detail)
        })
    }
}

/// The one variable part of a path.
#[derive(Debug)]
pub(crate) struct Segment(pub(crate) String);

impl FromRequestParts<App> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        path.map(|Path(segment)| Self(segment))
            .map_err(|error| Problem::invalid_at("path", error.body_text()))
    }
}

/// The lock that a path names.
#[derive(Debug)]
pub(crate) struct LockPath(pub(crate) LockName);

impl FromRequestParts<App> for LockPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Segment(name) = Segment::from_request_parts(parts, app).await?;
        name.parse().map(Self).map_err(|error| Problem::invalid_at("path", error.to_string()))
    }
}

/// The ticket that a path names.
#[derive(Debug)]
pub(crate) struct TicketPath(pub(crate) RequestKey);

impl FromRequestParts<App> for TicketPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        // What cannot be a ticket is not found like any other that is not there.
        let segment = Segment::from_request_parts(parts, app).await.ok();
        let ticket = segment.and_then(|Segment(ticket)| ticket.parse().ok());
        let none = || Problem::new(StatusCode::NOT_FOUND, "TICKET_NOT_FOUND", "there is no such ticket");
        ticket.map(Self).ok_or_else(none)
    }
}

/// For whom the caller acts: itself, or the agent that it names.
pub(crate) fn holder(caller: &Caller, agent_id: Option<&str>, holder_id: Option<&str>) -> Answer<Holder> {
    Holder::new(agent_id.unwrap_or(&caller.id), holder_id).map_err(|error| {
        let pointer = if error.to_string().starts_with("holder_id") { "/holder_id" } else { "/agent_id" };
        Problem::invalid_at(pointer, error.to_string())
    })
}
