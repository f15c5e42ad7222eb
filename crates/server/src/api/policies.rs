//! Policy routes: create, update, activate and delete policies, and replay a draft against past tasks.

use ade_app::Outcome;
use ade_app::rules::PolicyChange;
use ade_client::wire;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AppState, convert};
use crate::auth::Caller;
use crate::http::extract::{EmptyBody, JsonBody, PathParam, QueryParams};
use crate::http::idempotency::IdempotentPost;
use crate::http::openapi::responses::{
    BodyErrors, CommonErrors, IdempotencyErrors, PreconditionErrors, UpdateErrors,
};
use crate::http::paging::{JsonPage, PageParams};
use crate::http::problem::ApiResult;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, delete))
        .routes(routes!(activate))
        .routes(routes!(replay))
}

pub(super) fn policy_change(body: wire::PolicyRequest) -> PolicyChange {
    PolicyChange {
        name: body.name,
        task_types: body.task_types,
        resource_patterns: body.resource_patterns.map(|all| all.into_iter().map(Pattern::new).collect()),
        min_approvers: body.min_approvers,
        required_roles: body.required_roles,
        reviewers: body.reviewers.map(|all| all.into_iter().map(UserId::new).collect()),
        risk_threshold: body.risk_threshold,
        auto_approve_if: body.auto_approve_if,
        escalation_role: body.escalation_role,
        reject_threshold: body.reject_threshold,
        priority: body.priority,
        window: body.window,
        active: body.active,
    }
}

/// List policies.
#[utoipa::path(get, path = "/policies", operation_id = "list_policies", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of policies, oldest first", body = wire::Page<wire::Policy>),
    CommonErrors,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<JsonPage<wire::Policy>> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::policy)
}

/// Create a policy (admin). It is a draft unless `active` is true.
#[utoipa::path(post, path = "/policies", operation_id = "create_policy", tag = "rules", request_body = wire::PolicyRequest, responses(
    (status = 201, description = "The policy", body = wire::Policy),
    BodyErrors,
    CommonErrors,
    IdempotencyErrors,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(
    State(app): State<AppState>,
    request: IdempotentPost<wire::PolicyRequest, 201>,
) -> ApiResult<Response> {
    let policy = app.rules.create_policy(&policy_change(request.body.clone()), &request.caller).await?;
    Ok(request.respond(Outcome::Policy(policy)))
}

/// Get a policy.
#[utoipa::path(get, path = "/policies/{id}", operation_id = "show_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The policy", body = wire::Policy),
    CommonErrors,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Json<wire::Policy>> {
    Ok(Json(convert::policy(&app.rules.get(&id, &caller).await?)))
}

/// Update a policy (admin). The active version stays in force until the draft is activated.
#[utoipa::path(patch, path = "/policies/{id}", operation_id = "update_policy", tag = "rules", params(("id" = String, Path)), request_body = wire::PolicyRequest, responses(
    (status = 200, description = "The updated policy", body = wire::Policy),
    BodyErrors,
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "ALREADY_EXISTS: another policy has this name", body = wire::Problem),
))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    JsonBody(body): JsonBody<wire::PolicyRequest>,
) -> ApiResult<Json<wire::Policy>> {
    Ok(Json(convert::policy(&app.rules.update_policy(&id, &policy_change(body), &caller).await?)))
}

/// Delete a policy (admin).
#[utoipa::path(delete, path = "/policies/{id}", operation_id = "delete_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "The policy is deleted"),
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<StatusCode> {
    app.rules.delete_policy(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Activate the draft of a policy (admin).
#[utoipa::path(post, path = "/policies/{id}/activate", operation_id = "activate_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The updated policy", body = wire::Policy),
    BodyErrors,
    CommonErrors,
    IdempotencyErrors,
    PreconditionErrors,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn activate(
    State(app): State<AppState>,
    PathParam(id): PathParam,
    request: IdempotentPost<EmptyBody>,
) -> ApiResult<Response> {
    let policy = app.rules.activate_policy(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Policy(policy)))
}

/// Replay past tasks with the draft of a policy, and list those with a different outcome (admin or auditor).
#[utoipa::path(post, path = "/policies/{id}/replay", operation_id = "replay_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The tasks with a different outcome among the last 10,000, newest first; nothing is changed", body = wire::PolicyReplay),
    CommonErrors,
    (status = 404, description = "POLICY_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn replay(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Json<wire::PolicyReplay>> {
    let replay = app.rules.replay(&id, &app.tasks, &caller);
    let differs = app.unless_stopping(async { Ok(replay.await?) }).await?;
    let differs = differs.into_iter().map(convert::replayed_task).collect();
    Ok(Json(wire::PolicyReplay { policy_id: id, differs }))
}
