//! Tasks: proposed, looked at, submitted, changed, given up.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use ade_app::Outcome;
use ade_app::tasks::{Proposal, SaidPreview, TaskAction};
use ade_client::wire;
use ade_domain::task::{Preview, State as TaskState};
use ade_store::database::{StoredTask, TaskFilter};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, Guarded, OfBody, OfChange, OfDecision, OfMatch, OfPost};
use super::convert::{self, reviews as told};
use super::extract::{Body, PageParams, Params, Segment};
use super::{App, Nothing};
use crate::caller::Caller;
use crate::posted::{Posted, etag};
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, remove))
        .routes(routes!(submit))
        .routes(routes!(resubmit))
        .routes(routes!(cancel))
        .routes(routes!(revoke))
        .routes(routes!(force_apply))
        .routes(routes!(ask_override))
        .routes(routes!(confirm_override))
        .routes(routes!(comments, comment))
        .routes(routes!(preview))
        .routes(routes!(risk))
        .routes(routes!(approvals))
        .routes(routes!(stats))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// In this state, such as `REVIEWING`.
    #[param(value_type = Option<TaskState>)]
    state: Option<String>,
    /// By this author.
    author: Option<String>,
    /// About this resource, as `type:id`.
    resource: Option<String>,
    /// With this tag.
    tag: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Tasks that the caller may see
#[utoipa::path(get, path = "/tasks", operation_id = "list_tasks", tag = "tasks", params(ListParams), responses(
    (status = 200, description = "A page of tasks, the newest first", body = wire::Page<wire::Task>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Answer<Json<wire::Page<wire::Task>>> {
    let ListParams { state, author, resource, tag, task_type, limit, cursor } = params;
    let state = match state {
        None => None,
        Some(word) => Some(state_named(&word)?),
    };
    let page = PageParams::of(limit, cursor);
    let limit = page.limit()?;
    let filter = TaskFilter { state, author, resource, tag, task_type, visible_to: None };
    let found = app.reviews.tasks(filter, page.cursor_id()?, page.one_more()?, &caller).await?;
    let now = app.reviews.now();
    let tell = |task: &StoredTask| told::task(task, &caller, now);
    Ok(Json(convert::page(found, limit, |task: &StoredTask| task.task_id.clone(), tell)))
}

fn state_named(word: &str) -> Answer<TaskState> {
    let word = serde_json::Value::String(word.to_owned());
    serde_json::from_value(word)
        .map_err(|_| Problem::invalid_at("?state", "is not a state of tasks, such as REVIEWING"))
}

pub(super) fn proposal(body: wire::TaskRequest) -> Proposal {
    let said = |preview: wire::PreviewRequest| {
        let wire::PreviewRequest { changes, warnings, errors } = preview;
        SaidPreview { changes, warnings, errors }
    };
    Proposal {
        task_type: body.task_type,
        version: body.version,
        description: body.description,
        executor: body.executor,
        parameters: body.parameters,
        resources: body.resources,
        rollback_strategy: body.rollback_strategy,
        timeout_seconds: body.timeout_seconds,
        priority: body.priority,
        team: body.team,
        ticket_ref: body.ticket_ref,
        tags: body.tags,
        lineage: body.lineage,
        preview: body.preview.map(said),
    }
}

/// Propose a task
#[utoipa::path(post, path = "/tasks", operation_id = "create_task", tag = "tasks", request_body = wire::TaskRequest, responses(
    (status = 201, description = "A draft, with its risk and its preview", body = wire::Task),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn create(State(app): State<App>, posted: Posted<wire::TaskRequest, 201>) -> Answer<Response> {
    let made = app.reviews.propose(proposal(posted.body.clone()), &posted.caller).await?;
    Ok(posted.answer(Outcome::Task(&made)))
}

/// One task
#[utoipa::path(get, path = "/tasks/{id}", operation_id = "show_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The task, with its revision as ETag", body = wire::Task),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND: there is none, or the caller may not see it", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<(HeaderMap, Json<wire::Task>)> {
    let task = app.reviews.task(&id, &caller).await?;
    let mut headers = HeaderMap::new();
    headers.extend(etag(task.revision).map(|tag| (header::ETAG, tag)));
    Ok((headers, Json(told::task(&task, &caller, app.reviews.now()))))
}

/// Change a task: what was said about it before does not count any more
#[utoipa::path(patch, path = "/tasks/{id}", operation_id = "update_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::TaskRequest, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "INVALID_TRANSITION or TOO_MANY_REQUESTS", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST or NO_QUORUM", body = wire::Problem),
))]
async fn update(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::TaskRequest>,
) -> Answer<Json<wire::Task>> {
    let proposal = proposal(body);
    let changed = app.reviews.modify(&id, |before| proposal.change(before, &caller), &caller).await?;
    Ok(Json(told::task(&changed, &caller, app.reviews.now())))
}

/// Delete a draft
#[utoipa::path(delete, path = "/tasks/{id}", operation_id = "delete_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "INVALID_TRANSITION: it is no draft any more", body = wire::Problem),
))]
async fn remove(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<StatusCode> {
    app.reviews.delete(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Want a draft decided
#[utoipa::path(post, path = "/tasks/{id}/submit", operation_id = "submit_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 202, description = "In review, or approved when nobody must be asked", body = wire::Task),
    OfBody,
    Always,
    Guarded,
    OfPost,
    OfMatch,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "INVALID_TRANSITION or IN_FLIGHT", body = wire::Problem),
    (status = 422, description = "NO_QUORUM, INVALID_REQUEST or IDEMPOTENCY_KEY_REUSED", body = wire::Problem),
))]
async fn submit(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<Nothing, 202>,
) -> Answer<Response> {
    let task = app.reviews.submit(&id, &posted.caller).await?;
    Ok(posted.answer(Outcome::Task(&task)))
}

