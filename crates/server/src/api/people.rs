//! People, how they sign in, and their tokens.

use ade_app::Outcome;
use ade_app::accounts::{SESSION_LASTS_MS, TokenDraft, UserChange, UserDraft};
use ade_client::wire;
use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answers::{Always, Guarded, OfBody, OfChange, OfPost};
use super::convert::{self, reviews as told};
use super::extract::{Body, PageParams, Params, Segment, Segments, parse, read};
use crate::caller::{COOKIE, Caller, address, origin, session_secret};
use crate::limits;
use crate::posted::Posted;
use crate::problem::Answer;

/// Characters of a name that tries to sign in are counted by.
const LONGEST_NAME: usize = 128;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sign_in))
        .routes(routes!(who_am_i, sign_out))
        .routes(routes!(list, create))
        .routes(routes!(show, update))
        .routes(routes!(tokens, create_token))
        .routes(routes!(revoke_token))
}

/// Sign in
///
/// The answer sets the cookie of the session, and tells the token that every request which changes something carries beside
/// it as `X-CSRF-Token`.
#[utoipa::path(post, path = "/sessions", operation_id = "sign_in", tag = "people", security(()), request_body = wire::SignIn, responses(
    (status = 201, description = "Signed in", body = wire::Session),
    OfBody,
    (status = 401, description = "UNAUTHENTICATED", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn sign_in(State(app): State<App>, request: Request) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    let (who, from) = (origin(&parts, &app), address(&parts));
    let bytes = read(Request::from_parts(parts, body), &app).await?;
    let wire::SignIn { user_id, password } = parse(&bytes)?;
    // What is no name is not counted by it either.
    let counted: String = user_id.chars().take(LONGEST_NAME).collect();
    limits::sign_in(&app, &counted, from).await?;
    let signed = app.accounts.sign_in(&user_id, password, who).await?;
    let answer = wire::Session {
        user: Some(told::user(&signed.user)),
        agent_id: None,
        scopes: ade_domain::permission::Scope::ALL.into_iter().collect(),
        expires_at: Some(signed.expires_at.into()),
        csrf_token: Some(signed.csrf_token),
    };
    Ok(with_cookie(
        (StatusCode::CREATED, Json(answer)).into_response(),
        &signed.secret,
        SESSION_LASTS_MS / 1_000,
    ))
}

