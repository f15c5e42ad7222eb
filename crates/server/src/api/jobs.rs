//! Routes of background jobs and archives.

use ade_app::Outcome;
use ade_client::wire;
use ade_domain::permission::Scope;
use axum::extract::State;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{AppState, convert};
use crate::auth::Caller;
use crate::http::extract::{EmptyBody, PathParam, QueryParams};
use crate::http::idempotency::IdempotentPost;
use crate::http::openapi::responses::{BodyErrors, CommonErrors, IdempotencyErrors};
use crate::http::paging::{JsonPage, PageParams, single_page};
use crate::http::problem::{ApiResult, Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(archives)).routes(routes!(restore))
}

/// List the background jobs and their status (admin or auditor).
#[utoipa::path(get, path = "/jobs", operation_id = "list_jobs", tag = "operations", responses(
    (status = 200, description = "All jobs", body = wire::Page<wire::Job>),
    CommonErrors,
))]
async fn list(State(app): State<AppState>, caller: Caller) -> ApiResult<JsonPage<wire::Job>> {
    caller.require_scope(Scope::Read)?;
    if !caller.can_see_all() {
        return Err(Problem::forbidden("FORBIDDEN", "only administrators and auditors may list jobs"));
    }
    let jobs = app.jobs.statuses().await?;
    Ok(single_page(jobs.iter().map(convert::job).collect()))
}

/// List the archives (admin or auditor).
#[utoipa::path(get, path = "/archives", operation_id = "list_archives", tag = "operations", params(PageParams), responses(
    (status = 200, description = "A page of archives, newest first", body = wire::Page<wire::Archive>),
    CommonErrors,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn archives(
    State(app): State<AppState>,
    caller: Caller,
    QueryParams(page): QueryParams<PageParams>,
) -> ApiResult<JsonPage<wire::Archive>> {
    let fetch_limit = page.fetch_limit_u32()?;
    let archives = app.archives.list(page.uuid_cursor()?, fetch_limit, &caller).await?;
    page.page(archives, |archive| archive.archive_id.clone(), convert::archive)
}

/// Restore an archive (admin). Restoring it again has no effect.
#[utoipa::path(post, path = "/archives/{id}/restore", operation_id = "restore_archive", tag = "operations", params(("id" = String, Path)), responses(
    (status = 200, description = "The number of restored tasks", body = wire::RestoreResult),
    BodyErrors,
    CommonErrors,
    IdempotencyErrors,
    (status = 404, description = "ARCHIVE_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn restore(
    State(app): State<AppState>,
    PathParam(id): PathParam,
    request: IdempotentPost<EmptyBody>,
) -> ApiResult<Response> {
    let restored = app.archives.restore(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Restored(restored)))
}
