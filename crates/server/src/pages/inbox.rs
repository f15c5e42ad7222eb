//! The inbox, decisions about approval requests, and the same decision about many.

use std::collections::BTreeSet;

use ade_client::wire;
use ade_dashboard::{BatchPage, BatchReview, InboxPage, InboxView, RefusedDecision, Review, Section};
use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::form::Form;
use super::tasks::load_review;
use super::visit::{
    PageError, PageResult, REAUTHENTICATE, REAUTHENTICATE_LINK, Visit, path, safe_next, with_query,
};
use crate::api::AppState;
use crate::http::problem::Problem;

const PAGE_LIMIT: &str = "50";
/// Requests that are reviewed together on one page.
const MAX_BATCH: usize = 50;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/inbox", get(show))
        .route("/inbox/batch", get(review_batch).post(decide_batch))
        .route("/approvals/{id}/{action}", post(decide))
}

type Requests = wire::Page<wire::Approval>;

async fn requests(visit: &Visit, view: InboxView, cursor: &str) -> Result<Requests, wire::Problem> {
    let params = match view {
        InboxView::Mine => [("reviewer", "me"), ("status", "PENDING")],
        InboxView::Others => [("reviewer", ""), ("status", "PENDING")],
        InboxView::Decided => [("reviewer", "me"), ("status", "")],
    };
    let query = [params.as_slice(), &[("cursor", cursor), ("limit", PAGE_LIMIT)]].concat();
    let page = visit.get_if_allowed::<Requests>(&with_query("/approvals", &query)).await?;
    let mut page = page.unwrap_or(Requests { items: Vec::new(), next_cursor: None });
    let own = &visit.viewer().user_id;
    match view {
        InboxView::Mine => {}
        InboxView::Others => page.items.retain(|request| request.reviewer_id != *own),
        InboxView::Decided => page.items.retain(|request| request.responded_at.is_some()),
    }
    Ok(page)
}

/// `at` was chosen in the list; `open` is what the page showed before, and still shows.
async fn load(visit: &Visit, view: InboxView, cursor: &str) -> PageResult<InboxPage> {
    let (at, open) = (visit.param("at"), visit.param("open"));
    let (shell, found) =
        tokio::join!(visit.shell(Section::Inbox, "Inbox", "approval,task"), requests(visit, view, cursor));
    let (shell, found) = (shell?, found?);
    let is_chosen = !at.is_empty();
    let at = if is_chosen { at } else { open };
    // The open request may be on another page, or not be in the list any more.
    let open = match found.items.iter().find(|request| request.approval_id == at) {
        Some(request) => Some((request.task_id.clone(), request.approval_id.clone())),
        None if !at.is_empty() => {
            let found = visit.get_if_allowed::<wire::Approval>(&path(&["approvals", at])).await?;
            found.map(|request| (request.task_id, request.approval_id))
        }
        None => found.items.first().map(|request| (request.task_id.clone(), request.approval_id.clone())),
    };
    let (review, problem) = match &open {
        None => (None, None),
        Some((task_id, approval_id)) => {
            let back = with_query("/inbox", &[("view", view.name()), ("at", approval_id)]);
            match load_review(visit, task_id, Some(approval_id), &back).await {
                Ok(review) => (Some(review), None),
                Err(problem) => (None, Some(problem)),
            }
        }
    };
    let waiting_for_others = if found.items.is_empty() && view == InboxView::Mine {
        let others = requests(visit, InboxView::Others, "").await?.items;
        others.into_iter().map(|request| request.task_id).collect::<BTreeSet<_>>().len()
    } else {
        0
    };
    Ok(InboxPage {
        shell,
        view,
        requests: found.items,
        next_cursor: found.next_cursor,
        waiting_for_others,
        review,
        at: open.map_or_else(String::new, |(_, id)| id),
        is_chosen,
        problem,
    })
}

async fn show(visit: Visit) -> PageResult {
    let view = InboxView::named(visit.param("view"));
    let page = load(&visit, view, visit.param("cursor")).await?;
    Ok(visit.render(&page, &page.shell))
}

/// What a decision does: its path in the API, and the notice afterwards.
const ACTIONS: [(&str, &str); 4] = [
    ("approve", "approved"),
    ("reject", "rejected"),
    ("request-changes", "changes"),
    ("delegate", "delegated"),
];

