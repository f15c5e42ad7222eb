//! Task routes: create, list, update, submit and cancel tasks, overrides, comments, preview, risk and statistics.

use ade_app::tasks::{Proposal, TaskAction};
use ade_store::database::{StoredTask, TaskFilter};
use axum::http::{HeaderMap, header};
use uuid::Uuid;

use super::approvals::parse_answer;
use super::prelude::*;
use crate::http::idempotency::etag;
use crate::http::paging::parse_word;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, delete))
        .routes(routes!(submit))
        .routes(routes!(resubmit))
        .routes(routes!(cancel))
        .routes(routes!(archive))
        .routes(routes!(revoke))
        .routes(routes!(force_apply))
        .routes(routes!(request_override))
        .routes(routes!(confirm_override))
        .routes(routes!(comments, create_comment))
        .routes(routes!(preview))
        .routes(routes!(risk))
        .routes(routes!(approvals))
        .routes(routes!(stats))
}

/// Tasks that a list can be asked for by their ids.
const MAX_IDS: usize = 200;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// State, such as `REVIEWING`.
    #[param(value_type = Option<wire::TaskState>)]
    state: Option<String>,
    /// Ids of tasks, separated by commas; at most 200.
    ids: Option<String>,
    /// Level of risk, such as `HIGH`.
    #[param(value_type = Option<wire::RiskLevel>)]
    risk: Option<String>,
    /// User id of the author.
    author: Option<String>,
    /// Resource, as `type:id`.
    resource: Option<String>,
    /// Tag.
    tag: Option<String>,
    /// Agent that proposed the task or applies it.
    agent: Option<String>,
    /// Task type.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

fn task_ids(ids: &str) -> ApiResult<Vec<String>> {
    let ids: Vec<String> = ids.split(',').map(str::to_owned).collect();
    let is_valid = ids.len() <= MAX_IDS && ids.iter().all(|id| Uuid::parse_str(id).is_ok());
    let detail = || format!("must be at most {MAX_IDS} ids of tasks, separated by commas");
    if is_valid { Ok(ids) } else { Err(Problem::invalid_at("?ids", detail())) }
}

/// List the tasks that the caller may see, newest first.
#[utoipa::path(get, path = "/tasks", operation_id = "list_tasks", tag = "tasks", params(ListParams), responses(
    (status = 200, description = "A page of tasks", body = wire::Page<wire::Task>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(params): Params<ListParams>) -> PageResult<wire::Task> {
    let ListParams { state, ids, risk, author, resource, tag, agent, task_type, limit, cursor } = params;
    let risk: Option<wire::RiskLevel> = parse_word("?risk", risk, "a level of risk such as HIGH")?;
    let state: Option<wire::TaskState> = parse_word("?state", state, "a task state such as REVIEWING")?;
    let page = PageParams::new(limit, cursor);
    let fetch_limit = page.fetch_limit_u32()?;
    let filter = TaskFilter {
        ids: ids.map(|ids| task_ids(&ids)).transpose()?,
        risk: risk.convert(),
        state: state.convert(),
        author,
        resource,
        tag,
        agent,
        task_type,
        ..TaskFilter::default()
    };
    let tasks = app.tasks.tasks(filter, page.uuid_cursor()?, fetch_limit, &caller).await?;
    let now = app.tasks.now();
    let convert = |task: &StoredTask| convert::task(*TaskView::new(task, &caller, now));
    page.page(tasks, |task| task.task_id.clone(), convert)
}

/// Create a task in state DRAFT, with its risk and preview.
#[utoipa::path(post, path = "/tasks", operation_id = "create_task", tag = "tasks", request_body = wire::TaskRequest, responses(
    (status = 201, description = "The draft", body = wire::Task), PostErrors, PreviewErrors,
))]
async fn create(app: App, request: IdempotentPost<wire::TaskRequest, 201>) -> ApiResult {
    let task = app.tasks.propose(request.body.clone().convert(), &request.caller).await?;
    Ok(request.respond_task(&task))
}

