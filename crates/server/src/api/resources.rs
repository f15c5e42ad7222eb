//! Resource routes: the registry of resource patterns with their criticality and dependents.

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(show, update, delete))
}

/// List the registered resources.
#[utoipa::path(get, path = "/resources", operation_id = "list_resources", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of registered resources, ordered by pattern", body = wire::Page<wire::RegisteredResource>),
    ReadErrors,
))]
async fn list(
    app: App,
    caller: Caller,
    Params(page): Params<PageParams>,
) -> PageResult<wire::RegisteredResource> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::resource)
}

/// Register resources by pattern (admin).
#[utoipa::path(post, path = "/resources", operation_id = "create_resource", tag = "rules", request_body = wire::ResourceRequest, responses(
    (status = 201, description = "The registered resources", body = wire::RegisteredResource), PostErrors, SecondAdmin,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(app: App, request: IdempotentPost<wire::ResourceRequest, 201>) -> ApiResult {
    let resource = app.rules.create_resource(&request.body.clone().convert(), &request.caller).await?;
    Ok(request.respond(Outcome::Resource(resource)))
}

/// Get the registration of a pattern.
#[utoipa::path(get, path = "/resources/{pattern}", operation_id = "show_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "The registered resources", body = wire::RegisteredResource), ReadErrors, ResourceNotFound,
))]
async fn show(app: App, caller: Caller, Param(pattern): Param) -> JsonResult<wire::RegisteredResource> {
    Ok(Json(convert::resource(&app.rules.get(&pattern, &caller).await?)))
}

/// Update the registration of a pattern (admin).
#[utoipa::path(patch, path = "/resources/{pattern}", operation_id = "update_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), request_body = wire::ResourceRequest, responses(
    (status = 200, description = "The updated registration", body = wire::RegisteredResource), UpdateErrors, SecondAdmin, ResourceNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(pattern): Param,
    JsonBody(body): JsonBody<wire::ResourceRequest>,
) -> JsonResult<wire::RegisteredResource> {
    let resource = app.rules.update_resource(&pattern, &body.convert(), &caller).await?;
    Ok(Json(convert::resource(&resource)))
}

/// Delete the registration of a pattern (admin).
#[utoipa::path(delete, path = "/resources/{pattern}", operation_id = "delete_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 204, description = "The registration is deleted"), DeleteErrors, SecondAdmin, ResourceNotFound,
))]
async fn delete(app: App, caller: Caller, Param(pattern): Param) -> ApiResult<StatusCode> {
    app.rules.delete_resource(&pattern, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
