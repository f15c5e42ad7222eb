//! Jobs, and what they archived.

use ade_app::Outcome;
use ade_client::wire;
use ade_domain::permission::Scope;
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, Guarded, OfBody, OfPost};
use super::convert::{self, jobs as told};
use super::extract::{PageParams, Params, Segment};
use super::{App, Nothing};
use crate::caller::Caller;
use crate::posted::Posted;
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(archives)).routes(routes!(restore))
}

/// Work that repeats, and how it goes (admin, auditor)
#[utoipa::path(get, path = "/jobs", operation_id = "list_jobs", tag = "operations", responses(
    (status = 200, description = "Every job", body = wire::Page<wire::Job>),
    Always,
    Guarded,
))]
async fn list(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Page<wire::Job>>> {
    caller.require(Scope::Read)?;
    if !caller.sees_all() {
        let detail = "jobs are for administrators and auditors";
        return Err(Problem::new(axum::http::StatusCode::FORBIDDEN, "FORBIDDEN", detail));
    }
    let standing = app.jobs.standing().await?;
    Ok(Json(wire::Page { items: standing.iter().map(told::job).collect(), next_cursor: None }))
}

/// What was archived (admin, auditor)
#[utoipa::path(get, path = "/archives", operation_id = "list_archives", tag = "operations", params(PageParams), responses(
    (status = 200, description = "A page of archives, the newest first", body = wire::Page<wire::Archive>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn archives(
    State(app): State<App>,
    caller: Caller,
    Params(page): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::Archive>>> {
    let limit = page.limit()?;
    let found = app.archives.list(page.cursor_id()?, page.one_more()?, &caller).await?;
    Ok(Json(convert::page(found, limit, |archive| archive.archive_id.clone(), told::archive)))
}

/// Bring back what was archived (admin); again, it brings back nothing
#[utoipa::path(post, path = "/archives/{id}/restore", operation_id = "restore_archive", tag = "operations", params(("id" = String, Path)), responses(
    (status = 200, description = "What was not there is there again", body = wire::Restored),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 404, description = "ARCHIVE_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn restore(State(app): State<App>, Segment(id): Segment, posted: Posted<Nothing>) -> Answer<Response> {
    let restored = app.archives.restore(&id, &posted.caller).await?;
    Ok(posted.answer(Outcome::Restored(&restored)))
}
