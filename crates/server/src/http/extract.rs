//! Extractors: JSON bodies, query parameters and path parameters, or a problem that names the invalid part.

use std::error::Error;

use ade_domain::lock::{LockName, RequestKey};
use axum::extract::{self, FromRequest, FromRequestParts, MatchedPath, Request};
use axum::http::Extensions;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::json;
use super::problem::{ApiResult, Problem};
use crate::api::AppState;

/// Not every database can store NUL, so it is rejected everywhere.
pub(super) const NUL_NOT_ALLOWED: &str = "must not contain the character NUL";

/// Lock names may contain any character.
fn is_lock_route(extensions: &Extensions) -> bool {
    route(extensions).starts_with("/api/v1/locks")
}

/// Agents that are known only by their locks can have any name, too.
fn allows_any_name(extensions: &Extensions) -> bool {
    is_lock_route(extensions) || route(extensions).starts_with("/api/v1/agents/")
}

fn route(extensions: &Extensions) -> &str {
    extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str)
}

/// The body of a request that takes no fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> ApiResult<Self> {
        let is_lock_route = is_lock_route(request.extensions());
        let bytes = json::read_body(request, app).await?;
        (if is_lock_route { json::parse_any(&bytes) } else { json::parse(&bytes) }).map(Self)
    }
}

/// The parameters of a query.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        if !allows_any_name(&parts.extensions) && parts.uri.query().is_some_and(|query| query.contains("%00"))
        {
            return Err(Problem::invalid_at("?", NUL_NOT_ALLOWED));
        }
        let query = extract::Query::<T>::from_request_parts(parts, app).await;
        query.map(|extract::Query(params)| Self(params)).map_err(|rejection| {
            // The source is the error of the parameter itself, without the prefix of the rejection.
            let detail = rejection.source().map_or_else(|| rejection.body_text(), ToString::to_string);
            Problem::invalid_at("?", detail)
        })
    }
}

/// The only parameter of a path: an id or a name.
#[derive(Debug)]
pub(crate) struct Param(pub(crate) String);

impl FromRequestParts<AppState> for Param {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        let path = extract::Path::<String>::from_request_parts(parts, app).await;
        let extract::Path(param) = path.map_err(|error| Problem::invalid_at("path", error.body_text()))?;
        if !allows_any_name(&parts.extensions) && param.contains('\0') {
            return Err(Problem::invalid_at("path", NUL_NOT_ALLOWED));
        }
        Ok(Self(param))
    }
}

/// Several parameters of a path, in order.
#[derive(Debug)]
pub(crate) struct PathParams<const N: usize>(pub(crate) [String; N]);

impl<const N: usize> FromRequestParts<AppState> for PathParams<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        let path = extract::Path::<Vec<String>>::from_request_parts(parts, app).await;
        let extract::Path(params) = path.map_err(|error| Problem::invalid_at("path", error.body_text()))?;
        if params.iter().any(|param| param.contains('\0')) {
            return Err(Problem::invalid_at("path", NUL_NOT_ALLOWED));
        }
        params
            .try_into()
            .map(Self)
            .map_err(|_| Problem::invalid_at("path", "has the wrong number of segments"))
    }
}

/// A lock, and the spelling of its name in the request.
#[derive(Debug)]
pub(crate) struct LockPath(pub(crate) LockName, pub(crate) String);

impl FromRequestParts<AppState> for LockPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        let Param(name) = Param::from_request_parts(parts, app).await?;
        let lock = name.parse().map_err(|error| Problem::invalid_at("path", error))?;
        Ok(Self(lock, name))
    }
}

#[derive(Debug)]
pub(crate) struct TicketPath(pub(crate) RequestKey);

impl FromRequestParts<AppState> for TicketPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        // A malformed ticket id is answered like an unknown one.
        let param = Param::from_request_parts(parts, app).await.ok();
        let ticket = param.and_then(|Param(ticket)| ticket.parse().ok());
        ticket.map(Self).ok_or_else(Problem::ticket_not_found)
    }
}
