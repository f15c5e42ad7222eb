//! The pages of agents: how they are, one of them with its configuration and tokens, and the wizard that makes one. What a visitor may
//! see and change is answered by the API; a secret of a token is in one response and nowhere else.

use std::collections::BTreeSet;

use ade_client::wire;
use ade_dashboard::{
    AgentDraft, AgentFilter, AgentPage, AgentsPage, NewTokenPage, Section, WizardPage, step_of, unreadable,
};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::form::Form;
use super::respond::{html, secret};
use super::visit::{PageResult, Visit, path, with_query};
use crate::api::AppState;

/// Agents above one that its page names.
const MAX_PARENTS: usize = 5;
/// Pages of messages that are read to find the newest ones.
const MAX_INBOX_PAGES: usize = 5;
const LISTED_MESSAGES: usize = 10;
/// The step of the wizard whose task is simulated, and the last one.
const SIMULATION: usize = 4;
const REVIEW: usize = 5;
const DAY: u64 = 86_400;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/agents", get(list))
        .route("/agents/new", get(wizard).post(create))
        .route("/agents/new/simulate", get(async || Redirect::to("/agents/new")).post(simulate))
        .route("/agents/{id}", get(show).post(update))
        .route("/agents/{id}/drain", post(drain))
        .route("/agents/{id}/resume", post(resume))
        .route("/agents/{id}/tokens", post(create_token))
        .route("/agents/{id}/tokens/{token}/revoke", post(revoke_token))
}

async fn list(visit: Visit) -> PageResult {
    let param = |name| visit.param(name).trim().to_owned();
    let filter = AgentFilter {
        view: param("view"),
        status: param("status"),
        sponsor: param("sponsor"),
        text: param("text"),
    };
    let cursor = param("cursor");
    let (agents, problem) = match visit.get(&filter.query("/stats/agents", "", &cursor)).await {
        Ok(agents) => (agents, None),
        Err(problem) if problem.status == 422 => {
            (wire::Page { items: Vec::new(), next_cursor: None }, Some(problem))
        }
        Err(problem) => return Err(problem.into()),
    };
    let shell = visit.shell(Section::Agents, "Agents", "agent,lock,task").await?;
    let page = AgentsPage { shell, filter, cursor, agents, problem };
    Ok(visit.render(&page, &page.shell))
}

/// The agents above this one, the nearest first.
async fn parents(visit: &Visit, agent: &wire::Agent) -> Result<Vec<wire::Agent>, wire::Problem> {
    let (mut parents, mut seen) = (Vec::new(), BTreeSet::from([agent.agent_id.clone()]));
    let mut next = agent.parent_agent_id.clone();
    while let Some(id) = next.filter(|id| seen.insert(id.clone()) && parents.len() < MAX_PARENTS) {
        let Some(parent) = visit.get_if_allowed::<wire::Agent>(&path(&["agents", &id])).await? else { break };
        next = parent.parent_agent_id.clone();
        parents.push(parent);
    }
    Ok(parents)
}

/// The newest messages to an agent; the API lists the oldest first.
async fn messages(visit: &Visit, id: &str) -> Result<Option<Vec<wire::InboxMessage>>, wire::Problem> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..MAX_INBOX_PAGES {
        let query = with_query(&path(&["agents", id, "inbox"]), &[("limit", "200"), ("cursor", &cursor)]);
        let Some(page) = visit.get_if_allowed::<wire::Page<wire::InboxMessage>>(&query).await? else {
            return Ok(None);
        };
        found.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = next,
            None => break,
        }
    }
    found.reverse();
    found.truncate(LISTED_MESSAGES);
    Ok(Some(found))
}

