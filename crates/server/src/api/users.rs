//! User routes: users and their tokens.

use ade_app::accounts::{InvitationDraft, UserChange, UserDraft};
use axum::extract::{FromRequest, Request};

use super::prelude::*;
use super::sessions::MAX_COUNTED_ID_LEN;
use super::sessions::refuse_plain_http;
use crate::auth::{PasswordOrigin, request_origin};
use crate::http::extract::PathParams;
use crate::http::rate_limit;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(invite))
        .routes(routes!(join))
        .routes(routes!(confirm))
        .routes(routes!(show, update))
        .routes(routes!(tokens, create_token))
        .routes(routes!(revoke_token))
}

/// List users.
#[utoipa::path(get, path = "/users", operation_id = "list_users", tag = "people", params(PageParams), responses(
    (status = 200, description = "A page of users, ordered by id", body = wire::Page<wire::User>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::User> {
    let users = app.accounts.users(page.cursor(), page.fetch_limit_u32()?, &caller).await?;
    page.page(users, |user| user.user.user_id.to_string(), |user| convert::user_for(user, &caller))
}

/// Create a user (admin).
#[utoipa::path(post, path = "/users", operation_id = "create_user", tag = "people", request_body = wire::UserRequest, responses(
    (status = 201, description = "The user", body = wire::User), PostErrors,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(app: App, request: IdempotentPost<wire::UserRequest, 201>) -> ApiResult {
    let wire::UserRequest { user_id, name, roles, manager_id, team, email, active, password } =
        request.body.clone();
    let (manager_id, team, email) = (manager_id.map(Some), team.map(Some), email.map(Some));
    let change =
        UserChange { name, roles, manager_id, team, email, active, password, ..UserChange::default() };
    let user = app.accounts.create_user(UserDraft { user_id, change }, &request.caller).await?;
    Ok(request.respond(Outcome::User { user: user.user, revision: user.revision }))
}

/// Invite a user (admin).
///
/// The response contains a code, which is shown only once and can be used once within 72 hours to set a password. A repeated
/// request with the same Idempotency-Key does not show it again; a new invitation of the same user replaces it.
#[utoipa::path(post, path = "/users/invitations", operation_id = "invite_user", tag = "people", request_body = wire::InvitationRequest, responses(
    (status = 201, description = "The invitation", body = wire::Invitation), PostErrors,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn invite(app: App, request: IdempotentPost<wire::InvitationRequest, 201>) -> ApiResult {
    let wire::InvitationRequest { user_id, name, roles, manager_id, team } = request.body.clone();
    let draft = InvitationDraft { user_id, name, roles, manager_id, team };
    let invited = app.accounts.invite(&draft, &request.caller).await?;
    let body = wire::Invitation {
        user: convert::user(&invited.user),
        code: Some(invited.code),
        expires_at: invited.expires_at.convert(),
    };
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

/// Use an invitation: set your own password.
#[utoipa::path(post, path = "/users/invitations/accept", operation_id = "accept_invitation", tag = "people", security(()), request_body = wire::JoinRequest, responses(
    (status = 200, description = "The user, who can sign in now", body = wire::User), ParseErrors,
    (status = 403, description = "INVALID_INVITATION: the code is wrong, has expired or was used already; or PLAIN_HTTP", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE or CONTENTION", body = wire::Problem),
))]
async fn join(app: App, request: Request) -> JsonResult<wire::User> {
    let (parts, body) = request.into_parts();
    let (origin, password_origin) = (request_origin(&parts, &app), PasswordOrigin::of(&parts));
    refuse_plain_http(&app, password_origin.client)?;
    let JsonBody(wire::JoinRequest { code, password }) =
        JsonBody::from_request(Request::from_parts(parts, body), &app).await?;
    let counted_id: String =
        code.split(':').next().unwrap_or_default().chars().take(MAX_COUNTED_ID_LEN).collect();
    rate_limit::check_sign_in(&app, &counted_id, &password_origin).await?;
    Ok(Json(convert::user(&app.accounts.accept_invitation(&code, password, origin).await?)))
}

