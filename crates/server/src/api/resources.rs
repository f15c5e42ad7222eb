//! Resource routes: the registry of resource patterns with their criticality and dependents.

use ade_app::Outcome;
use ade_app::rules::ResourceChange;
use ade_client::wire;
use ade_domain::glob::Pattern;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AppState, convert};
use crate::auth::Caller;
use crate::http::extract::{JsonBody, PathParam, QueryParams};
use crate::http::idempotency::IdempotentPost;
use crate::http::openapi::responses::{BodyErrors, CommonErrors, IdempotencyErrors, UpdateErrors};
use crate::http::paging::{JsonPage, PageParams};
use crate::http::problem::ApiResult;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(show, update, delete))
}

fn resource_change(body: wire::ResourceRequest) -> ResourceChange {
    let wire::ResourceRequest { pattern, criticality, dependents } = body;
    ResourceChange { pattern: pattern.map(Pattern::new), criticality, dependents }
}

/// List the registered resources.
#[utoipa::path(get, path = "/resources", operation_id = "list_resources", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of registered resources, ordered by pattern", body = wire::Page<wire::RegisteredResource>),
    CommonErrors,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<JsonPage<wire::RegisteredResource>> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::resource)
}

/// Register resources by pattern (admin).
#[utoipa::path(post, path = "/resources", operation_id = "create_resource", tag = "rules", request_body = wire::ResourceRequest, responses(
    (status = 201, description = "The registered resources", body = wire::RegisteredResource),
    BodyErrors,
    CommonErrors,
    IdempotencyErrors,
    (status = 409, description = "ALREADY_EXISTS or IN_FLIGHT", body = wire::Problem),
))]
async fn create(
    State(app): State<AppState>,
    request: IdempotentPost<wire::ResourceRequest, 201>,
) -> ApiResult<Response> {
    let resource = app.rules.create_resource(&resource_change(request.body.clone()), &request.caller).await?;
    Ok(request.respond(Outcome::Resource(resource)))
}

/// Get the registration of a pattern.
#[utoipa::path(get, path = "/resources/{pattern}", operation_id = "show_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "The registered resources", body = wire::RegisteredResource),
    CommonErrors,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(pattern): PathParam,
) -> ApiResult<Json<wire::RegisteredResource>> {
    Ok(Json(convert::resource(&app.rules.get(&pattern, &caller).await?)))
}

/// Update the registration of a pattern (admin).
#[utoipa::path(patch, path = "/resources/{pattern}", operation_id = "update_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), request_body = wire::ResourceRequest, responses(
    (status = 200, description = "The updated registration", body = wire::RegisteredResource),
    BodyErrors,
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(pattern): PathParam,
    JsonBody(body): JsonBody<wire::ResourceRequest>,
) -> ApiResult<Json<wire::RegisteredResource>> {
    let resource = app.rules.update_resource(&pattern, &resource_change(body), &caller).await?;
    Ok(Json(convert::resource(&resource)))
}

/// Delete the registration of a pattern (admin).
#[utoipa::path(delete, path = "/resources/{pattern}", operation_id = "delete_resource", tag = "rules", params(("pattern" = String, Path, description = "Percent-encoded")), responses(
    (status = 204, description = "The registration is deleted"),
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "RESOURCE_NOT_FOUND", body = wire::Problem),
))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(pattern): PathParam,
) -> ApiResult<StatusCode> {
    app.rules.delete_resource(&pattern, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