async fn agent_page(visit: &Visit, id: &str) -> PageResult<AgentPage> {
    let health: wire::AgentHealth = visit.get(&path(&["stats", "agents", id])).await?;
    let (locks, tasks, tokens) = (
        with_query("/locks", &[("agent", id), ("limit", "20")]),
        with_query("/tasks", &[("agent", id), ("limit", "10")]),
        path(&["agents", id, "tokens"]),
    );
    let (locks, tasks, tokens, messages, parents) = tokio::try_join!(
        visit.get::<wire::Page<wire::Lock>>(&locks),
        visit.get::<wire::Page<wire::Task>>(&tasks),
        visit.get_if_allowed::<wire::Page<wire::Token>>(&tokens),
        messages(visit, id),
        parents(visit, &health.agent),
    )?;
    Ok(AgentPage {
        shell: visit.shell(Section::Agents, &health.agent.name, "agent,lock,task").await?,
        health,
        parents,
        tokens: tokens.map(|page| page.items),
        locks: locks.items,
        tasks,
        messages,
        draft: None,
        problem: None,
    })
}

async fn show(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = agent_page(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

/// Back to the agent after a change, or the page with what was refused.
async fn finish(
    visit: &Visit,
    id: &str,
    changed: Result<Value, wire::Problem>,
    notice: &str,
    draft: Option<AgentDraft>,
) -> PageResult {
    let problem = match changed {
        Ok(_) => return Ok(visit.done(&path(&["agents", id]), notice)),
        Err(problem) if problem.status == 202 => {
            return Ok(visit.done(&path(&["agents", id]), "confirmation"));
        }
        Err(problem) => problem,
    };
    let page = agent_page(visit, id).await?;
    Ok(visit.refused(&AgentPage { draft, problem: Some(problem.clone()), ..page }, &problem))
}

async fn update(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let text = |name| form.get(name).replace("\r\n", "\n");
    let draft = AgentDraft {
        name: text("name"),
        model: text("model"),
        version: text("version"),
        parent: text("parent"),
        max_tasks: text("max_tasks"),
        capabilities: text("capabilities"),
        accepts: text("accepts"),
        config: text("config"),
        revision: text("revision"),
    };
    let target = path(&["agents", &id]);
    let agent: wire::Agent = visit.get(&target).await?;
    let changed = match draft.request(&agent) {
        Ok(request) => visit.send(Method::PATCH, &target, &form, &request).await,
        Err(error) => Err(unreadable(&error)),
    };
    finish(&visit, &id, changed, "saved", Some(draft)).await
}

async fn drain(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let changed = visit.post(&path(&["agents", &id, "drain"]), &form, &json!({})).await;
    finish(&visit, &id, changed, "draining", None).await
}

async fn resume(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let body = json!({ "draining": false });
    let changed = visit.send(Method::PATCH, &path(&["agents", &id]), &form, &body).await;
    finish(&visit, &id, changed, "resumed", None).await
}

async fn create_token(visit: Visit, Path(id): Path<String>, form: Form) -> PageResult {
    let days: Option<u64> = form.get("token_days").parse().ok();
    let request = wire::TokenRequest {
        name: form.get("token_name").to_owned(),
        scopes: None,
        ttl_seconds: days.map(|days| days.saturating_mul(DAY)),
    };
    let target = path(&["agents", &id, "tokens"]);
    match visit.send::<wire::Token>(Method::POST, &target, &form, &request).await {
        Ok(token) => {
            let shell = visit.shell(Section::Agents, "A new token", "").await?;
            let task = WizardPage::new(shell.clone(), REVIEW, |_| None).first_task();
            let address = visit.address().to_owned();
            let page = NewTokenPage { shell, agent_id: id, is_new_agent: false, token, address, task };
            Ok(secret(&page))
        }
        Err(problem) => finish(&visit, &id, Err(problem), "", None).await,
    }
}

async fn revoke_token(visit: Visit, Path((id, token)): Path<(String, String)>, form: Form) -> PageResult {
    let agent: wire::Agent = visit.get(&path(&["agents", &id])).await?;
    let sponsor = agent.sponsor_id.unwrap_or_default();
    let target = path(&["users", &sponsor, "tokens", &token]);
    let changed = visit.send(Method::DELETE, &target, &form, &()).await;
    finish(&visit, &id, changed, "token_revoked", None).await
}

async fn wizard(visit: Visit) -> PageResult {
    let step = visit.param("step").parse().unwrap_or(1);
    let shell = visit.shell(Section::Agents, "New agent", "").await?;
    let known = |name: &str| visit.has_param(name).then(|| visit.param(name).replace("\r\n", "\n"));
    let mut page = WizardPage::new(shell, step, known);
    check_steps(&visit, &mut page).await;
    Ok(visit.render(&page, &page.shell))
}

/// Shows the simulation of step 4 there or on the review. A simulation runs the previews of executors, so a link cannot ask for it.
async fn simulate(visit: Visit, form: Form) -> PageResult {
    let shell = visit.shell(Section::Agents, "New agent", "").await?;
    let step = form.get("step").parse().unwrap_or(REVIEW);
    let mut page = WizardPage::new(shell, step, |name| typed(&form, name));
    if page.step < SIMULATION {
        return Ok(Redirect::to(&page.link_to(page.step)).into_response());
    }
    check_steps(&visit, &mut page).await;
    if page.step >= SIMULATION {
        let task = page.task().map_err(|error| unreadable(&error));
        let simulated = async {
            let Some(task) = task? else { return Ok(None) };
            let request = wire::SimulationRequest { task: Some(task), ..wire::SimulationRequest::default() };
            visit.send(Method::POST, "/simulations", &form, &request).await.map(Some)
        };
        match simulated.await {
            Ok(simulation) => page.simulation = simulation,
            Err(problem) => {
                page.step = SIMULATION;
                page.problem = Some(problem);
            }
        }
    }
    match page.problem.clone() {
        Some(problem) => Ok(visit.refused(&page, &problem)),
        None => Ok(html(&page)),
    }
}

fn typed(form: &Form, name: &str) -> Option<String> {
    form.optional(name).map(|value| value.replace("\r\n", "\n"))
}

/// Checks every step before the one of the page, by the API; one that is not finished is shown instead.
async fn check_steps(visit: &Visit, page: &mut WizardPage) {
    if page.step > 1
        && let Err(problem) = check(visit, page).await
    {
        page.step = step_of(&problem).min(page.step);
        page.problem = Some(problem);
    }
}

/// Whether an agent could be registered as the steps before this one say.
async fn check(visit: &Visit, page: &WizardPage) -> Result<(), wire::Problem> {
    let agent = page.agent(page.step).map_err(|error| unreadable(&error))?;
    visit.compute::<wire::Agent>("/agents?dry_run=true", &agent).await.map(drop)
}

async fn create(visit: Visit, form: Form) -> PageResult {
    let shell = visit.shell(Section::Agents, "New agent", "").await?;
    let mut page = WizardPage::new(shell, REVIEW, |name| typed(&form, name));
    let registered = async {
        let read = page.agent(REVIEW).and_then(|agent| Ok((agent, page.token()?)));
        let (agent, token) = read.map_err(|error| unreadable(&error))?;
        let agent: wire::Agent = visit.send(Method::POST, "/agents", &form, &agent).await?;
        Ok((agent, token))
    };
    let (agent, token) = match registered.await {
        Ok(registered) => registered,
        Err(problem) => {
            page.step = step_of(&problem);
            page.problem = Some(problem.clone());
            return Ok(visit.refused(&page, &problem));
        }
    };
    let id = agent.agent_id;
    let tokens = path(&["agents", &id, "tokens"]);
    match visit.send::<wire::Token>(Method::POST, &tokens, &form, &token).await {
        Ok(token) => {
            let (task, address) = (page.first_task(), visit.address().to_owned());
            let shell = page.shell;
            Ok(secret(&NewTokenPage { shell, agent_id: id, is_new_agent: true, token, address, task }))
        }
        // The agent is there: its page makes the token.
        Err(problem) => finish(&visit, &id, Err(problem), "", None).await,
    }
}