/// Confirm that another person uses an account (admin).
///
/// The account then counts as independent of those who created, invited or reset it, or granted it a role. Only an administrator
/// who is independent of the account and of all of them can do this, with the scope `decide`, or the bootstrap token.
#[utoipa::path(post, path = "/users/{id}/confirm", operation_id = "confirm_user", tag = "people", params(("id" = String, Path)), responses(
    (status = 200, description = "The user", body = wire::User), PostErrors, UserNotFound,
    (status = 403, description = "NOT_INDEPENDENT, FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED", body = wire::Problem),
))]
async fn confirm(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let user_id = request.caller.resolve_me(id);
    let user = app.accounts.confirm_user(&user_id, &request.caller).await?;
    Ok(request.respond(Outcome::User { user: user.user, revision: user.revision }))
}

/// Get a user.
#[utoipa::path(get, path = "/users/{id}", operation_id = "show_user", tag = "people", params(("id" = String, Path, description = "User id; `me` for the caller")), responses(
    (status = 200, description = "The user", body = wire::User), ReadErrors, UserNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::User> {
    let found = app.accounts.user(&caller.resolve_me(id), &caller).await?;
    Ok(Json(convert::user_for(&found, &caller)))
}

/// Update a user (admin), or change your own password with `current_password`, or your own e-mail address.
#[utoipa::path(patch, path = "/users/{id}", operation_id = "update_user", tag = "people", params(("id" = String, Path)), request_body = wire::UserPatch, responses(
    (status = 200, description = "The updated user", body = wire::User), UpdateErrors, SecondAdmin, UserNotFound,
    (status = 403, description = "WRONG_PASSWORD, FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED", body = wire::Problem),
))]
async fn update(
    app: App,
    caller: Caller,
    origin: PasswordOrigin,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::UserPatch>,
) -> JsonResult<wire::User> {
    // A session must not be a way to guess the password.
    let attempt = match (&caller.user, &body.current_password) {
        (Some(user), Some(_)) => Some(rate_limit::check_sign_in(&app, user.user_id.as_str(), &origin).await?),
        _ => None,
    };
    let updated = app.accounts.update_user(&caller.resolve_me(id), &body.convert(), &caller).await;
    if let (Err(error), Some(attempt)) = (&updated, &attempt) {
        app.accounts.record_failure(attempt, error);
    }
    Ok(Json(convert::user_for(&updated?, &caller)))
}

/// List the valid tokens of a user.
#[utoipa::path(get, path = "/users/{id}/tokens", operation_id = "list_tokens", tag = "people", params(("id" = String, Path)), responses(
    (status = 200, description = "The tokens without their secrets, oldest first", body = wire::Page<wire::Token>),
    ReadErrors, UserNotFound,
))]
async fn tokens(app: App, caller: Caller, Param(id): Param) -> PageResult<wire::Token> {
    let tokens = app.accounts.tokens(&caller.resolve_me(id), &caller).await?;
    Ok(single_page(tokens.iter().map(|token| convert::token(token, None)).collect()))
}

/// Create a token for yourself, or as an administrator for another user.
///
/// The scope `decide` is granted only to a signed-in user for itself, until 8 hours after the password was given. The
/// secret is shown only in this response; a repeated request with the same Idempotency-Key does not show it again.
#[utoipa::path(post, path = "/users/{id}/tokens", operation_id = "create_token", tag = "people", params(("id" = String, Path)), request_body = wire::TokenRequest, responses(
    (status = 201, description = "The token", body = wire::Token), PostErrors, UserNotFound,
))]
async fn create_token(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::TokenRequest, 201>,
) -> ApiResult {
    let user_id = request.caller.resolve_me(id);
    let created =
        app.accounts.create_token(&user_id, &request.body.clone().convert(), &request.caller).await?;
    Ok((StatusCode::CREATED, Json(convert::token(&created.token, Some(created.secret)))).into_response())
}

/// Revoke a token.
#[utoipa::path(delete, path = "/users/{id}/tokens/{token_id}", operation_id = "revoke_token", tag = "people", params(("id" = String, Path), ("token_id" = String, Path)), responses(
    (status = 204, description = "The token is revoked"), ReadErrors, TokenNotFound,
))]
async fn revoke_token(app: App, caller: Caller, PathParams(params): PathParams<2>) -> ApiResult<StatusCode> {
    let [id, token_id] = params;
    app.accounts.revoke_token(&caller.resolve_me(id), &token_id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