/// Decides about one request. If the API asks for the password, the form has it.
async fn decide(visit: Visit, Path((id, action)): Path<(String, String)>, form: Form) -> PageResult {
    let Some((action, notice)) = ACTIONS.iter().find(|(known, _)| *known == action) else {
        return Err(PageError::from(Problem::not_found("NOT_FOUND", "an approval request has no such form")));
    };
    let back = safe_next(form.get("back"));
    match send_decision(&visit, &id, action, &form).await {
        // The next request of the inbox is open afterwards.
        Ok(_) if back.starts_with("/inbox") => Ok(visit.done("/inbox", notice)),
        Ok(_) => Ok(visit.done(&path(&["tasks", form.get("task_id")]), notice)),
        Err(mut problem) => {
            // The form of a decision has a field for it; that of a delegation has none.
            let has_password = !form.verbatim("password").is_empty();
            let asks_password = *action != "delegate" && (problem.code == REAUTHENTICATE || has_password);
            let shell = visit.shell(Section::Inbox, "Inbox", "approval,task");
            // The form may name no task, or another one.
            let Ok(mut review) = load_review(&visit, form.get("task_id"), Some(&id), back).await else {
                return Err(problem.into());
            };
            if asks_password || !review.can_decide() {
                problem.extensions.remove(REAUTHENTICATE_LINK);
            }
            review.decision = RefusedDecision {
                reason: form.get("reason").to_owned(),
                confirm: form.get("confirm").to_owned(),
                problem: Some(problem.clone()),
                asks_password,
            };
            let page = InboxPage {
                shell: shell.await?,
                view: InboxView::Mine,
                requests: requests(&visit, InboxView::Mine, "").await?.items,
                next_cursor: None,
                waiting_for_others: 0,
                review: Some(review),
                at: id,
                is_chosen: true,
                problem: None,
            };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn send_decision(visit: &Visit, id: &str, action: &str, form: &Form) -> Result<Value, wire::Problem> {
    let password = form.verbatim("password");
    if !password.is_empty() {
        let body = wire::ReauthenticateRequest { password: password.to_owned() };
        visit.post("/sessions/reauthenticate", form, &body).await?;
    }
    let fields: &[&str] =
        if action == "delegate" { &["to"] } else { &["reason", "digest", "scope_digest", "confirm"] };
    visit.post(&path(&["approvals", id, action]), form, &form.object(fields)).await
}

/// A request with the version that was displayed: `ID DIGEST [SCOPE_DIGEST]`.
#[derive(Debug, Clone)]
struct Item {
    text: String,
    approval_id: String,
    digest: String,
    scope_digest: Option<String>,
}

impl Item {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().map(str::to_owned);
        Some(Self {
            text: text.to_owned(),
            approval_id: words.next()?,
            digest: words.next()?,
            scope_digest: words.next(),
        })
    }
}

async fn load_item(visit: &Visit, item: Item) -> BatchReview {
    let load = async {
        let request = visit.get::<wire::Approval>(&path(&["approvals", &item.approval_id])).await?;
        let review = load_review(visit, &request.task_id, Some(&item.approval_id), "/inbox").await?;
        Ok(Review { is_whole: true, ..review })
    };
    let review = load.await;
    BatchReview { item: item.text, approval_id: item.approval_id, review }
}

async fn batch_page(
    visit: &Visit,
    items: Vec<&str>,
    reason: &str,
    problem: Option<wire::Problem>,
) -> PageResult<BatchPage> {
    let mut known = BTreeSet::new();
    let items = items.into_iter().filter_map(Item::parse);
    let items = items.filter(|item| known.insert(item.approval_id.clone())).take(MAX_BATCH);
    let items = join_all(items.map(|item| load_item(visit, item))).await;
    let shell = visit.shell(Section::Inbox, "Decide together", "").await?;
    Ok(BatchPage { shell, items, reason: reason.to_owned(), problem })
}

async fn review_batch(visit: Visit) -> PageResult {
    let page = batch_page(&visit, visit.params("item"), "", None).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn decide_batch(visit: Visit, form: Form) -> PageResult {
    let items: Vec<Value> = form
        .all("item")
        .into_iter()
        .filter_map(Item::parse)
        .map(|Item { approval_id, digest, scope_digest, .. }| match scope_digest {
            Some(scope) => json!({ "approval_id": approval_id, "digest": digest, "scope_digest": scope }),
            None => json!({ "approval_id": approval_id, "digest": digest }),
        })
        .collect();
    let mut body = form.object(&["action", "reason"]);
    body.insert("items".to_owned(), items.into());
    match visit.post("/approvals/batch", &form, &body).await {
        Ok(_) => Ok(visit.done("/inbox", "batch")),
        Err(problem) => {
            let page = batch_page(&visit, form.all("all"), form.get("reason"), Some(problem.clone())).await?;
            Ok(visit.refused(&page, &problem))
        }
    }
}
