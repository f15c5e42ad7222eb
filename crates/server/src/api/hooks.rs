//! Inbound hook routes: hooks through which signed messages propose tasks, and the route that receives the messages.

use ade_domain::webhook::signature::SignedMessage;
use axum::extract::{FromRequestParts, Request};
use axum::http::HeaderMap;

use super::prelude::*;
use super::webhooks::with_secret;
use crate::auth::{client_address, request_origin};
use crate::http::{json, rate_limit};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, delete, receive))
        .routes(routes!(rotate))
}

/// List inbound hooks (admin, auditor).
#[utoipa::path(get, path = "/hooks", operation_id = "list_hooks", tag = "webhooks", params(PageParams), responses(
    (status = 200, description = "A page of inbound hooks, oldest first", body = wire::Page<wire::Hook>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Hook> {
    page.page_of_documents(app.hooks.list(&caller).await?, |stored| convert::hook(&stored.value, None))
}

/// Register an inbound hook (admin).
///
/// The response contains the secret that messages are signed with. It is shown only once: a repeated request with the same
/// Idempotency-Key does not show it again.
#[utoipa::path(post, path = "/hooks", operation_id = "create_hook", tag = "webhooks", request_body = wire::HookRequest, responses(
    (status = 201, description = "The hook with its secret", body = wire::Hook), PostErrors,
))]
async fn create(app: App, request: IdempotentPost<wire::HookRequest, 201>) -> ApiResult {
    let created = app.hooks.create(&request.body.clone().convert(), &request.caller).await?;
    let hook = convert::hook(&created.view, Some(created.secret.reveal().to_owned()));
    Ok(with_secret(StatusCode::CREATED, hook, created.view.revision))
}

/// Get an inbound hook (admin, auditor).
#[utoipa::path(get, path = "/hooks/{id}", operation_id = "show_hook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 200, description = "The hook", body = wire::Hook), ReadErrors, HookNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Hook> {
    Ok(Json(convert::hook(&app.hooks.get(&id, &caller).await?, None)))
}

/// Update an inbound hook (admin).
#[utoipa::path(patch, path = "/hooks/{id}", operation_id = "update_hook", tag = "webhooks", params(("id" = String, Path)), request_body = wire::HookRequest, responses(
    (status = 200, description = "The updated hook", body = wire::Hook), UpdateErrors, HookNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::HookRequest>,
) -> JsonResult<wire::Hook> {
    Ok(Json(convert::hook(&app.hooks.update(&id, &body.convert(), &caller).await?, None)))
}

/// Delete an inbound hook (admin).
#[utoipa::path(delete, path = "/hooks/{id}", operation_id = "delete_hook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 204, description = "The hook is deleted"), DeleteErrors, HookNotFound,
))]
async fn delete(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.hooks.delete(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replace the secret of an inbound hook (admin).
///
/// The response contains the new secret, which is shown only once. For 24 hours both secrets are accepted.
#[utoipa::path(post, path = "/hooks/{id}/rotate", operation_id = "rotate_hook", tag = "webhooks", params(("id" = String, Path)), responses(
    (status = 200, description = "The hook with its new secret", body = wire::Hook), ActionErrors, HookNotFound,
))]
async fn rotate(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let rotated = app.hooks.rotate(&id, &request.caller).await?;
    let hook = convert::hook(&rotated.view, Some(rotated.secret.reveal().to_owned()));
    Ok(with_secret(StatusCode::OK, hook, rotated.view.revision))
}

/// Propose a task with a signed message.
///
/// The message has the headers `webhook-id`, `webhook-timestamp` and `webhook-signature` of the Standard Webhooks specification,
/// made with the secret of the hook. Each `webhook-id` is accepted once. `data` has the values of the inputs of the hook.
#[utoipa::path(post, path = "/hooks/{id}", operation_id = "receive_message", tag = "webhooks", security(()), params(
    ("id" = String, Path),
    ("webhook-id" = Option<String>, Header, description = "Id of the message"),
    ("webhook-timestamp" = Option<String>, Header, description = "Seconds since 1970"),
    ("webhook-signature" = Option<String>, Header, description = "`v1,` and the signature in base64; several with spaces between them"),
), request_body = wire::HookMessage, responses(
    (status = 201, description = "The task", body = wire::HookedTask), ParseErrors,
    (status = 401, description = "UNAUTHENTICATED: unknown hook, invalid signature, or an old timestamp", body = wire::Problem),
    (status = 403, description = "FORBIDDEN: the owner of the hook may not propose this task; or HOOK_SUSPENDED: the owner, or who got the secret, was deactivated", body = wire::Problem),
    (status = 409, description = "REPLAYED: the message was accepted already", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 429, description = "RATE_LIMITED", body = wire::Problem),
    (status = 503, description = "UNAVAILABLE, CONTENTION, PREVIEW_PENDING or PREVIEW_BUSY", body = wire::Problem),
))]
async fn receive(app: App, request: Request) -> ApiResult {
    let (mut parts, body) = request.into_parts();
    let Param(id) = Param::from_request_parts(&mut parts, &app).await?;
    rate_limit::check_hook_sender(&app, client_address(&parts)).await?;
    let origin = request_origin(&parts, &app);
    let [message_id, timestamp, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .map(|name| header_text(&parts.headers, name));
    // Without them, nothing of the body is read.
    if message_id.is_empty() || timestamp.is_empty() || signatures.is_empty() {
        let detail = "sign the message: send webhook-id, webhook-timestamp and webhook-signature";
        return Err(Problem::unauthenticated(detail));
    }
    let body = json::read_body(Request::from_parts(parts, body), &app).await?;
    let message =
        SignedMessage { id: &message_id, timestamp: &timestamp, signatures: &signatures, body: &body };
    let verified = app.hooks.verify(&id, message).await?;
    rate_limit::check_hook(&app, verified.hook_id()).await?;
    let proposed = app.hooks.propose(verified, origin).await?;
    let task = wire::HookedTask {
        task_id: proposed.task.task_id.clone(),
        state: proposed.task.state.convert(),
        submit_error: proposed.submit_error,
    };
    Ok((StatusCode::CREATED, Json(task)).into_response())
}

pub(super) fn header_text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
