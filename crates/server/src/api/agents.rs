//! Agent routes: register, look, heartbeat, drain, remove.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use ade_client::wire;
use ade_domain::agent::Profile;
use ade_domain::lock::Holder;
use ade_store::coordination::{AgentUpdate, Filter};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, OfBody};
use super::extract::{Body, Params, Segment};
use super::locks::limit;
use super::{App, convert};
use crate::auth::Caller;
use crate::problem::{Answer, Problem};

/// Locks of one agent that are shown.
const MAX_LOCKS: usize = 200;
/// Limits of a profile.
const MAX_TEXT: usize = 256;
const MAX_CAPABILITIES: usize = 100;
const MAX_CONFIG: usize = 65_536;
const MAX_TASKS: u32 = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, register))
        .routes(routes!(show, update, remove))
        .routes(routes!(heartbeat))
        .routes(routes!(drain))
        .routes(routes!(locks))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// Agents that are known
#[utoipa::path(get, path = "/agents", operation_id = "list_agents", tag = "agents", params(ListParams), responses(
    (status = 200, description = "A page of agents, by id", body = wire::Page<wire::Agent>),
    Always,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    _: Caller,
    Params(params): Params<ListParams>,
) -> Answer<Json<wire::Page<wire::Agent>>> {
    let limit = limit(params.limit)?;
    let views = app.agents.list(params.cursor, limit + 1).await?;
    Ok(Json(convert::page(views, limit, |view| view.agent_id.clone(), convert::agent)))
}

/// Register an agent
#[utoipa::path(post, path = "/agents", operation_id = "register_agent", tag = "agents", request_body = wire::AgentRequest, responses(
    (status = 201, description = "It is known", body = wire::Agent),
    OfBody,
    Always,
    (status = 409, description = "AGENT_EXISTS", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn register(
    State(app): State<App>,
    _: Caller,
    Body(body): Body<wire::AgentRequest>,
) -> Answer<Response> {
    let Some(id) = body.agent_id.clone() else {
        return Err(Problem::invalid_at("/agent_id", "is needed"));
    };
    Holder::new(&id, None).map_err(|error| Problem::invalid_at("/agent_id", error.to_string()))?;
    let profile = profile(&body, Profile { name: id.clone(), ..Profile::default() })?;
    let made = app.agents.register(&id, profile, body.max_tasks).await?;
    Ok((StatusCode::CREATED, Json(convert::agent(&made))).into_response())
}

/// One agent
#[utoipa::path(get, path = "/agents/{id}", operation_id = "show_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent", body = wire::Agent),
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(State(app): State<App>, _: Caller, Segment(id): Segment) -> Answer<Json<wire::Agent>> {
    Ok(Json(convert::agent(&app.agents.get(&id).await?)))
}

/// Change what is known of an agent
#[utoipa::path(patch, path = "/agents/{id}", operation_id = "update_agent", tag = "agents", params(("id" = String, Path)), request_body = wire::AgentRequest, responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    OfBody,
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn update(
    State(app): State<App>,
    _: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::AgentRequest>,
) -> Answer<Json<wire::Agent>> {
    if body.agent_id.as_ref().is_some_and(|other| *other != id) {
        return Err(Problem::invalid_at("/agent_id", "cannot be changed"));
    }
    let known = app.agents.get(&id).await?;
    let profile = profile(&body, known.profile)?;
    let update = AgentUpdate { profile: Some(profile), max_tasks: body.max_tasks, draining: body.draining };
    Ok(Json(convert::agent(&app.agents.update(&id, update).await?)))
}

/// Remove an agent that holds nothing
#[utoipa::path(delete, path = "/agents/{id}", operation_id = "remove_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 204, description = "It is not known any more"),
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "AGENT_BUSY", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn remove(State(app): State<App>, _: Caller, Segment(id): Segment) -> Answer<StatusCode> {
    app.agents.remove(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The agent is alive
#[utoipa::path(post, path = "/agents/{id}/heartbeat", operation_id = "agent_heartbeat", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn heartbeat(State(app): State<App>, _: Caller, Segment(id): Segment) -> Answer<Json<wire::Agent>> {
    Ok(Json(convert::agent(&app.agents.heartbeat(&id).await?)))
}

/// The agent takes no new tasks; PATCH with `draining: false` takes that back
#[utoipa::path(post, path = "/agents/{id}/drain", operation_id = "drain_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn drain(State(app): State<App>, _: Caller, Segment(id): Segment) -> Answer<Json<wire::Agent>> {
    let update = AgentUpdate { draining: Some(true), ..AgentUpdate::default() };
    Ok(Json(convert::agent(&app.agents.update(&id, update).await?)))
}

/// What an agent holds and waits for
#[utoipa::path(get, path = "/agents/{id}/locks", operation_id = "agent_locks", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "At most 200; more with GET /locks?agent=", body = wire::Page<wire::Lock>),
    Always,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn locks(
    State(app): State<App>,
    _: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Page<wire::Lock>>> {
    app.agents.get(&id).await?;
    let filter = Filter { agent: Some(id), ..Filter::default() };
    let views = app.locks.list(filter, None, MAX_LOCKS + 1).await?;
    Ok(Json(convert::page(views, MAX_LOCKS, |view| view.lock.to_string(), convert::lock)))
}

/// What is said about an agent, on top of what was.
fn profile(body: &wire::AgentRequest, before: Profile) -> Answer<Profile> {
    let capabilities = body.capabilities.as_deref().unwrap_or_default();
    let texts = [("/name", &body.name), ("/model", &body.model), ("/version", &body.version)];
    for (pointer, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT) {
            return Err(Problem::invalid_at(pointer, format!("may have at most {MAX_TEXT} bytes")));
        }
    }
    if body.name.as_deref() == Some("") {
        return Err(Problem::invalid_at("/name", "must not be empty"));
    }
    if capabilities.len() > MAX_CAPABILITIES
        || capabilities.iter().any(|one| one.is_empty() || one.len() > MAX_TEXT)
    {
        let detail = format!("may list at most {MAX_CAPABILITIES}, each of 1 to {MAX_TEXT} bytes");
        return Err(Problem::invalid_at("/capabilities", detail));
    }
    if body.max_tasks.is_some_and(|max| !(1..=MAX_TASKS).contains(&max)) {
        return Err(Problem::invalid_at("/max_tasks", format!("must be between 1 and {MAX_TASKS}")));
    }
    let config = match &body.config {
        None => before.config,
        Some(config) => serde_json::to_string(config)
            .map_err(|error| Problem::invalid_at("/config", error.to_string()))?,
    };
    if config.len() > MAX_CONFIG {
        return Err(Problem::invalid_at("/config", format!("may have at most {MAX_CONFIG} bytes")));
    }
    Ok(Profile {
        name: body.name.clone().unwrap_or(before.name),
        model: body.model.clone().or(before.model),
        version: body.version.clone().or(before.version),
        capabilities: body.capabilities.clone().unwrap_or(before.capabilities),
        config,
    })
}
