//! Error responses: RFC 9457 bodies with a stable `code` for programs. Internal details are logged, never sent.

mod app_errors;
mod lock_errors;

use std::collections::BTreeMap;
use std::fmt;

use ade_client::wire::{self, FieldError};
use ade_domain::InvalidField;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    extensions: BTreeMap<String, Value>,
    headers: Vec<(&'static str, String)>,
}

pub(crate) type ApiResult<T = Response> = Result<T, Problem>;
pub(crate) type JsonResult<T> = ApiResult<Json<T>>;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), extensions: BTreeMap::new(), headers: Vec::new() }
    }

    /// Adds an extension member to the body.
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Self {
        // The values are our own plain types, which always serialize.
        self.extensions.insert(name.to_owned(), serde_json::to_value(value).unwrap_or(Value::Null));
        self
    }

    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        self.with("retry_after", seconds).header("retry-after", seconds.to_string())
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn to_wire(&self) -> wire::Problem {
        wire::Problem {
            kind: "about:blank".to_owned(),
            title: self.status.canonical_reason().unwrap_or_default().to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            code: self.code.to_owned(),
            extensions: self.extensions.clone(),
        }
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether a retry may succeed, because something is unavailable at the moment.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn forbidden(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, detail)
    }

    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    /// Invalid parts of the request, each with its place.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [error] => format!("{} {}", error.pointer, error.detail).trim_start().to_owned(),
            errors => format!("the request has {} invalid fields; see errors", errors.len()),
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "INVALID_REQUEST", detail).with("errors", errors)
    }

    /// One invalid part: a JSON pointer into the body, `?name` for a query parameter, or the name of a header.
    pub(crate) fn invalid_at(pointer: &str, detail: impl fmt::Display) -> Self {
        Self::invalid(vec![FieldError { pointer: pointer.to_owned(), detail: detail.to_string() }])
    }

    pub(crate) fn unauthenticated(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail)
    }

    /// A trusted proxy sent headers that name different clients.
    pub(crate) fn proxy_headers() -> Self {
        let detail = "Forwarded and X-Forwarded-For name different clients; let the proxy set one and remove the other";
        Self::new(StatusCode::BAD_REQUEST, "PROXY_HEADERS", detail)
    }

    pub(crate) fn stopping() -> Self {
        let detail = "the server is shutting down; retry on another server or after the restart";
        Self::unavailable("STOPPING", detail).retry_after(1)
    }

    /// Another request with the same idempotency key is running, on this server or another.
    pub(crate) fn in_flight() -> Self {
        let detail =
            "a request with this Idempotency-Key is still running; retry shortly to get its response";
        Self::conflict("IN_FLIGHT", detail).retry_after(1)
    }
}

/// RFC 6901.
pub(super) fn json_pointer(names: impl IntoIterator<Item: AsRef<str>>) -> String {
    let name = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
    names.into_iter().map(|one| name(one.as_ref())).collect()
}

impl From<Vec<InvalidField>> for Problem {
    fn from(faults: Vec<InvalidField>) -> Self {
        let error = |fault: InvalidField| FieldError {
            pointer: json_pointer(fault.path.names()),
            detail: fault.detail,
        };
        Self::invalid(faults.into_iter().map(error).collect())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_wire())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
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