/// Get a task.
#[utoipa::path(get, path = "/tasks/{id}", operation_id = "show_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The task, with its revision as ETag", body = wire::Task), ReadErrors,
    (status = 404, description = "TASK_NOT_FOUND: it does not exist, or the caller may not see it", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> ApiResult<(HeaderMap, Json<wire::Task>)> {
    let task = app.tasks.task(&id, &caller).await?;
    let mut headers = HeaderMap::new();
    headers.extend(etag(task.revision).map(|tag| (header::ETAG, tag)));
    Ok((headers, Json(convert::task(*TaskView::new(&task, &caller, app.tasks.now())))))
}

/// Update a task. Earlier decisions become invalid, and a submitted task is reviewed again.
#[utoipa::path(patch, path = "/tasks/{id}", operation_id = "update_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::TaskRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), UpdateErrors, PreviewErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION, RESTORED_TASK or TOO_MANY_REQUESTS", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST or NO_QUORUM", body = wire::Problem),
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::TaskRequest>,
) -> JsonResult<wire::Task> {
    let proposal: Proposal = body.convert();
    let task = app.tasks.modify(&id, |before| proposal.change(before), &caller).await?;
    Ok(Json(convert::task(*TaskView::new(&task, &caller, app.tasks.now()))))
}

/// Delete a draft.
#[utoipa::path(delete, path = "/tasks/{id}", operation_id = "delete_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 204, description = "The draft is deleted"), DeleteErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION: the task is no longer a draft; or RESTORED_TASK", body = wire::Problem),
))]
async fn delete(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.tasks.delete(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Submit a draft for review.
#[utoipa::path(post, path = "/tasks/{id}/submit", operation_id = "submit_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 202, description = "The task, in review or approved automatically", body = wire::Task), UpdateErrors, PreviewErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION, RESTORED_TASK or IN_FLIGHT", body = wire::Problem),
    (status = 422, description = "NO_QUORUM, INVALID_REQUEST or IDEMPOTENCY_KEY_REUSED", body = wire::Problem),
))]
async fn submit(app: App, Param(id): Param, request: IdempotentPost<EmptyBody, 202>) -> ApiResult {
    let task = app.tasks.submit(&id, &request.caller).await?;
    Ok(request.respond_task(&task))
}

/// Create a new draft from a task that was rejected or failed.
#[utoipa::path(post, path = "/tasks/{id}/resubmit", operation_id = "resubmit_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 201, description = "The new draft, with the old task as `predecessor`", body = wire::Task), ActionErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION, RESTORED_TASK or IN_FLIGHT", body = wire::Problem),
))]
async fn resubmit(app: App, Param(id): Param, request: IdempotentPost<EmptyBody, 201>) -> ApiResult {
    let task = app.tasks.resubmit(&id, &request.caller).await?;
    Ok(request.respond_task(&task))
}

async fn run_action<T>(
    app: &AppState,
    id: &str,
    action: &TaskAction,
    request: &IdempotentPost<T>,
) -> ApiResult {
    let task = app.tasks.perform(id, action, &request.caller).await?;
    Ok(request.respond_task(&task))
}

/// Cancel a task before it is applied.
#[utoipa::path(post, path = "/tasks/{id}/cancel", operation_id = "cancel_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), DecisionErrors,
))]
async fn cancel(app: App, Param(id): Param, request: IdempotentPost<wire::ReasonRequest>) -> ApiResult {
    let action = TaskAction::Cancel { reason: request.body.reason.clone() };
    run_action(&app, &id, &action, &request).await
}

/// Revoke your approval before the task is applied.
#[utoipa::path(post, path = "/tasks/{id}/revoke", operation_id = "revoke_approval", tag = "tasks", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), DecisionErrors,
))]
async fn revoke(app: App, Param(id): Param, request: IdempotentPost<wire::ReasonRequest>) -> ApiResult {
    let action = TaskAction::Revoke { reason: request.body.reason.clone() };
    run_action(&app, &id, &action, &request).await
}

/// Apply an approved task before all others (admin).
#[utoipa::path(post, path = "/tasks/{id}/force-apply", operation_id = "force_apply", tag = "tasks", params(("id" = String, Path)), request_body = wire::ReasonRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), DecisionErrors,
))]
async fn force_apply(app: App, Param(id): Param, request: IdempotentPost<wire::ReasonRequest>) -> ApiResult {
    let action = TaskAction::ForceApply { reason: request.body.reason.clone() };
    run_action(&app, &id, &action, &request).await
}

