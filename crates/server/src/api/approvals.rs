//! Approval routes: list, approve, reject, request changes, delegate; one request or a batch.

use ade_app::ApprovalView;
use ade_app::tasks::{ApprovalOwner, BatchItem, DecisionBatch, DecisionInput as ReviewDecision};
use ade_domain::approval::{Approval, DecisionKind};
use ade_domain::people::UserId;
use ade_domain::task::{Answer, Digest};
use uuid::Uuid;

use super::prelude::*;
use crate::http::paging::parse_word;

pub(super) fn routes() -> OpenApiRouter<AppState> {
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
    /// Reviewer: a user id, `me`, or `*` for all. Only administrators and auditors can name others. Without it, the requests of
    /// all tasks that the caller may see are listed.
    reviewer: Option<String>,
    /// Status, such as `PENDING`.
    #[param(value_type = Option<wire::ApprovalStatus>)]
    status: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List approval requests, highest score first.
#[utoipa::path(get, path = "/approvals", operation_id = "list_approvals", tag = "approvals", params(ListParams), responses(
    (status = 200, description = "A page of approval requests", body = wire::Page<wire::Approval>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(params): Params<ListParams>) -> PageResult<wire::Approval> {
    let ListParams { reviewer, status, limit, cursor } = params;
    let page = PageParams::new(limit, cursor);
    let fetch_limit = page.fetch_limit_u32()?;
    let status: Option<wire::ApprovalStatus> =
        parse_word("?status", status, "an approval status such as PENDING")?;
    let owner = match reviewer.as_deref() {
        None => ApprovalOwner::Visible,
        Some("me") => ApprovalOwner::Caller,
        Some("*") => ApprovalOwner::Anyone,
        Some(other) => ApprovalOwner::User(UserId::new(other)),
    };
    let after = page.parse_cursor(parse_cursor)?;
    let approvals = app.tasks.approvals(&owner, status.convert(), after, fetch_limit, &caller).await?;
    let summaries = app.tasks.summaries(&approvals).await?;
    let cursor = |approval: &Approval| format!("{}-{}", approval.score, approval.approval_id);
    let convert = |approval: &Approval| convert::listed_approval(approval, summaries.get(&approval.task_id));
    page.page(approvals, cursor, convert)
}

/// A cursor is the score and the id of the last approval request, as `SCORE-ID`.
fn parse_cursor(cursor: &str) -> Option<(u32, String)> {
    let (score, id) = cursor.split_once('-')?;
    Uuid::parse_str(id).ok()?;
    Some((score.parse().ok()?, id.to_owned()))
}

/// Get an approval request.
#[utoipa::path(get, path = "/approvals/{id}", operation_id = "show_approval", tag = "approvals", params(("id" = String, Path)), responses(
    (status = 200, description = "The approval request", body = wire::Approval), ReadErrors,
    (status = 404, description = "APPROVAL_NOT_FOUND: it does not exist, or the caller may not see its task", body = wire::Problem),
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Approval> {
    let (task, approval) = app.tasks.approval(&id, &caller).await?;
    Ok(Json(convert::approval(&approval, &task.task)))
}

pub(super) fn parse_answer(request: &wire::DecisionRequest) -> ApiResult<Answer> {
    let wire::DecisionRequest { reason, digest, scope_digest, confirm } = request.clone();
    let parse = |path: &str, digest: Option<String>| {
        let invalid = |_| Problem::invalid_at(path, "must be 64 hexadecimal digits");
        digest.map(|digest| digest.parse::<Digest>()).transpose().map_err(invalid)
    };
    let (digest, scope_digest) = (parse("/digest", digest)?, parse("/scope_digest", scope_digest)?);
    Ok(Answer { reason, digest, scope_digest, confirm, revision: None })
}

async fn decide(
    app: &AppState,
    id: &str,
    action: DecisionKind,
    request: &IdempotentPost<wire::DecisionRequest>,
) -> ApiResult {
    let decision = ReviewDecision { action, answer: parse_answer(&request.body)? };
    let task = app.tasks.decide(id, &decision, &request.caller).await?;
    Ok(request.respond(Outcome::Approval(ApprovalView::find(&task, id))))
}

/// Approve a task. The more risky it is, the more the request must carry: `approve_needs` of the task says what.
#[utoipa::path(post, path = "/approvals/{id}/approve", operation_id = "approve", tag = "approvals", params(("id" = String, Path)), request_body = wire::DecisionRequest, responses(
    (status = 200, description = "The updated approval request, with the state of its task", body = wire::Approval), DecisionErrors,
))]
async fn approve(app: App, Param(id): Param, request: IdempotentPost<wire::DecisionRequest>) -> ApiResult {
    decide(&app, &id, DecisionKind::Approve, &request).await
}

