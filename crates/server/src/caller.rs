//! Who calls: recognised by a token or by a session before any handler is reached, counted against its limit, and told apart
//! from pages elsewhere that make a browser send its cookie.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use ade_app::AccountService;
use ade_app::accounts::same;
use ade_domain::audit::AuditActor;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};

use crate::api::App;
use crate::limits;
use crate::problem::{Answer, Problem};

/// The cookie of a session.
pub(crate) const COOKIE: &str = "ade_session";
/// What requests that change something carry beside the cookie.
pub(crate) const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");
/// Bytes of a program's name that are kept.
const LONGEST_AGENT: usize = 256;

/// The address at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Who calls. A handler that names this is reached by nobody whom the server does not know.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) ade_app::Caller);

impl Deref for Caller {
    type Target = ade_app::Caller;

    fn deref(&self) -> &ade_app::Caller {
        &self.0
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let mut caller = recognise(parts, app).await?;
        if changes(parts) {
            caller.if_match = if_match(parts)?;
        }
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        limits::count(app, &caller, &parts.method, route).await?;
        Ok(Self(caller))
    }
}

/// From where a request comes.
pub(crate) fn origin(parts: &Parts, app: &App) -> AuditActor {
    let program = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let program = program.map(|text| text.chars().take(LONGEST_AGENT).collect());
    AuditActor {
        ip: address(parts).map(|address| address.to_string()),
        user_agent: program,
        service: Some(app.service.to_string()),
        ..AuditActor::default()
    }
}

pub(crate) fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<Peer>().map(|Peer(peer)| peer.ip())
}

/// What the cookie of a session holds.
pub(crate) fn session_secret(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, secret)| secret)
}

async fn recognise(parts: &Parts, app: &App) -> Answer<ade_app::Caller> {
    let refuse = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail);
    let who = origin(parts, app);
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let given = value.to_str().ok().and_then(|value| value.split_once(' '));
        let token = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let token = token.map(|(_, token)| token.trim()).ok_or_else(|| refuse("the token is not valid"))?;
        if app.admin.admits(token) {
            return Ok(AccountService::bootstrap(who));
        }
        let (caller, _) = app.accounts.by_token(token, who).await?;
        return Ok(caller);
    }
    let Some(secret) = session_secret(parts) else {
        return Err(refuse("a token is needed: Authorization: Bearer TOKEN; or sign in"));
    };
    let (caller, session) = app.accounts.by_session(secret, who).await?;
    let carried = parts.headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if changes(parts) && !same(carried, &session.csrf_hash) {
        let detail =
            "a request with a session's cookie needs its X-CSRF-Token as well; it was told at sign-in";
        return Err(Problem::new(StatusCode::FORBIDDEN, "CSRF", detail));
    }
    Ok(caller)
}

fn changes(parts: &Parts) -> bool {
    !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The revision that the caller saw, if it says so: `If-Match: "3"`.
fn if_match(parts: &Parts) -> Answer<Option<u64>> {
    let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.trim_matches('"').parse().ok();
    let wrong = || Problem::invalid_at("If-Match", "must be a revision, such as \"3\"");
    number.map(Some).ok_or_else(wrong)
}
