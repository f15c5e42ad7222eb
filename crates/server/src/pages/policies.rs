//! Policies: the list, the editor, simulation, replay over past tasks, and putting in force.

use ade_client::wire;
use ade_dashboard::{
    PendingChanges, PoliciesPage, PolicyFields, PolicyPage, ReplayPage, Section, SimulationPage,
};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Redirect;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::form::Form;
use super::respond::html;
use super::visit::{PageResult, Visit, path, with_query};
use crate::api::AppState;
use crate::http::problem::Problem;

const TOPICS: &str = "policy,change";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/policies", get(list))
        .route("/policies/new", get(new).post(create))
        .route("/policies/{id}", get(show).post(update))
        .route("/policies/{id}/activate", post(activate))
        .route("/policies/{id}/deactivate", post(deactivate))
        .route("/policies/{id}/delete", post(delete))
        .route("/policies/{id}/simulate", get(to_policy).post(simulate))
        .route("/policies/{id}/replay", get(to_policy).post(replay))
}

/// An answer to a form is not kept: its address leads back to the form.
async fn to_policy(Path(id): Path<String>) -> Redirect {
    Redirect::to(&path(&["policies", &id]))
}

/// What waits for a second administrator, about one policy or about all rules; nothing for those who may not see it.
async fn pending(visit: &Visit, policy: Option<&str>) -> Result<PendingChanges, wire::Problem> {
    let page: Option<wire::Page<wire::Change>> = visit.get_if_allowed("/changes").await?;
    let mut changes = page.map(|page| page.items).unwrap_or_default();
    if let Some(policy) = policy {
        changes.retain(|change| change.object_type == "policy" && change.object_id == policy);
    }
    Ok(PendingChanges { changes, viewer: visit.viewer().clone(), next: "/policies" })
}

async fn list_page(visit: &Visit, problem: Option<wire::Problem>) -> PageResult<PoliciesPage> {
    let list = with_query("/policies", &[("cursor", visit.param("cursor"))]);
    let (page, pending): (wire::Page<wire::Policy>, _) =
        tokio::try_join!(visit.get(&list), pending(visit, None))?;
    Ok(PoliciesPage {
        shell: visit.shell(Section::Policies, "Policies", TOPICS).await?,
        policies: page.items,
        next_cursor: page.next_cursor,
        pending,
        is_admin: visit.viewer().is_admin(),
        problem,
    })
}

