//! Pages of tasks: the list, one task, its whole preview, and the forms that act on it.

use ade_client::wire;
use ade_dashboard::{
    Changes, RefusedDecision, Review, Section, TaskFilters, TaskPage, TaskPreviewPage, TasksPage,
    TypedCommand,
};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Map, Value};

use super::form::Form;
use super::visit::{PageError, PageResult, Visit, path, with_query};
use crate::api::AppState;
use crate::http::problem::Problem;

const PAGE_LIMIT: &str = "50";
/// The newest entries and the last lines that the page of a task shows; the audit log and the API have all.
const MAX_SHOWN: &str = "200";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/tasks", get(list))
        .route("/tasks/{id}", get(show))
        .route("/tasks/{id}/preview", get(preview))
        .route("/tasks/{id}/{action}", post(act))
        .route("/tasks/{id}/override/confirm", post(confirm_override))
}

async fn list(visit: Visit) -> PageResult {
    let filters = TaskFilters {
        state: visit.param("state").to_owned(),
        risk: visit.param("risk").to_owned(),
        author: visit.param("author").trim().to_owned(),
        resource: visit.param("resource").trim().to_owned(),
        tag: visit.param("tag").trim().to_owned(),
        task_type: visit.param("type").trim().to_owned(),
    };
    let url = |base: &str, cursor: &str, limit: &str| {
        let TaskFilters { state, risk, author, resource, tag, task_type } = &filters;
        let params = [
            ("state", state.as_str()),
            ("risk", risk),
            ("author", author),
            ("resource", resource),
            ("tag", tag),
            ("type", task_type),
            ("cursor", cursor),
            ("limit", limit),
        ];
        with_query(base, &params)
    };
    let api_path = url("/tasks", visit.param("cursor"), PAGE_LIMIT);
    let (shell, found) = tokio::join!(
        visit.shell(Section::Tasks, "Tasks", "task"),
        visit.get::<wire::Page<wire::Task>>(&api_path)
    );
    let (tasks, cursor, problem) = match found {
        Ok(page) => (page.items, page.next_cursor, None),
        // A filter in a wrong form.
        Err(problem) if problem.status == 422 => (Vec::new(), None, Some(problem)),
        Err(problem) => return Err(problem.into()),
    };
    let next = cursor.map(|cursor| url("/tasks", &cursor, ""));
    let first = (!visit.param("cursor").is_empty()).then(|| url("/tasks", "", ""));
    let page = TasksPage { shell: shell?, filters, tasks, first, next, problem };
    Ok(visit.render(&page, &page.shell))
}

/// A task with everything that its reviewers see. `request_id` selects the approval request to decide about.
pub(super) async fn load_review(
    visit: &Visit,
    task_id: &str,
    request_id: Option<&str>,
    back: &str,
) -> Result<Review, wire::Problem> {
    let (task, approvals) = (path(&["tasks", task_id]), path(&["tasks", task_id, "approvals"]));
    let (task, approvals) = tokio::try_join!(
        visit.get::<wire::Task>(&task),
        visit.get::<wire::Page<wire::Approval>>(&approvals)
    )?;
    let approvals = approvals.items;
    let user = &visit.viewer().user_id;
    // A decision can be changed until the task is decided, so requests that were answered count too.
    let is_open = |approval: &&wire::Approval| {
        use wire::ApprovalStatus as Status;
        approval.reviewer_id == *user
            && matches!(
                approval.status,
                Status::Pending | Status::Approved | Status::Rejected | Status::ChangesRequested
            )
    };
    let request = match request_id {
        Some(id) => approvals.iter().find(|approval| approval.approval_id == id).filter(is_open),
        None => None,
    };
    // Who opens the request of somebody else may be asked, too.
    let request = request.or_else(|| approvals.iter().find(is_open));
    Ok(Review {
        request: request.cloned(),
        task,
        approvals,
        viewer: visit.viewer().clone(),
        decision: RefusedDecision::default(),
        back: back.to_owned(),
        is_whole: false,
        changes: Changes::default(),
    })
}

