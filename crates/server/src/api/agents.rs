//! Agent routes: register, look, heartbeat, drain, remove.

use ade_app::accounts::TokenDraft;
use ade_client::wire;
use ade_domain::agent::Profile;
use ade_domain::lock::Holder;
use ade_store::coordination::{AgentUpdate, Filter};
use ade_store::database::InboxMessage;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answers::{Always, Guarded, OfBody, OfPost};
use super::convert::reviews as told;
use super::extract::{Body, PageParams, Params, Segment};
use super::{App, convert};
use crate::caller::Caller;
use crate::posted::Posted;
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
        .routes(routes!(create_token))
        .routes(routes!(inbox))
}

/// Agents that are known
#[utoipa::path(get, path = "/agents", operation_id = "list_agents", tag = "agents", params(PageParams), responses(
    (status = 200, description = "A page of agents, by id", body = wire::Page<wire::Agent>),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::Agent>>> {
    let limit = params.limit()?;
    let known = app.agents.list(params.cursor.clone(), limit + 1, &caller).await?;
    Ok(Json(convert::page(known, limit, |known| known.view.agent_id.clone(), convert::agent)))
}

/// Register an agent
#[utoipa::path(post, path = "/agents", operation_id = "register_agent", tag = "agents", request_body = wire::AgentRequest, responses(
    (status = 201, description = "It is known", body = wire::Agent),
    OfBody,
    Always,
    Guarded,
    (status = 409, description = "AGENT_EXISTS", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn register(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::AgentRequest>,
) -> Answer<Response> {
    let Some(id) = body.agent_id.clone() else {
        return Err(Problem::invalid_at("/agent_id", "is needed"));
    };
    Holder::new(&id, None).map_err(|error| Problem::invalid_at("/agent_id", error.to_string()))?;
    let profile = profile(&body, Profile { name: id.clone(), ..Profile::default() })?;
    let sponsor = body.sponsor_id.as_deref();
    let made = app.agents.register(&id, profile, body.max_tasks, sponsor, &caller).await?;
    Ok((StatusCode::CREATED, Json(convert::agent(&made))).into_response())
}

/// One agent
#[utoipa::path(get, path = "/agents/{id}", operation_id = "show_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent", body = wire::Agent),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn show(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Agent>> {
    Ok(Json(convert::agent(&app.agents.get(&id, &caller).await?)))
}

/// Change what is known of an agent
#[utoipa::path(patch, path = "/agents/{id}", operation_id = "update_agent", tag = "agents", params(("id" = String, Path)), request_body = wire::AgentRequest, responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    OfBody,
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn update(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Body(body): Body<wire::AgentRequest>,
) -> Answer<Json<wire::Agent>> {
    if body.sponsor_id.is_some() {
        return Err(Problem::invalid_at(
            "/sponsor_id",
            "cannot be changed; remove the agent and register it anew",
        ));
    }
    if body.agent_id.as_ref().is_some_and(|other| *other != id) {
        return Err(Problem::invalid_at("/agent_id", "cannot be changed"));
    }
    let known = app.agents.get(&id, &caller).await?;
    profile(&body, known.view.profile)?;
    let change = |before: Profile| AgentUpdate {
        // It was looked at just now.
        profile: profile(&body, before).ok(),
        max_tasks: body.max_tasks,
        draining: body.draining,
    };
    Ok(Json(convert::agent(&app.agents.update(&id, change, &caller).await?)))
}

/// Remove an agent that holds nothing
#[utoipa::path(delete, path = "/agents/{id}", operation_id = "remove_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 204, description = "It is not known any more"),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "AGENT_BUSY", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn remove(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<StatusCode> {
    app.agents.remove(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The agent is alive
#[utoipa::path(post, path = "/agents/{id}/heartbeat", operation_id = "agent_heartbeat", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Agent>> {
    Ok(Json(convert::agent(&app.agents.heartbeat(&id, &caller).await?)))
}

/// The agent takes no new tasks; PATCH with `draining: false` takes that back
#[utoipa::path(post, path = "/agents/{id}/drain", operation_id = "drain_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent as it is now", body = wire::Agent),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn drain(State(app): State<App>, caller: Caller, Segment(id): Segment) -> Answer<Json<wire::Agent>> {
    let drain = |_| AgentUpdate { draining: Some(true), ..AgentUpdate::default() };
    Ok(Json(convert::agent(&app.agents.update(&id, drain, &caller).await?)))
}

/// What an agent holds and waits for
#[utoipa::path(get, path = "/agents/{id}/locks", operation_id = "agent_locks", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "At most 200; more with GET /locks?agent=", body = wire::Page<wire::Lock>),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn locks(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::Page<wire::Lock>>> {
    app.agents.get(&id, &caller).await?;
    let filter = Filter { agent: Some(id), ..Filter::default() };
    let views = app.locks.list(filter, None, MAX_LOCKS + 1).await?;
    Ok(Json(convert::page(views, MAX_LOCKS, |view| view.lock.to_string(), convert::lock)))
}

/// A token for an agent: it reads, proposes and locks for whoever answers for it
#[utoipa::path(post, path = "/agents/{id}/tokens", operation_id = "create_agent_token", tag = "agents", params(("id" = String, Path)), request_body = wire::TokenRequest, responses(
    (status = 201, description = "Made; the token is told once", body = wire::Token),
    OfBody,
    Always,
    Guarded,
    OfPost,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 409, description = "IN_FLIGHT", body = wire::Problem),
))]
async fn create_token(
    State(app): State<App>,
    Segment(id): Segment,
    posted: Posted<wire::TokenRequest, 201>,
) -> Answer<Response> {
    let sponsor = app.agents.sponsor_of(&id, &posted.caller).await?;
    let wire::TokenRequest { name, scopes, ttl_seconds } = posted.body.clone();
    let draft = TokenDraft { name, scopes, ttl_seconds };
    let made = app.accounts.create_agent_token(&id, &sponsor, &draft, &posted.caller).await?;
    Ok((StatusCode::CREATED, Json(told::token(&made.token, Some(made.secret)))).into_response())
}

/// What an agent was told: that its lock was broken, that it gave way in a deadlock
#[utoipa::path(get, path = "/agents/{id}/inbox", operation_id = "agent_inbox", tag = "agents", params(("id" = String, Path), PageParams), responses(
    (status = 200, description = "A page of messages, in order; the last 1,000 are kept", body = wire::Page<wire::InboxMessage>),
    Always,
    Guarded,
    (status = 404, description = "AGENT_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn inbox(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::InboxMessage>>> {
    let found = app.agents.inbox(&id, params.cursor_id()?, params.one_more()?, &caller).await?;
    let told = |message: &InboxMessage| wire::InboxMessage {
        message_id: message.message_id.clone(),
        kind: message.kind.clone(),
        at: message.at.into(),
        data: message.data.clone(),
    };
    Ok(Json(convert::page(found, params.limit()?, |message| message.message_id.clone(), told)))
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
