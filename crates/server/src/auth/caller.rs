//! The caller of a request: identified by token or session before any handler runs, checked against CSRF, and counted for
//! its rate limit.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use ade_app::AccountService;
use ade_app::accounts::{SessionUse, matches_csrf_token};
use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, header};

use crate::api::AppState;
use crate::http::client_address::ClientAddress;
use crate::http::connections::Connection;
use crate::http::problem::{ApiResult, Problem};
use crate::http::rate_limit;

pub(crate) const SESSION_COOKIE: &str = "ade_session";
/// Keeps the secret of a device on which its user signed in before.
pub(crate) const DEVICE_COOKIE: &str = "ade_device";
const CSRF_TOKEN: HeaderName = HeaderName::from_static("x-csrf-token");
/// The routes that a session with a temporary password can use: who am I, sign out, and set a password.
const PASSWORD_CHANGE_ROUTES: [&str; 4] =
    ["/api/v1/sessions/current", "/api/v1/users/{id}", "/password", "/sign-out"];
/// The routes for callers that were authenticated before the database became unavailable.
const LOCK_ROUTES: &str = "/api/v1/locks/";
/// Characters of the User-Agent header that the audit log keeps.
const MAX_USER_AGENT_LEN: usize = 256;

/// Added to a request when its caller is authenticated: until then, little of its body is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Authenticated;

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

/// The visitor of a page, in the requests that the page makes to the API for reading: it is not authenticated and counted once
/// more for each of them. Nothing outside of the process can add an extension to a request.
#[derive(Debug, Clone)]
pub(crate) struct PageVisitor(pub(crate) ade_app::Caller);

impl Caller {
    /// The visitor of a page. A form proves its CSRF token when the page sends its change to the API, not here.
    pub(crate) async fn visitor(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        let caller = authenticate(parts, app, None).await?;
        Self::admit(caller, parts, app).await
    }

    /// Counts an authenticated request, and lets it have a larger body.
    async fn admit(mut caller: ade_app::Caller, parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        parts.extensions.insert(Authenticated);
        if let Some(connection) = parts.extensions.get::<Connection>() {
            connection.mark_authenticated();
        }
        if is_mutation(parts) {
            caller.if_match = if_match(parts)?;
        }
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if caller.is_unverified && !route.starts_with(LOCK_ROUTES) {
            return Err(ade_app::Error::unverified_caller().into());
        }
        rate_limit::check_request(app, &caller, &parts.method, route).await?;
        Ok(Self(caller))
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        if let Some(PageVisitor(visitor)) = parts.extensions.get().filter(|_| !is_mutation(parts)) {
            return Ok(Self(visitor.clone()));
        }
        let csrf_token = parts.headers.get(CSRF_TOKEN).and_then(|value| value.to_str().ok());
        let csrf_token = csrf_token.unwrap_or_default().to_owned();
        let caller = authenticate(parts, app, Some(&csrf_token)).await?;
        Self::admit(caller, parts, app).await
    }
}

/// Where a password is given: the client, and the secret of its device.
#[derive(Debug)]
pub(crate) struct PasswordOrigin {
    pub(crate) client: Option<ClientAddress>,
    pub(crate) device_secret: Option<String>,
}

impl PasswordOrigin {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self { client: client_address(parts), device_secret: cookie(parts, DEVICE_COOKIE).map(str::to_owned) }
    }
}

impl<S: Sync> FromRequestParts<S> for PasswordOrigin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

/// Address, program and server of a request, for the audit log.
pub(crate) fn request_origin(parts: &Parts, app: &AppState) -> AuditActor {
    let user_agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    AuditActor {
        ip: client_address(parts).map(|client| client.ip.to_string()),
        user_agent: user_agent.map(|text| text.chars().take(MAX_USER_AGENT_LEN).collect()),
        service: Some(app.service.to_string()),
        ..AuditActor::default()
    }
}

pub(crate) fn client_address(parts: &Parts) -> Option<ClientAddress> {
    parts.extensions.get::<ClientAddress>().copied()
}

pub(crate) fn session_secret(parts: &Parts) -> Option<&str> {
    cookie(parts, SESSION_COOKIE)
}

/// Nothing if there are two: another server of the same host has set one of them, and nobody knows which.
fn cookie<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut found = pairs.by_ref().filter(|(found, _)| *found == name).map(|(_, value)| value);
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