async fn list(visit: Visit) -> PageResult {
    let page = list_page(&visit, None).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn page_of(visit: &Visit, id: &str) -> PageResult<PolicyPage> {
    let path = path(&["policies", id]);
    let (policy, pending): (wire::Policy, _) = tokio::try_join!(visit.get(&path), pending(visit, Some(id)))?;
    let viewer = visit.viewer();
    let fields = PolicyFields::of(&policy.name, policy.draft.as_ref().unwrap_or(&policy.rules));
    Ok(PolicyPage {
        // It is not fetched again: a form that somebody fills in must keep the revision that they have read.
        shell: visit.shell(Section::Policies, &policy.name, "").await?,
        policy: Some(policy),
        fields,
        is_admin: viewer.is_admin(),
        can_replay: viewer.is_admin() || viewer.has_role("auditor"),
        pending,
        problem: None,
        simulated_task: String::new(),
    })
}

async fn show(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = page_of(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn new_page(visit: &Visit) -> PageResult<PolicyPage> {
    Ok(PolicyPage {
        shell: visit.shell(Section::Policies, "New policy", "").await?,
        policy: None,
        fields: PolicyFields::new(),
        is_admin: visit.viewer().is_admin(),
        can_replay: false,
        pending: PendingChanges { changes: Vec::new(), viewer: visit.viewer().clone(), next: "/policies" },
        problem: None,
        simulated_task: String::new(),
    })
}

async fn new(visit: Visit) -> PageResult {
    let page = new_page(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

fn fields(form: &Form) -> PolicyFields {
    let text = |name: &str| form.get(name).to_owned();
    PolicyFields {
        name: text("name"),
        task_types: text("task_types"),
        executors: text("executors"),
        targets: text("targets"),
        resource_patterns: text("resource_patterns"),
        risk_threshold: text("risk_threshold"),
        min_approvers: text("min_approvers"),
        required_roles: text("required_roles"),
        reviewers: text("reviewers"),
        reject_threshold: text("reject_threshold"),
        priority: text("priority"),
        escalation_role: text("escalation_role"),
        is_automatic: form.is_checked("is_automatic"),
        risk_below: text("risk_below"),
        author_has_role: text("author_has_role"),
        resources_in_scope: text("resources_in_scope"),
        agents: form.is_checked("agents"),
        has_window: form.is_checked("has_window"),
        weekdays: form.all("weekdays").into_iter().map(str::to_owned).collect(),
        from_hour: text("from_hour"),
        until_hour: text("until_hour"),
        time_zone: text("time_zone"),
    }
}

/// What was typed and is not a number.
pub(super) fn unreadable(pointer: &str, kind: &str) -> wire::Problem {
    Problem::invalid_at(pointer, format!("must be {kind}")).to_wire()
}

async fn create(visit: Visit, form: Form) -> PageResult {
    let fields = fields(&form);
    let created = match fields.request() {
        Ok(request) => visit.send::<wire::Policy>(Method::POST, "/policies", &form, &request).await,
        Err(pointer) => Err(unreadable(pointer, "a number")),
    };
    match created {
        Ok(policy) => Ok(visit.done(&path(&["policies", &policy.policy_id]), "created")),
        Err(problem) => {
            let page = PolicyPage { fields, problem: Some(problem.clone()), ..new_page(&visit).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn update(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let fields = fields(&form);
    let api = path(&["policies", &id]);
    let updated = match fields.request() {
        Ok(request) => visit.send::<wire::Policy>(Method::PATCH, &api, &form, &request).await,
        Err(pointer) => Err(unreadable(pointer, "a number")),
    };
    match updated {
        Ok(_) => Ok(visit.done(&api, "saved")),
        Err(problem) if problem.code == "AWAITS_CONFIRMATION" => Ok(visit.done(&api, "confirmation")),
        Err(problem) => {
            let page = PolicyPage { fields, problem: Some(problem.clone()), ..page_of(&visit, &id).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}

/// The page after a change without fields: the policy, with the reason if it was refused.
async fn after<T>(visit: &Visit, id: &str, notice: &str, changed: Result<T, wire::Problem>) -> PageResult {
    let here = path(&["policies", id]);
    match changed {
        Ok(_) => Ok(visit.done(&here, notice)),
        Err(problem) if problem.code == "AWAITS_CONFIRMATION" => Ok(visit.done(&here, "confirmation")),
        Err(problem) => {
            let page = PolicyPage { problem: Some(problem.clone()), ..page_of(visit, id).await? };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn activate(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let changed = visit.post(&path(&["policies", &id, "activate"]), &form, &json!({})).await;
    after(&visit, &id, "activated", changed).await
}

async fn deactivate(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let request = wire::PolicyRequest { active: Some(false), ..wire::PolicyRequest::default() };
    let changed = visit.send::<Value>(Method::PATCH, &path(&["policies", &id]), &form, &request).await;
    after(&visit, &id, "deactivated", changed).await
}

async fn delete(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    match visit.send::<Value>(Method::DELETE, &path(&["policies", &id]), &form, &json!({})).await {
        Ok(_) => Ok(visit.done("/policies", "deleted")),
        refused => after(&visit, &id, "deleted", refused).await,
    }
}

/// A task as it was pasted, in YAML or JSON, which is YAML too.
fn pasted(text: &str) -> Result<wire::TaskRequest, Problem> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let read = serde_saphyr::from_str_with_options(text, options);
    read.map_err(|error| Problem::invalid_at("/task", format!("cannot be read: {error}")))
}

async fn simulate(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let policy: wire::Policy = visit.get(&path(&["policies", &id])).await?;
    let (task_id, text) = (form.optional("task_id"), form.get("task").to_owned());
    let (subject, request) = match (task_id, text.is_empty()) {
        (Some(task_id), true) => {
            let subject = format!("Task {task_id}");
            (subject, Ok(wire::SimulationRequest { task_id: Some(task_id), ..Default::default() }))
        }
        (None, false) => {
            let request = pasted(&text)
                .map_err(|problem| problem.to_wire())
                .map(|task| wire::SimulationRequest { task: Some(task), ..Default::default() });
            ("The pasted task, as if you submitted it now".to_owned(), request)
        }
        _ => (
            String::new(),
            Err(Problem::invalid_at("/task", "or the id of a task is needed, but not both").to_wire()),
        ),
    };
    let simulated = async {
        let without = request?;
        let rules = policy.draft.as_ref().unwrap_or(&policy.rules);
        // What the form of the editor would send.
        let hypothetical = PolicyFields::of(&policy.name, rules).request();
        let hypothetical = hypothetical.map_err(|pointer| unreadable(pointer, "a number"))?;
        let with = wire::SimulationRequest { policies: vec![hypothetical], ..without.clone() };
        let send = async |request| {
            visit.send::<wire::Simulation>(Method::POST, "/simulations", &form, &request).await
        };
        tokio::try_join!(send(with), send(without))
    };
    match simulated.await {
        Ok((with, without)) => {
            let shell = visit.shell(Section::Policies, "Simulation", "").await?;
            Ok(html(&SimulationPage { shell, policy, subject, with, without }))
        }
        Err(problem) => {
            let page = page_of(&visit, &id).await?;
            let page = PolicyPage { simulated_task: text, problem: Some(problem.clone()), ..page };
            Ok(visit.refused(&page, &problem))
        }
    }
}

async fn replay(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let api = path(&["policies", &id]);
    // Read before: if it changes meanwhile, what was replayed is not put in force.
    let policy: wire::Policy = visit.get(&api).await?;
    match visit.send::<wire::PolicyReplay>(Method::POST, &format!("{api}/replay"), &form, &json!({})).await {
        Ok(replay) => {
            let shell = visit.shell(Section::Policies, "Replay over history", "").await?;
            Ok(html(&ReplayPage { shell, policy, replay, is_admin: visit.viewer().is_admin() }))
        }
        Err(problem) => {
            let page = page_of(&visit, &id).await?;
            Ok(visit.refused(&PolicyPage { problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}