/// Reject a task. A reason is required.
#[utoipa::path(post, path = "/approvals/{id}/reject", operation_id = "reject", tag = "approvals", params(("id" = String, Path)), request_body = wire::DecisionRequest, responses(
    (status = 200, description = "The updated approval request, with the state of its task", body = wire::Approval), DecisionErrors,
))]
async fn reject(app: App, Param(id): Param, request: IdempotentPost<wire::DecisionRequest>) -> ApiResult {
    decide(&app, &id, DecisionKind::Reject, &request).await
}

/// Request changes. A reason is required; the task cannot be approved until its author changes it.
#[utoipa::path(post, path = "/approvals/{id}/request-changes", operation_id = "request_changes", tag = "approvals", params(("id" = String, Path)), request_body = wire::DecisionRequest, responses(
    (status = 200, description = "The updated approval request, with the state of its task", body = wire::Approval), DecisionErrors,
))]
async fn request_changes(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::DecisionRequest>,
) -> ApiResult {
    decide(&app, &id, DecisionKind::RequestChanges, &request).await
}

/// Delegate one approval request to another reviewer.
#[utoipa::path(post, path = "/approvals/{id}/delegate", operation_id = "delegate_approval", tag = "approvals", params(("id" = String, Path)), request_body = wire::DelegateRequest, responses(
    (status = 200, description = "The delegated approval request; the delegate gets a new one", body = wire::Approval), DecisionErrors,
))]
async fn delegate(app: App, Param(id): Param, request: IdempotentPost<wire::DelegateRequest>) -> ApiResult {
    let to = UserId::new(request.body.to.clone());
    let task = app.tasks.delegate(&id, &to, &request.caller).await?;
    Ok(request.respond(Outcome::Approval(ApprovalView::find(&task, &id))))
}

/// Make the same decision on many approval requests: all succeed, or none is changed.
#[utoipa::path(post, path = "/approvals/batch", operation_id = "answer_batch", tag = "approvals", request_body = wire::BatchRequest, responses(
    (status = 200, description = "The updated approval requests", body = wire::BatchResponse), PostErrors,
    (status = 403, description = "FEATURE_DISABLED, FORBIDDEN, SCOPE_MISSING, CSRF, REAUTHENTICATE or PASSWORD_CHANGE_REQUIRED", body = wire::Problem),
    (status = 409, description = "BATCH_REFUSED with the problem of each refused item, such as NOT_IN_BATCH or FRICTION_REQUIRED, or IN_FLIGHT", body = wire::Problem),
))]
async fn batch(app: App, request: IdempotentPost<wire::BatchRequest>) -> ApiResult {
    let wire::BatchRequest { items: with_digests, approval_ids, action, reason, options } =
        request.body.clone();
    if !with_digests.is_empty() && !approval_ids.is_empty() {
        return Err(Problem::invalid_at("/approval_ids", "cannot be given together with items"));
    }
    let mut items: Vec<BatchItem> = approval_ids
        .into_iter()
        .map(|approval_id| BatchItem { approval_id, digest: None, scope_digest: None })
        .collect();
    for (index, wire::BatchItem { approval_id, digest, scope_digest }) in with_digests.into_iter().enumerate()
    {
        let parse = |field: &str, digest: &str| {
            let path = format!("/items/{index}/{field}");
            let invalid = |_| Problem::invalid_at(&path, "must be 64 hexadecimal digits");
            digest.parse::<Digest>().map_err(invalid)
        };
        let digest = Some(parse("digest", &digest)?);
        let scope_digest = scope_digest.map(|digest| parse("scope_digest", &digest)).transpose()?;
        items.push(BatchItem { approval_id, digest, scope_digest });
    }
    let batch = DecisionBatch {
        items,
        action: action.convert(),
        reason,
        skip_validation: options.skip_validation,
        apply_immediately: options.apply_immediately,
    };
    let tasks = app.tasks.decide_batch(&batch, &request.caller).await?;
    Ok(request.respond(Outcome::Batch(ApprovalView::find_all(&tasks, batch.approval_ids()))))
}
