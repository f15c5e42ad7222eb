//! Middleware of every request: request id, host check, log line, metrics, and security headers for browsers.

use std::net::IpAddr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use super::client_address::ClientAddress;
use super::connections::Connection;
use super::problem::{ApiResult, Problem};
use crate::api::AppState;
use crate::api::sessions::set_cookie;
use crate::auth::{CookieRenewal, SESSION_COOKIE};
use crate::process::metrics;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
const MAX_REQUEST_ID_LEN: usize = 128;

pub(crate) async fn handle(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let renewal = CookieRenewal::default();
    request.extensions_mut().insert(renewal.clone());
    let started_at = Instant::now();
    let id = request_id(&request);
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let connection = request.extensions().get::<Connection>().cloned();
    let _running = connection.as_ref().map(Connection::start_request);
    let client = identify_client(&app, connection.as_ref(), &request);
    let client_ip =
        client.as_ref().ok().and_then(Option::as_ref).map(|client| tracing::field::display(client.ip));
    let address = client.as_ref().ok().copied().flatten();
    let client_is_tls = matches!(&client, Ok(Some(client)) if client.is_tls);
    let span = tracing::info_span!("request", id, %method, route, client = client_ip);
    let mut response = async {
        let checked = check_host(&app, &request).and(client);
        let response = match checked {
            Ok(client) => {
                if let Some(client) = client {
                    request.extensions_mut().insert(client);
                }
                next.run(request).await
            }
            Err(problem) => problem.into_response(),
        };
        let status = response.status().as_u16();
        // The cause of a 503 is logged where it occurs.
        if response.status().is_server_error() && status != 503 {
            tracing::warn!(status, took = ?started_at.elapsed(), "request failed");
        } else {
            tracing::debug!(status, took = ?started_at.elapsed(), "request completed");
        }
        response
    }
    .instrument(span)
    .await;
    // A response that sets the cookie itself, as at sign-out, takes precedence.
    if let Some((secret, max_age)) = renewal.0.get()
        && !response.headers().contains_key(header::SET_COOKIE)
    {
        set_cookie(&mut response, address, SESSION_COOKIE, secret, *max_age * 1_000);
    }
    metrics::record_request(method.as_str(), &route, response.status().as_u16(), started_at.elapsed());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(PERMISSIONS_POLICY, HeaderValue::from_static("camera=(), geolocation=(), microphone=()"));
    if client_is_tls {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}

fn identify_client(
    app: &AppState,
    connection: Option<&Connection>,
    request: &Request,
) -> ApiResult<Option<ClientAddress>> {
    connection.map(|connection| app.trusted_proxies.client(connection.peer, request.headers())).transpose()
}

/// The caller's `X-Request-Id` if it is usable, otherwise a new one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_usable = |id: &&str| {
        !id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_usable).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// Prevents DNS rebinding: only IP addresses, localhost and configured host names are served.
fn check_host(app: &AppState, request: &Request) -> ApiResult<()> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().host().or(header).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let is_allowed = name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || app.hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
    if is_allowed {
        return Ok(());
    }
    let detail = format!("the host name {name:?} is not allowed; add it to server.hosts");
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "HOST_NOT_ALLOWED", detail))
}
