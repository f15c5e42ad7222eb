//! Delegation routes: create, update and delete delegations.

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(show, update, delete))
}

/// List the delegations that the caller may see: from and to the caller, or all for administrators and auditors.
#[utoipa::path(get, path = "/delegations", operation_id = "list_delegations", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of delegations, oldest first", body = wire::Page<wire::Delegation>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Delegation> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::delegation)
}

/// Create a delegation: for yourself, or as an administrator for another user.
#[utoipa::path(post, path = "/delegations", operation_id = "create_delegation", tag = "rules", request_body = wire::DelegationRequest, responses(
    (status = 201, description = "The delegation", body = wire::Delegation), PostErrors,
))]
async fn create(app: App, request: IdempotentPost<wire::DelegationRequest, 201>) -> ApiResult {
    let delegation = app.rules.create_delegation(&request.body.clone().convert(), &request.caller).await?;
    Ok(request.respond(Outcome::Delegation(delegation)))
}

/// Get a delegation.
#[utoipa::path(get, path = "/delegations/{id}", operation_id = "show_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The delegation", body = wire::Delegation), ReadErrors, DelegationNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Delegation> {
    Ok(Json(convert::delegation(&app.rules.get(&id, &caller).await?)))
}

/// Update a delegation.
#[utoipa::path(patch, path = "/delegations/{id}", operation_id = "update_delegation", tag = "rules", params(("id" = String, Path)), request_body = wire::DelegationRequest, responses(
    (status = 200, description = "The updated delegation", body = wire::Delegation), UpdateErrors, DelegationNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::DelegationRequest>,
) -> JsonResult<wire::Delegation> {
    let delegation = app.rules.update_delegation(&id, &body.convert(), &caller).await?;
    Ok(Json(convert::delegation(&delegation)))
}

/// Delete a delegation.
#[utoipa::path(delete, path = "/delegations/{id}", operation_id = "delete_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "The delegation is deleted"), DeleteErrors, DelegationNotFound,
))]
async fn delete(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.rules.delete_delegation(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