async fn load_page(visit: &Visit, id: &str) -> PageResult<TaskPage> {
    let back = path(&["tasks", id]);
    let audit = with_query("/audit", &[("task", id), ("order", "newest"), ("limit", MAX_SHOWN)]);
    let comments = path(&["tasks", id, "comments"]);
    let logs = with_query(&path(&["tasks", id, "logs"]), &[("tail", MAX_SHOWN)]);
    let (review, shell) = tokio::join!(
        load_review(visit, id, None, &back),
        visit.shell(Section::Tasks, "Task", "task,approval")
    );
    let (review, mut shell) = (review?, shell?);
    let (comments, audit, logs) = tokio::try_join!(
        visit.get_if_allowed::<wire::Page<wire::Comment>>(&comments),
        visit.get_if_allowed::<wire::Page<wire::AuditEntry>>(&audit),
        visit.get_if_allowed::<wire::Page<wire::LogLine>>(&logs),
    )?;
    shell.title = review.task.config.description.lines().next().unwrap_or("Task").chars().take(80).collect();
    shell.task_id = Some(review.task.task_id.clone());
    Ok(TaskPage {
        shell,
        review,
        comments: comments.map(|page| page.items).unwrap_or_default(),
        audit: audit.map(|page| page.items).unwrap_or_default(),
        logs: logs.map(|page| page.items).unwrap_or_default(),
        problem: None,
        typed: TypedCommand::default(),
    })
}

async fn show(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = load_page(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn preview(visit: Visit, Path(id): Path<String>) -> PageResult {
    let back = path(&["tasks", &id, "preview"]);
    let (review, shell) = tokio::join!(
        load_review(&visit, &id, None, &back),
        visit.shell(Section::Tasks, "Preview", "task,approval")
    );
    let mut shell = shell?;
    shell.task_id = Some(id);
    let page = TaskPreviewPage { shell, review: Review { is_whole: true, ..review? } };
    Ok(visit.render(&page, &page.shell))
}

/// Commands that a form of the page gives: the segment of its path, and the notice afterwards.
const COMMANDS: [(&str, &str); 12] = [
    ("submit", "submitted"),
    ("resubmit", "resubmitted"),
    ("cancel", "cancelled"),
    ("revoke", "revoked"),
    ("force-apply", "forced"),
    ("override", "override"),
    ("stop", "stopping"),
    ("rollback", "rollback"),
    ("archive", "saved"),
    ("comments", "commented"),
    ("override/confirm", "overridden"),
    ("delete", "deleted"),
];

async fn act(visit: Visit, Path((id, action)): Path<(String, String)>, form: Form) -> PageResult {
    command(&visit, &id, &action, &form).await
}

async fn confirm_override(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    command(&visit, &id, "override/confirm", &form).await
}

async fn command(visit: &Visit, id: &str, action: &str, form: &Form) -> PageResult {
    let Some((_, notice)) = COMMANDS.iter().find(|(known, _)| *known == action) else {
        return Err(PageError::from(Problem::not_found("NOT_FOUND", "a task has no such form")));
    };
    let task = path(&["tasks", id]);
    let fields: &[&str] = match action {
        "comments" => &["text"],
        "override" => &["reason", "incident_ticket"],
        "override/confirm" => &["reason", "digest", "scope_digest", "confirm"],
        "submit" | "resubmit" | "archive" | "delete" => &[],
        _ => &["reason"],
    };
    let body = form.object(fields);
    let sent = match action {
        "delete" => visit.send::<Value>(Method::DELETE, &task, form, &Map::new()).await,
        _ => visit.post(&format!("{task}/{action}"), form, &body).await,
    };
    match sent {
        Ok(_) if action == "delete" => Ok(visit.done("/tasks", notice)),
        // It created another task.
        Ok(Value::Object(created)) if action == "resubmit" => {
            let new = created.get("task_id").and_then(Value::as_str).unwrap_or(id);
            Ok(visit.done(&path(&["tasks", new]), notice))
        }
        Ok(_) => Ok(visit.done(&task, notice)),
        Err(problem) => refused(visit, id, action, &body, problem).await,
    }
}

/// The page with the reason, and what was typed into the form of the command.
async fn refused(
    visit: &Visit,
    id: &str,
    action: &str,
    body: &Map<String, Value>,
    problem: wire::Problem,
) -> PageResult<Response> {
    let page = load_page(visit, id).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let fields = body.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let typed = TypedCommand { action: action.to_owned(), fields };
    let page = TaskPage { problem: Some(problem.clone()), typed, ..page };
    Ok(visit.refused(&page, &problem))
}
