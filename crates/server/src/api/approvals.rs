//! Requests to reviewers: listed, answered, handed on, one by one or many at once.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use ade_app::Outcome;
use ade_app::tasks::{Batch, Response as Said, Whose};
use ade_client::wire;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::UserId;
use ade_domain::task::Digest;
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::App;
use super::answers::{Always, Guarded, OfBody, OfDecision, OfPost};
use super::convert::{self, reviews as told};
use super::extract::{PageParams, Params, Segment};
use crate::caller::Caller;
use crate::posted::Posted;
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(batch))
        .routes(routes!(show))
        .routes(routes!(approve))
        .routes(routes!(reject))
        .routes(routes!(request_changes))
        .routes(routes!(delegate))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// To this person; `me`, unless said, `*` for everybody. Others' requests are for administrators and auditors.
    reviewer: Option<String>,
    /// In this status, such as `PENDING`.
    #[param(value_type = Option<ApprovalStatus>)]
    status: Option<String>,
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Requests, the highest score first
#[utoipa::path(get, path = "/approvals", operation_id = "list_approvals", tag = "approvals", params(ListParams), responses(
    (status = 200, description = "A page of requests", body = wire::Page<wire::Approval>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Answer<Json<wire::Page<wire::Approval>>> {
    let ListParams { reviewer, status, limit, cursor } = params;
    let page = PageParams::of(limit, cursor);
    let limit = page.limit()?;
    let status: Option<ApprovalStatus> = match status {
        None => None,
        Some(word) => {
            let known = serde_json::from_value(serde_json::Value::String(word));
            Some(known.map_err(|_| {
                Problem::invalid_at("?status", "is not a status of requests, such as PENDING")
            })?)
        }
    };
    let whose = match reviewer.as_deref() {
        None | Some("me") => Whose::Own,
        Some("*") => Whose::Anybody,
        Some(other) => Whose::Of(UserId::new(other)),
    };
    let after = page.cursor.as_deref().filter(|cursor| !cursor.is_empty()).map(after).transpose()?;
    let found = app.reviews.approvals(&whose, status, after, page.one_more()?, &caller).await?;
    let cursor = |one: &ade_domain::approval::Approval| format!("{}-{}", one.score, one.approval_id);
    let about = app.reviews.descriptions(&found).await?;
    let tell = |one: &ade_domain::approval::Approval| {
        told::listed_approval(one, about.get(&one.task_id).map_or("", String::as_str), None)
    };
    Ok(Json(convert::page(found, limit, cursor, tell)))
}

/// Behind which request a page begins: its score and its id.
fn after(cursor: &str) -> Answer<(u32, String)> {
    let parts = cursor.split_once('-').and_then(|(score, id)| Some((score.parse().ok()?, id)));
    let parts = parts.filter(|(_, id)| Uuid::parse_str(id).is_ok());
    let wrong = || Problem::invalid_at("?cursor", "is not a cursor of this list");
    parts.map(|(score, id)| (score, id.to_owned())).ok_or_else(wrong)
}

/// One request
#[utoipa::path(get, path = "/approvals/{id}", operation_id = "show_approval", tag = "approvals", params(("id" = String, Path)), responses(
    (status = 200, description = "The request", body = wire::Approval),
    Always,
    Guarded,
    (status = 404, description = "APPROVAL_NOT_FOUND: there is none, or the caller may not see its task", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Approval>> {
    let (task, approval) = app.reviews.approval(&id, &caller).await?;
    Ok(Json(told::approval(&approval, &task.task)))
}

async fn respond(
    app: &App,
    id: &str,
    action: DecisionKind,
    posted: &Posted<wire::ResponseRequest>,
) -> Answer<Response> {
    let wire::ResponseRequest { reason, digest } = posted.body.clone();
    let digest: Option<Digest> = match digest.map(|digest| digest.parse()) {
        None => None,
        Some(Ok(digest)) => Some(digest),
        Some(Err(_)) => return Err(Problem::invalid_at("/digest", "must be 64 hexadecimal digits")),
    };
    let task = app.reviews.respond(id, &Said { action, reason, digest }, &posted.caller).await?;
    Ok(posted.answer(Outcome::Approval(&task, id)))
}

/// Yes
#[utoipa::path(post, path = "/approvals/{id}/approve", operation_id = "approve", tag = "approvals", params(("id" = String, Path)), request_body = wire::ResponseRequest, responses(
    (status = 200, description = "The request as it is now, with the state of its task", body = wire::Approval),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn approve(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::ResponseRequest>,
) -> Answer<Response> {
    respond(&app, &id, DecisionKind::Approve, &posted).await
}

/// No; a reason is needed
#[utoipa::path(post, path = "/approvals/{id}/reject", operation_id = "reject", tag = "approvals", params(("id" = String, Path)), request_body = wire::ResponseRequest, responses(
    (status = 200, description = "The request as it is now, with the state of its task", body = wire::Approval),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn reject(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::ResponseRequest>,
) -> Answer<Response> {
    respond(&app, &id, DecisionKind::Reject, &posted).await
}

/// Not like this; a reason is needed, and nothing is approved until the author changes it
#[utoipa::path(post, path = "/approvals/{id}/request-changes", operation_id = "request_changes", tag = "approvals", params(("id" = String, Path)), request_body = wire::ResponseRequest, responses(
    (status = 200, description = "The request as it is now, with the state of its task", body = wire::Approval),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn request_changes(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::ResponseRequest>,
) -> Answer<Response> {
    respond(&app, &id, DecisionKind::RequestChanges, &posted).await
}

/// Hand one request on
#[utoipa::path(post, path = "/approvals/{id}/delegate", operation_id = "delegate_approval", tag = "approvals", params(("id" = String, Path)), request_body = wire::DelegateRequest, responses(
    (status = 200, description = "The request as it is now; whom it was handed to has a new one", body = wire::Approval),
    OfBody, Always, Guarded, OfPost, OfDecision,
))]
async fn delegate(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::DelegateRequest>,
) -> Answer<Response> {
    let to = UserId::new(posted.body.to.clone());
    let task = app.reviews.delegate(&id, &to, &posted.caller).await?;
    Ok(posted.answer(Outcome::Approval(&task, &id)))
}

/// The same answer to many requests: all of them, or none
#[utoipa::path(post, path = "/approvals/batch", operation_id = "answer_batch", tag = "approvals", request_body = wire::BatchRequest, responses(
    (status = 200, description = "Each request as it is now", body = wire::BatchAnswer),
    OfBody, Always, Guarded, OfPost,
    (status = 403, description = "FEATURE_DISABLED, FORBIDDEN, SCOPE_MISSING or CSRF", body = wire::Problem),
    (status = 409, description = "BATCH_REFUSED with the problem of each item, or IN_FLIGHT", body = wire::Problem),
))]
async fn batch(State(app): State<App>, posted: Posted<wire::BatchRequest>) -> Answer<Response> {
    let wire::BatchRequest { approval_ids, action, reason, options } = posted.body.clone();
    let response = Said { action, reason, digest: None };
    let batch = Batch {
        approval_ids,
        response,
        skip_validation: options.skip_validation,
        apply_immediately: options.apply_immediately,
    };
    let tasks = app.reviews.respond_to_all(&batch, &posted.caller).await?;
    Ok(posted.answer(Outcome::Batch(&batch.approval_ids, &tasks)))
}
