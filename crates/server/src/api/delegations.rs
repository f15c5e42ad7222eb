//! Delegation routes: create, update and delete delegations.

use ade_app::Outcome;
use ade_app::rules::DelegationChange;
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::people::UserId;
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

fn delegation_change(body: wire::DelegationRequest) -> DelegationChange {
    let moment = |time: wire::Time| Moment::from(time.0);
    DelegationChange {
        owner_id: body.owner_id.map(UserId::new),
        delegate_to: body.delegate_to.map(UserId::new),
        kind: body.kind,
        conditions: body.conditions,
        cascade: body.cascade,
        active: body.active,
        valid_from: body.valid_from.map(|time| time.map(moment)),
        valid_until: body.valid_until.map(|time| time.map(moment)),
    }
}

/// List the delegations that the caller may see: from and to the caller, or all for administrators and auditors.
#[utoipa::path(get, path = "/delegations", operation_id = "list_delegations", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of delegations, oldest first", body = wire::Page<wire::Delegation>),
    CommonErrors,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<JsonPage<wire::Delegation>> {
    page.page_of_documents(app.rules.list(&caller).await?, convert::delegation)
}

/// Create a delegation: for yourself, or as an administrator for another user.
#[utoipa::path(post, path = "/delegations", operation_id = "create_delegation", tag = "rules", request_body = wire::DelegationRequest, responses(
    (status = 201, description = "The delegation", body = wire::Delegation),
    BodyErrors,
    CommonErrors,
    IdempotencyErrors,
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn create(
    State(app): State<AppState>,
    request: IdempotentPost<wire::DelegationRequest, 201>,
) -> ApiResult<Response> {
    let change = delegation_change(request.body.clone());
    let delegation = app.rules.create_delegation(&change, &request.caller).await?;
    Ok(request.respond(Outcome::Delegation(delegation)))
}

/// Get a delegation.
#[utoipa::path(get, path = "/delegations/{id}", operation_id = "show_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The delegation", body = wire::Delegation),
    CommonErrors,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<Json<wire::Delegation>> {
    Ok(Json(convert::delegation(&app.rules.get(&id, &caller).await?)))
}

/// Update a delegation.
#[utoipa::path(patch, path = "/delegations/{id}", operation_id = "update_delegation", tag = "rules", params(("id" = String, Path)), request_body = wire::DelegationRequest, responses(
    (status = 200, description = "The updated delegation", body = wire::Delegation),
    BodyErrors,
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
))]
async fn update(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
    JsonBody(body): JsonBody<wire::DelegationRequest>,
) -> ApiResult<Json<wire::Delegation>> {
    let delegation = app.rules.update_delegation(&id, &delegation_change(body), &caller).await?;
    Ok(Json(convert::delegation(&delegation)))
}

/// Delete a delegation.
#[utoipa::path(delete, path = "/delegations/{id}", operation_id = "delete_delegation", tag = "rules", params(("id" = String, Path)), responses(
    (status = 204, description = "The delegation is deleted"),
    CommonErrors,
    UpdateErrors,
    (status = 404, description = "DELEGATION_NOT_FOUND", body = wire::Problem),
))]
async fn delete(
    State(app): State<AppState>,
    caller: Caller,
    PathParam(id): PathParam,
) -> ApiResult<StatusCode> {
    app.rules.delete_delegation(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}