fn with_cookie(mut response: Response, secret: &str, seconds: u64) -> Response {
    let cookie = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Who am I?
#[utoipa::path(get, path = "/sessions/current", operation_id = "who_am_i", tag = "people", responses(
    (status = 200, description = "Who acts, and what it may do", body = wire::Session),
    Always,
    Guarded,
))]
async fn who_am_i(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Session>> {
    let user = match &caller.user {
        None => None,
        Some(user) => Some(told::user(&app.accounts.user(user.user_id.as_str(), &caller).await?)),
    };
    let (agent_id, scopes) = (caller.agent_id.clone(), caller.scopes.clone());
    Ok(Json(wire::Session { user, agent_id, scopes, expires_at: None, csrf_token: None }))
}

/// Sign out
#[utoipa::path(delete, path = "/sessions/current", operation_id = "sign_out", tag = "people", responses(
    (status = 204, description = "Signed out"),
    Always,
    Guarded,
    (status = 404, description = "SESSION_NOT_FOUND: a token is revoked instead", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn sign_out(State(app): State<App>, request: Request) -> Answer<Response> {
    let (mut parts, _) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &app).await?;
    app.accounts.sign_out(session_secret(&parts).unwrap_or_default(), &caller).await?;
    Ok(with_cookie(StatusCode::NO_CONTENT.into_response(), "", 0))
}

/// People
#[utoipa::path(get, path = "/users", operation_id = "list_users", tag = "people", params(PageParams), responses(
    (status = 200, description = "A page of people, by id", body = wire::Page<wire::User>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(page): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::User>>> {
    let limit = page.limit()?;
    let found = app.accounts.users(page.cursor.as_deref(), page.one_more()?, &caller).await?;
    Ok(Json(convert::page(found, limit, |user| user.user.user_id.to_string(), told::user)))
}

/// A new person (admin)
#[utoipa::path(post, path = "/users", operation_id = "create_user", tag = "people", request_body = wire::UserRequest, responses(
    (status = 201, description = "Made", body = wire::User),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(State(app): State<App>, posted: Posted<wire::UserRequest, 201>) -> Answer<Response> {
    let wire::UserRequest { user_id, name, roles, manager_id, team, active, password } = posted.body.clone();
    let (manager_id, team) = (manager_id.map(Some), team.map(Some));
    let change = UserChange { name, roles, manager_id, team, active, password };
    let made = app.accounts.create_user(UserDraft { user_id, change }, &posted.caller).await?;
    Ok(posted.answer(Outcome::User(&made)))
}

/// One person
#[utoipa::path(get, path = "/users/{id}", operation_id = "show_user", tag = "people", params(("id" = String, Path, description = "`me` for oneself")), responses(
    (status = 200, description = "The person", body = wire::User),
    Always,
    Guarded,
    (status = 404, description = "USER_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::User>> {
    Ok(Json(told::user(&app.accounts.user(&me(id, &caller), &caller).await?)))
}

/// `me` is whoever calls.
fn me(id: String, caller: &Caller) -> String {
    match &caller.user {
        Some(user) if id == "me" => user.user_id.to_string(),
        _ => id,
    }
}

/// Change a person (admin), or one's own password
#[utoipa::path(patch, path = "/users/{id}", operation_id = "update_user", tag = "people", params(("id" = String, Path)), request_body = wire::UserPatch, responses(
    (status = 200, description = "The person as it is now", body = wire::User),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "USER_NOT_FOUND", body = wire::Problem),
))]
async fn update(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::UserPatch>,
) -> Answer<Json<wire::User>> {
    let wire::UserPatch { name, roles, manager_id, team, active, password } = body;
    let change = UserChange { name, roles, manager_id, team, active, password };
    Ok(Json(told::user(&app.accounts.change_user(&me(id, &caller), &change, &caller).await?)))
}

/// The tokens of a person that are in force
#[utoipa::path(get, path = "/users/{id}/tokens", operation_id = "list_tokens", tag = "people", params(("id" = String, Path)), responses(
    (status = 200, description = "In the order in which they were made; without the tokens themselves", body = wire::Page<wire::Token>),
    Always,
    Guarded,
    (status = 404, description = "USER_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn tokens(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Page<wire::Token>>> {
    let found = app.accounts.tokens(&me(id, &caller), &caller).await?;
    let items = found.iter().map(|token| told::token(token, None)).collect();
    Ok(Json(wire::Page { items, next_cursor: None }))
}

/// A new token
///
/// For oneself, or by an administrator for others. `decide` is given for at most 8 hours, to whoever is signed in, for itself
/// alone; or by the bootstrap token. The token is told once: a repetition with the same Idempotency-Key does not tell it again.
#[utoipa::path(post, path = "/users/{id}/tokens", operation_id = "create_token", tag = "people", params(("id" = String, Path)), request_body = wire::TokenRequest, responses(
    (status = 201, description = "Made", body = wire::Token),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 404, description = "USER_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn create_token(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::TokenRequest, 201>,
) -> Answer<Response> {
    let wire::TokenRequest { name, scopes, ttl_seconds } = posted.body.clone();
    let draft = TokenDraft { name, scopes, ttl_seconds };
    let id = me(id, &posted.caller);
    let made = app.accounts.create_token(&id, &draft, &posted.caller).await?;
    Ok((StatusCode::CREATED, Json(told::token(&made.token, Some(made.secret)))).into_response())
}

/// Revoke a token
#[utoipa::path(delete, path = "/users/{id}/tokens/{token_id}", operation_id = "revoke_token", tag = "people", params(("id" = String, Path), ("token_id" = String, Path)), responses(
    (status = 204, description = "It is not valid any more"),
    Always,
    Guarded,
    (status = 404, description = "TOKEN_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn revoke_token(
    State(app): State<App>,
    caller: Caller,
    Segments(path): Segments<2>,
) -> Answer<StatusCode> {
    let [id, token_id] = path;
    app.accounts.revoke_token(&me(id, &caller), &token_id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
