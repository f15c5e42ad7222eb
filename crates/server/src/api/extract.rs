//! Bodies, parameters and names of requests, or a problem that says where they are wrong.

use std::time::Duration;

use ade_client::wire::FieldError;
use ade_domain::lock::{LockName, RequestKey};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use utoipa::IntoParams;
use uuid::Uuid;

use super::App;
use super::objects::Objects;
use crate::problem::{Answer, Problem};

/// How long a body may take to arrive.
const READ: Duration = Duration::from_secs(30);
/// How deep a body may be nested. A parser of JSON gives up at 128: what is taken here is stored inside something else, and
/// must be readable there, too.
const DEEPEST: usize = 64;
/// Not every record can store it, so none does.
const NUL: &str = "must not contain the character NUL";

/// Names of locks may have any characters.
fn is_of_locks(extensions: &Extensions) -> bool {
    let route = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    route.starts_with("/api/v1/locks")
}

/// So may those of agents who are known by their locks alone: they are looked for by any name.
fn any_name(extensions: &Extensions) -> bool {
    let route = extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    is_of_locks(extensions) || route.starts_with("/api/v1/agents/")
}

/// A JSON body.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let of_locks = is_of_locks(request.extensions());
        let bytes = read(request, app).await?;
        (if of_locks { parse_any(&bytes) } else { parse(&bytes) }).map(Self)
    }
}

/// The bytes of a body, if they come in time and are not too many.
pub(crate) async fn read(request: Request, app: &App) -> Answer<Bytes> {
    let reading = tokio::time::timeout(READ, Bytes::from_request(request, app)).await;
    let slow =
        || Problem::new(StatusCode::REQUEST_TIMEOUT, "BODY_TOO_SLOW", "the body did not arrive in time");
    reading.map_err(|_| slow())?.map_err(|rejection| match rejection {
        BytesRejection::FailedToBufferBody(failed) if failed.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", "a body may have at most 1 MiB")
        }
        other => Problem::new(StatusCode::BAD_REQUEST, "BAD_BODY", other.body_text()),
    })
}

/// What a body says that is stored.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    if looked_at(bytes).1 {
        return Err(Problem::invalid_at("", NUL));
    }
    parse_any(bytes)
}

fn parse_any<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    // Told without a place, which the whole body has none of.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Problem::invalid_at("", "the body must be an object"));
    }
    if looked_at(bytes).0 > DEEPEST {
        return Err(Problem::invalid_at("", format!("the body may be nested at most {DEEPEST} deep")));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let body = serde_path_to_error::deserialize(Objects(&mut reader)).map_err(|error| wrong(&error))?;
    reader.end().map_err(|error| malformed(&error))?;
    Ok(body)
}

/// How deep objects and lists are nested, if it is JSON, and whether the character NUL is said somewhere.
fn looked_at(bytes: &[u8]) -> (usize, bool) {
    let (mut now, mut deepest, mut quoted, mut escaped, mut nul) = (0_usize, 0, false, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'u' if escaped => {
                nul |= bytes.get(at + 1..at + 5) == Some(b"0000".as_slice());
                escaped = false;
            }
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' if !quoted => now = now.saturating_sub(1),
            _ => {}
        }
    }
    (deepest, nul)
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
        if !any_name(&parts.extensions) && parts.uri.query().is_some_and(|query| query.contains("%00")) {
            return Err(Problem::invalid_at("?", NUL));
        }
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
        let Path(segment) = path.map_err(|error| Problem::invalid_at("path", error.body_text()))?;
        if !any_name(&parts.extensions) && segment.contains('\0') {
            return Err(Problem::invalid_at("path", NUL));
        }
        Ok(Self(segment))
    }
}

/// Several variable parts of a path, in order.
#[derive(Debug)]
pub(crate) struct Segments<const N: usize>(pub(crate) [String; N]);

impl<const N: usize> FromRequestParts<App> for Segments<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::<Vec<String>>::from_request_parts(parts, app).await;
        let Path(segments) = path.map_err(|error| Problem::invalid_at("path", error.body_text()))?;
        if segments.iter().any(|segment| segment.contains('\0')) {
            return Err(Problem::invalid_at("path", NUL));
        }
        segments.try_into().map(Self).map_err(|_| Problem::invalid_at("path", "has other parts"))
    }
}

/// Which page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    pub(crate) cursor: Option<String>,
}

impl PageParams {
    /// Where a list begins, and how long it is.
    pub(crate) const fn of(limit: Option<usize>, cursor: Option<String>) -> Self {
        Self { limit, cursor }
    }

    pub(crate) fn limit(&self) -> Answer<usize> {
        match self.limit.unwrap_or(50) {
            limit @ 1..=200 => Ok(limit),
            _ => Err(Problem::invalid_at("?limit", "must be between 1 and 200")),
        }
    }

    /// As many as fit, and one more: whether there are more.
    pub(crate) fn one_more(&self) -> Answer<u32> {
        Ok(u32::try_from(self.limit()? + 1).unwrap_or(u32::MAX))
    }

    /// Where the last page ended, as an id; what is none leads nowhere.
    pub(crate) fn cursor_id(&self) -> Answer<Option<&str>> {
        let cursor = self.cursor.as_deref().filter(|cursor| !cursor.is_empty());
        match cursor {
            Some(cursor) if Uuid::parse_str(cursor).is_err() => {
                Err(Problem::invalid_at("?cursor", "is not a cursor of this list"))
            }
            cursor => Ok(cursor),
        }
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
