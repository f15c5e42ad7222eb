//! Session routes: sign in, show the current caller, sign out.

use ade_app::accounts::SESSION_TTL_MS;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderValue, header};

use super::prelude::*;
use crate::auth::{SESSION_COOKIE, peer_ip, request_origin, session_secret};
use crate::http::rate_limit;

/// Characters of the user id by which sign-in attempts are counted. No user has a longer id.
const MAX_COUNTED_ID_LEN: usize = 128;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(sign_in)).routes(routes!(current, sign_out))
}

/// Sign in with a password.
///
/// The response sets the session cookie and contains `csrf_token`. Requests that change something must send it as
/// `X-CSRF-Token` with the cookie.
#[utoipa::path(post, path = "/sessions", operation_id = "sign_in", tag = "people", security(()), request_body = wire::SignInRequest, responses(
    (status = 201, description = "The session", body = wire::Session), ParseErrors,
    (status = 401, description = "UNAUTHENTICATED", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn sign_in(app: App, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (origin, address) = (request_origin(&parts, &app), peer_ip(&parts));
    let JsonBody(wire::SignInRequest { user_id, password }) =
        JsonBody::from_request(Request::from_parts(parts, body), &app).await?;
    let counted_id: String = user_id.chars().take(MAX_COUNTED_ID_LEN).collect();
    rate_limit::check_sign_in(&app, &counted_id, address).await?;
    let signed_in = app.accounts.sign_in(&user_id, password, origin).await?;
    let session = wire::Session {
        user: Some(convert::user(&signed_in.user)),
        agent_id: None,
        scopes: wire::Scope::ALL.into(),
        expires_at: Some(signed_in.expires_at.convert()),
        csrf_token: Some(signed_in.csrf_token),
    };
    let response = (StatusCode::CREATED, Json(session)).into_response();
    Ok(with_cookie(response, &signed_in.secret, SESSION_TTL_MS / 1_000))
}

fn with_cookie(mut response: Response, secret: &str, max_age_seconds: u64) -> Response {
    let cookie =
        format!("{SESSION_COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_seconds}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Get the user or agent that the token or session belongs to, and its scopes.
#[utoipa::path(get, path = "/sessions/current", operation_id = "who_am_i", tag = "people", responses(
    (status = 200, description = "The caller", body = wire::Session), CommonErrors,
))]
async fn current(app: App, caller: Caller) -> JsonResult<wire::Session> {
    let user = match &caller.user {
        None => None,
        Some(user) => Some(convert::user(&app.accounts.user(user.user_id.as_str(), &caller).await?)),
    };
    let (agent_id, scopes) = (caller.agent_id.clone(), caller.scopes.clone().convert());
    Ok(Json(wire::Session { user, agent_id, scopes, expires_at: None, csrf_token: None }))
}

/// Sign out: end the session and delete its cookie.
#[utoipa::path(delete, path = "/sessions/current", operation_id = "sign_out", tag = "people", responses(
    (status = 204, description = "Signed out"), ReadErrors,
    (status = 404, description = "SESSION_NOT_FOUND: the caller uses a token, which is revoked instead", body = wire::Problem),
))]
async fn sign_out(app: App, request: Request) -> ApiResult {
    let (mut parts, _) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &app).await?;
    app.accounts.sign_out(session_secret(&parts).unwrap_or_default(), &caller).await?;
    Ok(with_cookie(StatusCode::NO_CONTENT.into_response(), "", 0))
}
