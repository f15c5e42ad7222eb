//! The caller of a request: identified by token or session before any handler runs, checked against CSRF, and counted for
//! its rate limit.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use ade_app::AccountService;
use ade_app::accounts::matches_hash;
use ade_domain::audit::AuditActor;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, header};

use crate::api::AppState;
use crate::http::problem::{ApiResult, Problem};
use crate::http::rate_limit;

pub(crate) const SESSION_COOKIE: &str = "ade_session";
const CSRF_TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");
/// Characters of the User-Agent header that the audit log keeps.
const MAX_USER_AGENT_LEN: usize = 256;

/// Address of the client, set for each connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// An authenticated caller. A handler with this parameter is never reached by anonymous requests.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) ade_app::Caller);

impl Deref for Caller {
    type Target = ade_app::Caller;

    fn deref(&self) -> &ade_app::Caller {
        &self.0
    }
}

impl Caller {
    /// Replaces the alias `me` with the caller's own user id.
    pub(crate) fn resolve_me(&self, user_id: String) -> String {
        match &self.user {
            Some(user) if user_id == "me" => user.user_id.to_string(),
            _ => user_id,
        }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        let mut caller = authenticate(parts, app).await?;
        if is_mutation(parts) {
            caller.if_match = if_match(parts)?;
        }
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        rate_limit::check_request(app, &caller, &parts.method, route).await?;
        Ok(Self(caller))
    }
}

/// Address, program and server of a request, for the audit log.
pub(crate) fn request_origin(parts: &Parts, app: &AppState) -> AuditActor {
    let user_agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    AuditActor {
        ip: peer_ip(parts).map(|address| address.to_string()),
        user_agent: user_agent.map(|text| text.chars().take(MAX_USER_AGENT_LEN).collect()),
        service: Some(app.service.to_string()),
        ..AuditActor::default()
    }
}

pub(crate) fn peer_ip(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<PeerAddress>().map(|PeerAddress(peer)| peer.ip())
}

pub(crate) fn session_secret(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == SESSION_COOKIE).map(|(_, secret)| secret)
}

async fn authenticate(parts: &Parts, app: &AppState) -> ApiResult<ade_app::Caller> {
    let origin = request_origin(parts, app);
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let credentials = value.to_str().ok().and_then(|value| value.split_once(' '));
        let bearer = credentials.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let invalid = || Problem::unauthenticated("invalid Authorization header; expected: Bearer TOKEN");
        let token = bearer.map(|(_, token)| token.trim()).ok_or_else(invalid)?;
        if app.bootstrap_token.matches(token) {
            return Ok(AccountService::bootstrap_caller(origin));
        }
        let (caller, _) = app.accounts.authenticate_token(token, origin).await?;
        return Ok(caller);
    }
    let Some(secret) = session_secret(parts) else {
        let detail = "authentication required: send Authorization: Bearer TOKEN, or sign in";
        return Err(Problem::unauthenticated(detail));
    };
    let (caller, session) = app.accounts.authenticate_session(secret, origin).await?;
    let csrf_token = parts.headers.get(CSRF_TOKEN).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if is_mutation(parts) && !matches_hash(csrf_token, &session.csrf_hash) {
        let detail = "missing or wrong X-CSRF-Token: send the csrf_token of the sign-in response with the session cookie";
        return Err(Problem::forbidden("CSRF", detail));
    }
    Ok(caller)
}

fn is_mutation(parts: &Parts) -> bool {
    !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The expected revision of the object, from `If-Match: "3"`.
fn if_match(parts: &Parts) -> ApiResult<Option<u64>> {
    let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let invalid = |_| Problem::invalid_at("If-Match", "must be a revision, such as \"3\"");
    text.trim_matches('"').parse().map(Some).map_err(invalid)
}
