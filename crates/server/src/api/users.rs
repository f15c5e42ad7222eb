//! User routes: users and their tokens.

use ade_app::accounts::{UserChange, UserDraft};

use super::prelude::*;
use crate::http::extract::PathParams;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
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
    page.page(users, |user| user.user.user_id.to_string(), convert::user)
}

/// Create a user (admin).
#[utoipa::path(post, path = "/users", operation_id = "create_user", tag = "people", request_body = wire::UserRequest, responses(
    (status = 201, description = "The user", body = wire::User), PostErrors,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(app: App, request: IdempotentPost<wire::UserRequest, 201>) -> ApiResult {
    let wire::UserRequest { user_id, name, roles, manager_id, team, active, password } = request.body.clone();
    let (manager_id, team) = (manager_id.map(Some), team.map(Some));
    let change = UserChange { name, roles, manager_id, team, active, password };
    let user = app.accounts.create_user(UserDraft { user_id, change }, &request.caller).await?;
    Ok(request.respond(Outcome::User { user: user.user, revision: user.revision }))
}

/// Get a user.
#[utoipa::path(get, path = "/users/{id}", operation_id = "show_user", tag = "people", params(("id" = String, Path, description = "User id; `me` for the caller")), responses(
    (status = 200, description = "The user", body = wire::User), ReadErrors, UserNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::User> {
    Ok(Json(convert::user(&app.accounts.user(&caller.resolve_me(id), &caller).await?)))
}

/// Update a user (admin), or change your own password.
#[utoipa::path(patch, path = "/users/{id}", operation_id = "update_user", tag = "people", params(("id" = String, Path)), request_body = wire::UserPatch, responses(
    (status = 200, description = "The updated user", body = wire::User), UpdateErrors, UserNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::UserPatch>,
) -> JsonResult<wire::User> {
    Ok(Json(convert::user(
        &app.accounts.update_user(&caller.resolve_me(id), &body.convert(), &caller).await?,
    )))
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
/// The scope `decide` is granted for at most 8 hours, only to a signed-in user for itself, or by the bootstrap token. The
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
