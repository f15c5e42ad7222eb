//! Policy routes: create, update, activate and delete policies, and replay a draft against past tasks.

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, delete))
        .routes(routes!(activate))
        .routes(routes!(replay))
}

/// List policies.
#[utoipa::path(get, path = "/policies", operation_id = "list_policies", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of policies, oldest first", body = wire::Page<wire::Policy>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Policy> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::policy)
}

/// Create a policy (admin). It is a draft unless `active` is true.
#[utoipa::path(post, path = "/policies", operation_id = "create_policy", tag = "rules", request_body = wire::PolicyRequest, responses(
    (status = 201, description = "The policy", body = wire::Policy), PostErrors, SecondAdmin,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(app: App, request: IdempotentPost<wire::PolicyRequest, 201>) -> ApiResult {
    let policy = app.rules.create_policy(&request.body.clone().convert(), &request.caller).await?;
    Ok(request.respond(Outcome::Policy(policy)))
}

/// Get a policy.
#[utoipa::path(get, path = "/policies/{id}", operation_id = "show_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The policy", body = wire::Policy), ReadErrors, PolicyNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Policy> {
    Ok(Json(convert::policy(&app.rules.get(&id, &caller).await?)))
}

/// Update a policy (admin). The active version stays in force until the draft is activated.
#[utoipa::path(patch, path = "/policies/{id}", operation_id = "update_policy", tag = "rules", params(("id" = String, Path)), request_body = wire::PolicyRequest, responses(
    (status = 200, description = "The updated policy", body = wire::Policy), UpdateErrors, SecondAdmin, PolicyNotFound,
    (status = 409, description = "ALREADY_EXISTS: another policy has this name", body = wire::Problem),
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::PolicyRequest>,
) -> JsonResult<wire::Policy> {
    Ok(Json(convert::policy(&app.rules.update_policy(&id, &body.convert(), &caller).await?)))
}

/// Delete a policy (admin).
#[utoipa::path(delete, path = "/policies/{id}", operation_id = "delete_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "The policy is deleted"), DeleteErrors, SecondAdmin, PolicyNotFound,
))]
async fn delete(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.rules.delete_policy(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Activate the draft of a policy (admin).
#[utoipa::path(post, path = "/policies/{id}/activate", operation_id = "activate_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The updated policy", body = wire::Policy), ActionErrors, SecondAdmin, PolicyNotFound,
))]
async fn activate(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let policy = app.rules.activate_policy(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Policy(policy)))
}

/// Replay past tasks with the draft of a policy, and list those with a different outcome (admin or auditor).
#[utoipa::path(post, path = "/policies/{id}/replay", operation_id = "replay_policy", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The tasks with a different outcome among the last 10,000, newest first; nothing is changed", body = wire::PolicyReplay),
    ReadErrors, PolicyNotFound,
))]
async fn replay(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::PolicyReplay> {
    let replay = app.rules.replay(&id, &app.tasks, &caller);
    let replay = app.unless_stopping(async { Ok(replay.await?) }).await?;
    let differs = replay.differences.convert();
    Ok(Json(wire::PolicyReplay { policy_id: id, replayed: replay.replayed, differs }))
}
