//! Change routes: what waits for a second administrator (dual control), confirming and rejecting it.

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(confirm))
        .routes(routes!(reject))
}

/// List the changes that wait for a second administrator (admin or auditor).
#[utoipa::path(get, path = "/changes", operation_id = "list_changes", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of changes, oldest first", body = wire::Page<wire::Change>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Change> {
    page.page_of_documents(app.changes.list(&caller).await?, convert::change)
}

/// Get a change that waits for a second administrator (admin or auditor).
#[utoipa::path(get, path = "/changes/{id}", operation_id = "show_change", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The change", body = wire::Change), ReadErrors,
    (status = 404, description = "CHANGE_NOT_FOUND", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Change> {
    Ok(Json(convert::change(&app.changes.get(&id, &caller).await?)))
}

/// Confirm a change of another administrator, which makes it (admin).
///
/// Only an administrator who is independent of who proposed it, and whose account it does not change, can do this, with the
/// scope `decide`; the bootstrap token only while fewer than two administrators are active.
#[utoipa::path(post, path = "/changes/{id}/confirm", operation_id = "confirm_change", tag = "rules", params(("id" = String, Path)), responses(
    (status = 200, description = "The change, which is made", body = wire::Change), ConfirmationErrors,
))]
async fn confirm(app: App, Param(id): Param, request: IdempotentPost<EmptyBody>) -> ApiResult {
    let change = app.changes.confirm(&id, &request.caller).await?;
    Ok(request.respond(Outcome::Change(change)))
}

/// Reject a change, or withdraw an own one (admin).
#[utoipa::path(post, path = "/changes/{id}/reject", operation_id = "reject_change", tag = "rules", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 200, description = "The change, which is not made", body = wire::Change), ConfirmationErrors,
))]
async fn reject(app: App, Param(id): Param, request: IdempotentPost<wire::ReasonRequest>) -> ApiResult {
    let change = app.changes.reject(&id, request.body.reason.as_deref(), &request.caller).await?;
    Ok(request.respond(Outcome::Change(change)))
}
