//! Delegations: the list with its chains, what would happen to a task, and the form of one.

use ade_client::wire;
use ade_dashboard::{DelegationCheck, DelegationFields, DelegationPage, DelegationsPage, Section};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Redirect;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::form::Form;
use super::policies::unreadable;
use super::respond::html;
use super::visit::{PageResult, Visit, path, with_query};
use crate::api::AppState;
use crate::http::problem::Problem;

const TOPICS: &str = "delegation";
/// People who are offered in the form. Others can be typed.
const MAX_PEOPLE: usize = 200;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/delegations", get(list))
        .route("/delegations/check", get(async || Redirect::to("/delegations")).post(check))
        .route("/delegations/new", get(new).post(create))
        .route("/delegations/{id}", get(show).post(update))
        .route("/delegations/{id}/end", post(end))
        .route("/delegations/{id}/delete", post(delete))
}

async fn list_page(visit: &Visit, topics: &'static str) -> PageResult<DelegationsPage> {
    let list = with_query("/delegations", &[("cursor", visit.param("cursor"))]);
    let page: wire::Page<wire::Delegation> = visit.get(&list).await?;
    let viewer = visit.viewer();
    Ok(DelegationsPage {
        shell: visit.shell(Section::Delegations, "Delegations", topics).await?,
        delegations: page.items,
        next_cursor: page.next_cursor,
        sees_all: viewer.is_admin() || viewer.has_role("auditor"),
        can_create: viewer.is_admin() || !viewer.user_id.is_empty(),
        task_type: String::new(),
        resource: String::new(),
        check: None,
        problem: None,
    })
}

async fn list(visit: Visit) -> PageResult {
    let page = list_page(&visit, TOPICS).await?;
    Ok(visit.render(&page, &page.shell))
}

/// Who would be asked about a task of a type on a resource.
async fn check(visit: Visit, form: Form) -> PageResult {
    let (task_type, resource) = (form.get("type").to_owned(), form.get("resource").to_owned());
    let simulated = async {
        let invalid =
            || Problem::invalid_at("/resource", "must be a type and an id, such as database:prod-orders");
        let (kind, id) = resource.split_once(':').ok_or_else(|| invalid().to_wire())?;
        let body = json!({ "task": {
            "type": &task_type,
            "description": "a question about delegations",
            "resources": [{ "type": kind, "id": id }],
        } });
        visit.send::<wire::Simulation>(Method::POST, "/simulations", &form, &body).await
    };
    let simulated = simulated.await;
    // It is not fetched again when delegations change: the answer would be gone.
    let page = DelegationsPage { task_type, resource: resource.clone(), ..list_page(&visit, "").await? };
    match simulated {
        Ok(simulation) => Ok(html(&DelegationsPage { check: Some(DelegationCheck { simulation }), ..page })),
        Err(problem) => {
            Ok(visit.refused(&DelegationsPage { problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}

async fn form_page(visit: &Visit, delegation: Option<wire::Delegation>) -> PageResult<DelegationPage> {
    let title = match &delegation {
        Some(delegation) => format!("{} to {}", delegation.owner_id, delegation.delegate_to),
        None => "New delegation".to_owned(),
    };
    let users: Option<wire::Page<wire::User>> =
        visit.get_if_allowed(&format!("/users?limit={MAX_PEOPLE}")).await?;
    let mut people = users.map(|page| page.items).unwrap_or_default();
    people.retain(|user| user.active && user.roles.iter().any(|role| role == "reviewer" || role == "admin"));
    Ok(DelegationPage {
        // It is not fetched again: a form that somebody fills in must keep the revision that they have read.
        shell: visit.shell(Section::Delegations, &title, "").await?,
        fields: delegation.as_ref().map_or_else(DelegationFields::new, DelegationFields::of),
        delegation,
        is_admin: visit.viewer().is_admin(),
        people,
        problem: None,
    })
}

async fn page_of(visit: &Visit, id: &str) -> PageResult<DelegationPage> {
    form_page(visit, Some(visit.get(&path(&["delegations", id])).await?)).await
}

async fn new(visit: Visit) -> PageResult {
    let page = form_page(&visit, None).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn show(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = page_of(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

fn fields(form: &Form) -> DelegationFields {
    let text = |name: &str| form.get(name).to_owned();
    DelegationFields {
        owner_id: text("owner_id"),
        delegate_to: text("delegate_to"),
        is_follow: form.get("kind") == "follow",
        task_types: text("task_types"),
        resource_patterns: text("resource_patterns"),
        risk_above: text("risk_above"),
        cascade: form.is_checked("cascade"),
        valid_from: text("valid_from"),
        valid_until: text("valid_until"),
        active: form.is_checked("active"),
    }
}

/// Creates a delegation, or changes one.
async fn save(visit: Visit, id: Option<&str>, form: Form) -> PageResult {
    let fields = fields(&form);
    let saved = match fields.request() {
        Ok(request) => match id {
            Some(id) => {
                visit.send::<Value>(Method::PATCH, &path(&["delegations", id]), &form, &request).await
            }
            None => visit.post("/delegations", &form, &request).await,
        },
        Err(pointer) => Err(unreadable(pointer, "a number or a time")),
    };
    match saved {
        Ok(_) => Ok(visit.done("/delegations", if id.is_some() { "saved" } else { "created" })),
        Err(problem) => {
            let page = match id {
                Some(id) => page_of(&visit, id).await?,
                None => form_page(&visit, None).await?,
            };
            Ok(visit.refused(&DelegationPage { fields, problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}

async fn create(visit: Visit, form: Form) -> PageResult {
    save(visit, None, form).await
}

async fn update(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    save(visit, Some(&id), form).await
}

/// The list after a change without fields, or the delegation with the reason if it was refused.
async fn after(visit: &Visit, id: &str, notice: &str, changed: Result<Value, wire::Problem>) -> PageResult {
    match changed {
        Ok(_) => Ok(visit.done("/delegations", notice)),
        Err(problem) => {
            let page = DelegationPage { problem: Some(problem.clone()), ..page_of(visit, id).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn end(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let request = wire::DelegationRequest { active: Some(false), ..wire::DelegationRequest::default() };
    let changed = visit.send(Method::PATCH, &path(&["delegations", &id]), &form, &request).await;
    after(&visit, &id, "deactivated", changed).await
}

async fn delete(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let changed = visit.send(Method::DELETE, &path(&["delegations", &id]), &form, &json!({})).await;
    after(&visit, &id, "deleted", changed).await
}
