//! The HTTP API as a page sees it: requests within the process, without a connection. Only code of the process can add the visitor to a
//! request; a change carries the CSRF token of the form instead, and is authenticated by the API.

use std::convert::Infallible;

use ade_client::wire;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use super::form::Form;
use crate::auth::{CookieRenewal, PageVisitor};
use crate::http::client_address::ClientAddress;
use crate::http::connections::Connection;
use crate::http::problem::Problem;

/// Bytes of a response of the API.
const MAX_RESPONSE_BYTES: usize = 32 << 20;
const CSRF_TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The routes of the API, without the middleware of connections.
#[derive(Debug, Clone)]
pub(crate) struct Api(Router);

impl Api {
    pub(crate) const fn new(router: Router) -> Self {
        Self(router)
    }
}

/// A request to the API from a page.
#[derive(Debug, Clone)]
pub(super) struct ApiClient {
    api: Api,
    /// Who sends it: cookie or token, and the browser.
    headers: HeaderMap,
    client: Option<ClientAddress>,
    connection: Option<Connection>,
    renewal: Option<CookieRenewal>,
    visitor: Option<PageVisitor>,
}

impl ApiClient {
    pub(super) fn new(parts: &Parts, api: Api, visitor: Option<PageVisitor>) -> Self {
        let mut headers = HeaderMap::new();
        for name in [header::AUTHORIZATION, header::COOKIE, header::USER_AGENT, header::HOST] {
            for value in parts.headers.get_all(&name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self {
            api,
            headers,
            client: parts.extensions.get().copied(),
            connection: parts.extensions.get().cloned(),
            renewal: parts.extensions.get().cloned(),
            visitor,
        }
    }

    /// The response to a request. `path` begins with `/` and is below `/api/v1`.
    pub(super) async fn send(&self, method: Method, path: &str, body: Option<(&Form, Vec<u8>)>) -> Response {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.headers_mut() = self.headers.clone();
        match format!("/api/v1{path}").parse::<Uri>() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return Problem::not_found("NOT_FOUND", "there is no such page").into_response(),
        }
        if let Some((form, json)) = body {
            let csrf = HeaderValue::from_str(form.get("csrf")).ok();
            let key = form.idempotency_key().and_then(|key| HeaderValue::from_str(&key).ok());
            let headers = request.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.extend(csrf.map(|value| (CSRF_TOKEN, value)));
            headers.extend(key.map(|value| (IDEMPOTENCY_KEY, value)));
            if let Some(revision) =
                form.optional("revision").and_then(|text| HeaderValue::from_str(&format!("\"{text}\"")).ok())
            {
                headers.insert(header::IF_MATCH, revision);
            }
            *request.body_mut() = json.into();
        }
        let extensions = request.extensions_mut();
        self.client.map(|client| extensions.insert(client));
        self.connection.clone().map(|connection| extensions.insert(connection));
        self.renewal.clone().map(|renewal| extensions.insert(renewal));
        self.visitor.clone().map(|visitor| extensions.insert(visitor));
        let response: Result<Response, Infallible> = self.api.0.clone().oneshot(request).await;
        response.unwrap_or_else(|never| match never {})
    }

    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(&Form, Vec<u8>)>,
    ) -> Result<T, wire::Problem> {
        parse(self.send(method, path, body).await).await
    }
}

/// The body of a response, or the problem that it is.
pub(super) async fn parse<T: DeserializeOwned>(response: Response) -> Result<T, wire::Problem> {
    let status = response.status();
    let unreadable = |detail: String| {
        tracing::error!(%status, detail, "a page could not read an answer of the API");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "UNREADABLE",
            "the answer could not be read; see the log of the server",
        )
        .to_wire()
    };
    let bytes = to_bytes(response.into_body(), MAX_RESPONSE_BYTES).await;
    let bytes = bytes.map_err(|error| unreadable(error.to_string()))?;
    if status.is_client_error() || status.is_server_error() || status == StatusCode::ACCEPTED {
        // A change that waits for a second administrator is answered as a problem with the status 202.
        if let Ok(problem) = serde_json::from_slice::<wire::Problem>(&bytes)
            && !problem.code.is_empty()
        {
            return Err(problem);
        }
    }
    let json: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
    serde_json::from_slice(json).map_err(|error| unreadable(error.to_string()))
}
