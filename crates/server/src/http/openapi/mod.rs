//! The OpenAPI document and a page to browse it. Both work offline: the page loads nothing from other hosts.

pub(crate) mod responses;

use std::sync::OnceLock;

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{RefOr, Required};

use crate::api::{self, AppState};

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// POST operations whose fields are all optional: the body itself may be missing.
const OPTIONAL_BODY: [&str; 3] = ["cancel_task", "approve", "claim_task"];

#[derive(OpenApi)]
#[openapi(
    info(title = "ADE", description = "Approvals and locks for fleets of agents."),
    components(schemas(ade_client::wire::Problem, ade_client::wire::FieldError, ade_client::wire::CycleEdge)),
    security(("token" = [])),
    tags(
        (name = "tasks", description = "Create, submit, update, cancel and apply tasks."),
        (name = "approvals", description = "Approval requests and the decisions of reviewers."),
        (name = "rules", description = "Policies, delegations, registered resources, and simulations."),
        (name = "webhooks", description = "Where events are sent, and hooks through which others propose tasks."),
        (name = "people", description = "Users, sessions and tokens."),
        (name = "events", description = "What happened: pages, an event stream, and a WebSocket."),
        (name = "audit", description = "The audit log, its verification and export, and statistics."),
        (name = "settings", description = "Settings and feature flags shared by all servers."),
        (name = "locks", description = "Acquire, renew and release locks; inspect holders and waiters."),
        (name = "agents", description = "Registered agents, their heartbeats, tokens and inboxes."),
        (name = "keyspace", description = "The key catalogs: which keys exist in Redis, and what a key means."),
        (name = "operations", description = "Health, readiness, metrics, background jobs and archives."),
    )
)]
pub(crate) struct Document;

/// The OpenAPI document of the HTTP API.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = api::routes().into_openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().add_security_scheme("token", bearer);
    for item in document.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, patch, .. } = item;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            set_problem_content_type(operation);
            mark_optional_body(operation);
        }
    }
    document
}

fn mark_optional_body(operation: &mut Operation) {
    let is_optional = operation.operation_id.as_deref().is_some_and(|id| OPTIONAL_BODY.contains(&id));
    if let Some(RefOr::T(body)) = operation.request_body.as_mut().filter(|_| is_optional) {
        body.required = Some(Required::False);
    }
}

fn set_problem_content_type(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if status.as_str() >= "400"
            && let Some(body) = response.content.shift_remove("application/json")
        {
            response.content.insert("application/problem+json".to_owned(), body);
        }
    }
}

pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(
            "/openapi.json",
            get(|| async { ([(header::CONTENT_TYPE, "application/json")], document_bytes()) }),
        )
        .route("/docs", get(|| async { asset("text/html; charset=utf-8", PAGE) }))
        .route("/docs/page.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/docs/page.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
}

/// Made once: anybody may ask for it.
fn document_bytes() -> Bytes {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::to_vec(&openapi()).unwrap_or_default().into()).clone()
}

fn asset(content_type: &'static str, text: &'static str) -> Response {
    let policy =
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:";
    ([(header::CONTENT_TYPE, content_type), (header::CONTENT_SECURITY_POLICY, policy)], text).into_response()
}