/// A new draft of a task that was rejected or failed
#[utoipa::path(post, path = "/tasks/{id}/resubmit", operation_id = "resubmit_task", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 201, description = "The new draft, which names its predecessor", body = wire::Task),
    OfBody,
    Always,
    Guarded,
    OfPost,
    OfMatch,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "INVALID_TRANSITION or IN_FLIGHT", body = wire::Problem),
))]
async fn resubmit(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<Nothing, 201>,
) -> Answer<Response> {
    let task = app.reviews.resubmit(&id, &posted.caller).await?;
    Ok(posted.answer(Outcome::Task(&task)))
}

async fn act<T>(app: &App, id: &str, deed: &TaskAction, posted: &Posted<T>) -> Answer<Response> {
    let task = app.reviews.act(id, deed, &posted.caller).await?;
    Ok(posted.answer(Outcome::Task(&task)))
}

/// Give a task up before it is applied
#[utoipa::path(post, path = "/tasks/{id}/cancel", operation_id = "cancel_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::Reason, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn cancel(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::Reason>,
) -> Answer<Response> {
    act(&app, &id, &TaskAction::Cancel { reason: posted.body.reason.clone() }, &posted).await
}

/// Take an approval back before the task is applied
#[utoipa::path(post, path = "/tasks/{id}/revoke", operation_id = "revoke_approval", tag = "tasks", params(("id" = String, Path)), request_body = wire::Reason, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn revoke(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::Reason>,
) -> Answer<Response> {
    act(&app, &id, &TaskAction::Revoke { reason: posted.body.reason.clone() }, &posted).await
}

/// Put an approved task before all others (admin)
#[utoipa::path(post, path = "/tasks/{id}/force-apply", operation_id = "force_apply", tag = "tasks", params(("id" = String, Path)), request_body = wire::Reason, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn force_apply(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::Reason>,
) -> Answer<Response> {
    act(&app, &id, &TaskAction::ForceApply { reason: posted.body.reason.clone() }, &posted).await
}

/// Ask for a decision past the policies (admin); a second administrator confirms it within an hour
#[utoipa::path(post, path = "/tasks/{id}/override", operation_id = "override_task", tag = "tasks", params(("id" = String, Path)), request_body = wire::OverrideRequest, responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn ask_override(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::OverrideRequest>,
) -> Answer<Response> {
    let wire::OverrideRequest { reason, incident_ticket } = posted.body.clone();
    act(&app, &id, &TaskAction::AskOverride { reason, incident_ticket }, &posted).await
}

/// Agree to an override that another administrator asked for
#[utoipa::path(post, path = "/tasks/{id}/override/confirm", operation_id = "confirm_override", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The task as it is now", body = wire::Task),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn confirm_override(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<Nothing>,
) -> Answer<Response> {
    act(&app, &id, &TaskAction::ConfirmOverride, &posted).await
}

/// What was said about a task
#[utoipa::path(get, path = "/tasks/{id}/comments", operation_id = "list_comments", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "In order", body = wire::Page<wire::Comment>),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn comments(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Page<wire::Comment>>> {
    let found = app.reviews.comments(&id, &caller).await?;
    Ok(Json(wire::Page { items: found.iter().map(told::comment).collect(), next_cursor: None }))
}

/// Say something about a task
#[utoipa::path(post, path = "/tasks/{id}/comments", operation_id = "create_comment", tag = "tasks", params(("id" = String, Path)), request_body = wire::CommentRequest, responses(
    (status = 201, description = "Said", body = wire::Comment),
    OfBody,
    Always,
    Guarded,
    OfPost,
    OfMatch,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "INVALID_TRANSITION: it is not discussed any more; or IN_FLIGHT", body = wire::Problem),
))]
async fn comment(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::CommentRequest, 201>,
) -> Answer<Response> {
    let made = app.reviews.comment(&id, &posted.body.text, &posted.caller).await?;
    Ok(posted.answer(Outcome::Comment(&made)))
}

/// What a task would change
#[utoipa::path(get, path = "/tasks/{id}/preview", operation_id = "task_preview", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "As far as that is known before", body = Preview),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn preview(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<Preview>> {
    Ok(Json(app.reviews.task(&id, &caller).await?.task.preview))
}

/// How dangerous a task is, and why
#[utoipa::path(get, path = "/tasks/{id}/risk", operation_id = "task_risk", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "The score and what it is made of", body = wire::Risk),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn risk(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Risk>> {
    let task = app.reviews.task(&id, &caller).await?;
    let none = || Problem::new(StatusCode::NOT_FOUND, "TASK_NOT_FOUND", "this task was never assessed");
    told::risk(&task.task).map(Json).ok_or_else(none)
}

/// Who is asked about a task, and what they said
#[utoipa::path(get, path = "/tasks/{id}/approvals", operation_id = "task_approvals", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "Every request, also those that do not count any more", body = wire::Page<wire::Approval>),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn approvals(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Page<wire::Approval>>> {
    let task = app.reviews.task(&id, &caller).await?;
    let items = task.approvals.iter().map(|one| told::approval(one, &task.task)).collect();
    Ok(Json(wire::Page { items, next_cursor: None }))
}

/// How long a task took on its way
#[utoipa::path(get, path = "/tasks/{id}/stats", operation_id = "task_stats", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, description = "So far", body = wire::TaskStats),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn stats(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::TaskStats>> {
    let task = app.reviews.task(&id, &caller).await?;
    let comments = app.reviews.comments(&id, &caller).await?.len();
    Ok(Json(told::task_stats(&task, comments)))
}
