//! Routes of background jobs and archives.

use ade_domain::permission::Scope;

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(archives)).routes(routes!(restore))
}

/// List the background jobs and their status (admin or auditor).
#[utoipa::path(get, path = "/jobs", operation_id = "list_jobs", tag = "operations", responses(
    (status = 200, description = "All jobs", body = wire::Page<wire::Job>), CommonErrors,
))]
async fn list(app: App, caller: Caller) -> PageResult<wire::Job> {
    caller.require_scope(Scope::Read)?;
    if !caller.can_see_all() {
        return Err(Problem::forbidden("FORBIDDEN", "only administrators and auditors may list jobs"));
    }
    let jobs = app.jobs.statuses().await?;
    Ok(single_page(jobs.iter().map(convert::job).collect()))
}

/// List the archives (admin or auditor).
#[utoipa::path(get, path = "/archives", operation_id = "list_archives", tag = "operations", params(PageParams), responses(
    (status = 200, description = "A page of archives, newest first", body = wire::Page<wire::Archive>), ReadErrors,
))]
async fn archives(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Archive> {
    let fetch_limit = page.fetch_limit_u32()?;
    let archives = app.archives.list(page.uuid_cursor()?, fetch_limit, &caller).await?;
    page.page(archives, |archive| archive.archive_id.clone(), |archive| archive.clone().convert())
}

/// Restore an archive (admin). Restoring it again has no effect.
///
/// Restored tasks are history: they can be read, and refuse every command.
#[utoipa::path(post, path = "/archives/{id}/restore", operation_id = "restore_archive", tag = "operations", params(("id" = String, Path)), responses(
    (status = 200, description = "The number of restored tasks", body = wire::RestoreResult), PostErrors, ArchiveNotFound,
    (status = 409, description = "FORGED_ARCHIVE: its content, description or audit entry was changed; or IN_FLIGHT", body = wire::Problem),
))]
async fn restore(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let restored = app.archives.restore(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Restored(restored)))
}
