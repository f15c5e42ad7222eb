//! What every request passes: a request id, the check of its host, a log line, metrics, and headers that keep browsers
//! careful.

use std::net::IpAddr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::api::App;
use crate::metrics;
use crate::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

pub(crate) async fn pass(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(&request);
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let span = tracing::info_span!("request", id, %method, route);
    let mut response = async {
        let response = match check_host(&app, &request) {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        };
        let status = response.status().as_u16();
        // Whoever could not serve has said why.
        if response.status().is_server_error() && status != 503 {
            tracing::warn!(status, took = ?began.elapsed(), "answered");
        } else {
            tracing::debug!(status, took = ?began.elapsed(), "answered");
        }
        response
    }
    .instrument(span)
    .await;
    metrics::request(method.as_str(), &route, response.status().as_u16(), began.elapsed());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static("default-src 'none'"));
    response
}

/// The id of a request: the caller's, or a new one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let fit =
        |id: &&str| !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(|b| b.is_ascii_graphic());
    given.filter(fit).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// A browser that was lured here by a foreign name must not be served: only names that were allowed, and addresses.
fn check_host(app: &App, request: &Request) -> Result<(), Problem> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().host().or(header).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let allowed = name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || app.hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    if allowed {
        return Ok(());
    }
    let detail = "this host name is not served; add it to server.hosts";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "HOST_NOT_ALLOWED", detail))
}