/// The token or session of a request.
#[derive(Clone)]
enum Secret {
    Token(String),
    Session(String),
}

impl Secret {
    fn of(parts: &Parts) -> ApiResult<Self> {
        if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
            let credentials = value.to_str().ok().and_then(|value| value.split_once(' '));
            let bearer = credentials.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let invalid = || Problem::unauthenticated("invalid Authorization header; expected: Bearer TOKEN");
            return bearer.map(|(_, token)| Self::Token(token.trim().to_owned())).ok_or_else(invalid);
        }
        session_secret(parts).map(|secret| Self::Session(secret.to_owned())).ok_or_else(|| {
            let detail = "authentication required: send Authorization: Bearer TOKEN, or sign in";
            Problem::unauthenticated(detail)
        })
    }
}

/// What a connection was authenticated with that outlives its request: it is checked again while the connection is open.
#[derive(Clone)]
pub(crate) struct Credentials {
    secret: Secret,
    origin: AuditActor,
}

/// Hides the secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl FromRequestParts<AppState> for Credentials {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> ApiResult<Self> {
        Ok(Self { secret: Secret::of(parts)?, origin: request_origin(parts, app) })
    }
}

impl Credentials {
    /// Whether a browser may have sent them without a program asking for it.
    pub(crate) const fn is_session(&self) -> bool {
        matches!(self.secret, Secret::Session(_))
    }

    /// The caller at present, and until when the credentials are valid at most. Does not renew a session.
    pub(crate) async fn check(&self, app: &AppState) -> ApiResult<(ade_app::Caller, Option<Moment>)> {
        match &self.secret {
            Secret::Token(token) => {
                let caller = token_caller(token, self.origin.clone(), app).await?;
                let until = caller.token_expires_at;
                Ok((caller, until))
            }
            Secret::Session(secret) => {
                let SessionUse { caller, session, .. } =
                    app.accounts.check_session(secret, self.origin.clone()).await?;
                if caller.password_change_required {
                    return Err(ade_app::Error::PasswordChangeRequired.into());
                }
                Ok((caller, Some(session.expires_at)))
            }
        }
    }
}

async fn token_caller(token: &str, origin: AuditActor, app: &AppState) -> ApiResult<ade_app::Caller> {
    if app.bootstrap_token.matches(token) {
        return Ok(AccountService::bootstrap_caller(origin));
    }
    let (caller, _) = app.accounts.authenticate_token(token, origin).await?;
    Ok(caller)
}

/// Who sent a request. A change by a session needs this CSRF token; `None` for pages, which change nothing themselves.
async fn authenticate(parts: &Parts, app: &AppState, csrf_token: Option<&str>) -> ApiResult<ade_app::Caller> {
    let origin = request_origin(parts, app);
    let secret = &match Secret::of(parts)? {
        Secret::Token(token) if app.bootstrap_token.matches(&token) => {
            return Ok(AccountService::bootstrap_caller(origin));
        }
        Secret::Token(token) => return Ok(app.accounts.identify_token(&token, origin).await?),
        Secret::Session(secret) => secret,
    };
    let SessionUse { caller, session, is_renewed } =
        app.accounts.authenticate_session(secret, origin).await?;
    if is_mutation(parts) && csrf_token.is_some_and(|token| !matches_csrf_token(secret, token)) {
        let detail = "missing or wrong X-CSRF-Token: send the csrf_token of the sign-in response with the session cookie";
        return Err(Problem::forbidden("CSRF", detail));
    }
    let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if caller.password_change_required && !PASSWORD_CHANGE_ROUTES.contains(&route) {
        return Err(ade_app::Error::PasswordChangeRequired.into());
    }
    if let (true, Some(renewal)) = (is_renewed, parts.extensions.get::<CookieRenewal>()) {
        let max_age = session.expires_at.ms_since(app.tasks.now()) / 1_000;
        // Set once: a request has one session.
        let _ = renewal.0.set((secret.clone(), max_age));
    }
    Ok(caller)
}

/// The session whose cookie the response renews, with its remaining seconds. The middleware adds an empty one to each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct CookieRenewal(pub(crate) Arc<OnceLock<(String, u64)>>);

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
