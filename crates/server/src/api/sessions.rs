//! Session routes: sign in, give the password again, show the current caller, sign out.

use ade_app::accounts::DEVICE_TTL_MS;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderValue, header};

use super::prelude::*;
use crate::auth::{
    DEVICE_COOKIE, PasswordOrigin, SESSION_COOKIE, client_address, request_origin, session_secret,
};
use crate::http::client_address::ClientAddress;
use crate::http::rate_limit;

/// Characters of the user id by which sign-in attempts are counted. No user has a longer id.
pub(super) const MAX_COUNTED_ID_LEN: usize = 128;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(sign_in))
        .routes(routes!(current, sign_out))
        .routes(routes!(reauthenticate))
}

/// Sign in with a password.
///
/// The response sets the session cookie and contains `csrf_token`. Requests that change something must send it as
/// `X-CSRF-Token` with the cookie. A second cookie identifies the device at later sign-ins.
#[utoipa::path(post, path = "/sessions", operation_id = "sign_in", tag = "people", security(()), request_body = wire::SignInRequest, responses(
    (status = 201, description = "The session", body = wire::Session), ParseErrors,
    (status = 401, description = "UNAUTHENTICATED", body = wire::Problem),
    (status = 403, description = "PLAIN_HTTP: passwords are accepted over TLS and from this machine only", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn sign_in(app: App, request: Request) -> ApiResult {
    let (parts, body) = request.into_parts();
    let (origin, password_origin) = (request_origin(&parts, &app), PasswordOrigin::of(&parts));
    let client = password_origin.client;
    refuse_plain_http(&app, client)?;
    let JsonBody(wire::SignInRequest { user_id, password }) =
        JsonBody::from_request(Request::from_parts(parts, body), &app).await?;
    let counted_id: String = user_id.chars().take(MAX_COUNTED_ID_LEN).collect();
    let attempt = rate_limit::check_sign_in(&app, &counted_id, &password_origin).await?;
    let signed_in = app.accounts.sign_in(&user_id, password, origin).await;
    let signed_in = signed_in.inspect_err(|error| app.accounts.record_failure(&attempt, error))?;
    let new_device = app.accounts.remember_device(&attempt, &signed_in.user.user.user_id).await?;
    let session = wire::Session {
        user: Some(convert::user(&signed_in.user)),
        expires_at: Some(signed_in.expires_at.convert()),
        csrf_token: Some(signed_in.csrf_token),
        ..session_of(&signed_in.caller)
    };
    let mut response = (StatusCode::CREATED, Json(session)).into_response();
    let max_age_ms = signed_in.expires_at.ms_since(app.tasks.now());
    set_cookie(&mut response, client, SESSION_COOKIE, &signed_in.secret, max_age_ms);
    if let Some(secret) = new_device {
        set_cookie(&mut response, client, DEVICE_COOKIE, &secret, DEVICE_TTL_MS);
    }
    Ok(response)
}

/// What a caller may do, without the user.
fn session_of(caller: &ade_app::Caller) -> wire::Session {
    wire::Session {
        user: None,
        agent_id: caller.agent_id.clone(),
        scopes: caller.scopes.clone().convert(),
        expires_at: None,
        decides_until: caller.decides_until.convert(),
        password_change_required: caller.password_change_required,
        csrf_token: None,
    }
}

/// Give the password again: the session decides for another 8 hours.
#[utoipa::path(post, path = "/sessions/reauthenticate", operation_id = "reauthenticate", tag = "people", request_body = wire::ReauthenticateRequest, responses(
    (status = 200, description = "The session", body = wire::Session), BodyErrors,
    (status = 403, description = "WRONG_PASSWORD, FORBIDDEN, CSRF, PLAIN_HTTP or PASSWORD_CHANGE_REQUIRED", body = wire::Problem),
))]
async fn reauthenticate(app: App, request: Request) -> JsonResult<wire::Session> {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &app).await?;
    let secret = session_secret(&parts).unwrap_or_default().to_owned();
    let origin = PasswordOrigin::of(&parts);
    refuse_plain_http(&app, origin.client)?;
    let JsonBody(wire::ReauthenticateRequest { password }) =
        JsonBody::from_request(Request::from_parts(parts, body), &app).await?;
    let user_id = caller.user.as_ref().map_or("", |user| user.user_id.as_str());
    let attempt = rate_limit::check_sign_in(&app, user_id, &origin).await?;
    let renewed = app.accounts.reauthenticate(&secret, password, &caller).await;
    let renewed = renewed.inspect_err(|error| app.accounts.record_failure(&attempt, error))?;
    app.accounts.forgive_failures(&attempt);
    let user = Some(convert::user(&app.accounts.own_user(user_id).await?));
    let expires_at = Some(renewed.session.expires_at.convert());
    Ok(Json(wire::Session { user, expires_at, ..session_of(&renewed.caller) }))
}

/// Others could read the password on its way, unless the client runs on this machine or the operator allows it.
pub(super) fn refuse_plain_http(app: &AppState, client: Option<ClientAddress>) -> ApiResult<()> {
    let Some(client) = client.filter(|client| !client.is_local && !client.is_tls && !app.allow_plain_http)
    else {
        return Ok(());
    };
    let detail = format!(
        "passwords are not accepted over plain HTTP from {}: use HTTPS, with the proxy that ends TLS listed in \
         server.trusted_proxies; or set server.allow_plain_http in the configuration file",
        client.ip
    );
    Err(Problem::forbidden("PLAIN_HTTP", detail))
}

/// Sets a cookie that is only sent over TLS, unless the client runs on this machine.
pub(crate) fn set_cookie(
    response: &mut Response,
    client: Option<ClientAddress>,
    name: &str,
    secret: &str,
    ttl_ms: u64,
) {
    let secure = if client.is_some_and(|client| client.is_local) { "" } else { "; Secure" };
    let max_age = ttl_ms / 1_000;
    let cookie = format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Get the user or agent that the token or session belongs to, and its scopes.
#[utoipa::path(get, path = "/sessions/current", operation_id = "who_am_i", tag = "people", responses(
    (status = 200, description = "The caller", body = wire::Session), CommonErrors,
))]
async fn current(app: App, caller: Caller) -> JsonResult<wire::Session> {
    let user = match &caller.user {
        None => None,
        // An agent does not see the address of its sponsor.
        Some(user) => Some(convert::user_for(&app.accounts.own_user(user.user_id.as_str()).await?, &caller)),
    };
    Ok(Json(wire::Session { user, ..session_of(&caller) }))
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
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, client_address(&parts), SESSION_COOKIE, "", 0);
    Ok(response)
}