/// Request an override of the policies (admin). A second administrator must confirm it within an hour.
#[utoipa::path(post, path = "/tasks/{id}/override", operation_id = "override_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::OverrideRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), DecisionErrors,
))]
async fn request_override(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::OverrideRequest>,
) -> ApiResult {
    let wire::OverrideRequest { reason, incident_ticket } = request.body.clone();
    run_action(&app, &id, &TaskAction::RequestOverride { reason, incident_ticket }, &request).await
}

/// Confirm the override that another administrator requested (admin). It must carry what an approval of the task must.
#[utoipa::path(post, path = "/tasks/{id}/override/confirm", operation_id = "confirm_override", tag = "tasks", params(("id" = String, Path)), request_body = wire::DecisionRequest, responses(
    (status = 200, description = "The updated task", body = wire::Task), DecisionErrors,
))]
async fn confirm_override(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::DecisionRequest>,
) -> ApiResult {
    let action = TaskAction::ConfirmOverride(parse_answer(&request.body)?);
    run_action(&app, &id, &action, &request).await
}

/// Archive a cancelled task at once. An administrator can restore it.
#[utoipa::path(post, path = "/tasks/{id}/archive", operation_id = "archive_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 204, description = "The task is archived"), DeleteErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION: the task is not cancelled", body = wire::Problem),
))]
async fn archive(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    let task = app.tasks.begin_archive(&id, &caller).await?;
    app.archives.archive_task(&task).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the comments on a task.
#[utoipa::path(get, path = "/tasks/{id}/comments", operation_id = "list_comments", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "All comments, oldest first", body = wire::Page<wire::Comment>), ReadErrors, TaskNotFound,
))]
async fn comments(app: App, caller: Caller, Param(id): Param) -> PageResult<wire::Comment> {
    let comments = app.tasks.comments(&id, &caller).await?;
    Ok(single_page(comments.convert()))
}

/// Comment on a task.
#[utoipa::path(post, path = "/tasks/{id}/comments", operation_id = "create_comment", tag = "tasks", params(("id" = String, Path)), request_body = wire::CommentRequest, responses(
    (status = 201, description = "The comment", body = wire::Comment), ActionErrors, TaskNotFound,
    (status = 409, description = "INVALID_TRANSITION: the task accepts no more comments; RESTORED_TASK or IN_FLIGHT", body = wire::Problem),
))]
async fn create_comment(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::CommentRequest, 201>,
) -> ApiResult {
    let comment = app.tasks.comment(&id, &request.body.text, &request.caller).await?;
    Ok(request.respond(Outcome::Comment(comment)))
}

/// Get the preview of a task: the changes that applying it would make.
#[utoipa::path(get, path = "/tasks/{id}/preview", operation_id = "task_preview", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The preview", body = wire::Preview), ReadErrors, TaskNotFound,
))]
async fn preview(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Preview> {
    let task = app.tasks.task(&id, &caller).await?;
    Ok(Json(caller.visible_part_of(&task).preview.convert()))
}

/// Get the risk of a task with its factors.
#[utoipa::path(get, path = "/tasks/{id}/risk", operation_id = "task_risk", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The risk", body = wire::Risk), ReadErrors, TaskNotFound,
))]
async fn risk(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Risk> {
    let task = app.tasks.task(&id, &caller).await?;
    let not_assessed =
        || Problem::not_found("TASK_NOT_FOUND", format!("the risk of task {id} has not been assessed"));
    convert::risk(&task.task).map(Json).ok_or_else(not_assessed)
}

/// List the approval requests of a task, including superseded ones.
#[utoipa::path(get, path = "/tasks/{id}/approvals", operation_id = "task_approvals", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "All approval requests", body = wire::Page<wire::Approval>), ReadErrors, TaskNotFound,
))]
async fn approvals(app: App, caller: Caller, Param(id): Param) -> PageResult<wire::Approval> {
    let task = app.tasks.task(&id, &caller).await?;
    let approvals = task.approvals.iter().map(|approval| convert::approval(approval, &task.task));
    Ok(single_page(approvals.collect()))
}

/// Get the review statistics of a task.
#[utoipa::path(get, path = "/tasks/{id}/stats", operation_id = "task_stats", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The statistics so far", body = wire::TaskStats), ReadErrors, TaskNotFound,
))]
async fn stats(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::TaskStats> {
    let task = app.tasks.task(&id, &caller).await?;
    let comments = app.tasks.comments(&id, &caller).await?.len();
    Ok(Json(convert::task_stats(&task, comments)))
}
