//! Agent routes: register, update and remove agents, heartbeats, tokens, inbox.

use ade_app::agents::AgentChange;
use ade_domain::agent::AgentProfile;
use ade_domain::capability::ClaimRightsChange;
use ade_domain::lock::Holder;
use ade_domain::people_selector::PeopleSelector;
use ade_store::coordination::LockFilter;

use super::prelude::*;

const MAX_TEXT_BYTES: usize = 256;
const MAX_CONFIG_BYTES: usize = 65_536;
const MAX_TASKS: u32 = 1_000;
/// Of one agent, in its own list.
const MAX_LOCKS: usize = 200;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, register))
        .routes(routes!(show, update, remove))
        .routes(routes!(heartbeat))
        .routes(routes!(drain))
        .routes(routes!(locks))
        .routes(routes!(tokens, create_token))
        .routes(routes!(inbox))
}

/// List the known agents.
#[utoipa::path(get, path = "/agents", operation_id = "list_agents", tag = "agents", params(PageParams), responses(
    (status = 200, description = "A page of agents, ordered by id", body = wire::Page<wire::Agent>), ReadErrors,
))]
async fn list(app: App, caller: Caller, Params(page): Params<PageParams>) -> PageResult<wire::Agent> {
    let agents = app.agents.list(page.cursor().map(str::to_owned), page.fetch_limit()?, &caller).await?;
    page.page(agents, |agent| agent.view.agent_id.clone(), convert::agent)
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RegisterParams {
    /// Only check the request: nothing is registered.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    dry_run: bool,
}

/// Register an agent.
#[utoipa::path(post, path = "/agents", operation_id = "register_agent", tag = "agents", params(RegisterParams), request_body = wire::AgentRequest, responses(
    (status = 200, description = "With `dry_run`: the agent could be registered like this", body = wire::Agent),
    (status = 201, description = "The agent", body = wire::Agent), BodyErrors,
    (status = 409, description = "AGENT_EXISTS", body = wire::Problem),
))]
async fn register(
    app: App,
    caller: Caller,
    Params(RegisterParams { dry_run }): Params<RegisterParams>,
    JsonBody(body): JsonBody<wire::AgentRequest>,
) -> ApiResult {
    let Some(id) = body.agent_id.clone() else {
        return Err(Problem::invalid_at("/agent_id", "is required"));
    };
    Holder::new(&id, None).map_err(|error| Problem::invalid_at("/agent_id", error))?;
    let profile = AgentProfile { name: id.clone(), ..AgentProfile::default() };
    let change = AgentChange {
        profile: Some(merge_profile(&body, profile.clone())?),
        ..agent_change(&body, profile)?
    };
    let sponsor = body.sponsor_id.as_deref();
    if dry_run {
        let agent = app.agents.check_registration(&id, change, sponsor, &caller).await?;
        return Ok(Json(convert::agent(&agent)).into_response());
    }
    let agent = app.agents.register(&id, change, sponsor, &caller).await?;
    Ok((StatusCode::CREATED, Json(convert::agent(&agent))).into_response())
}

/// Get an agent.
#[utoipa::path(get, path = "/agents/{id}", operation_id = "show_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent", body = wire::Agent), ReadErrors, AgentNotFound,
))]
async fn show(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Agent> {
    Ok(Json(convert::agent(&app.agents.get(&id, &caller).await?)))
}

/// Update an agent.
#[utoipa::path(patch, path = "/agents/{id}", operation_id = "update_agent", tag = "agents", params(("id" = String, Path)), request_body = wire::AgentRequest, responses(
    (status = 200, description = "The updated agent", body = wire::Agent), UpdateErrors, SecondAdmin, AgentNotFound,
))]
async fn update(
    app: App,
    caller: Caller,
    Param(id): Param,
    JsonBody(body): JsonBody<wire::AgentRequest>,
) -> JsonResult<wire::Agent> {
    if body.sponsor_id.is_some() {
        let detail = "cannot be changed; remove the agent and register it again";
        return Err(Problem::invalid_at("/sponsor_id", detail));
    }
    if body.agent_id.as_ref().is_some_and(|other| *other != id) {
        return Err(Problem::invalid_at("/agent_id", "cannot be changed"));
    }
    let known = app.agents.get(&id, &caller).await?;
    let validated = agent_change(&body, known.view.profile)?;
    // Made again from the profile that the agent has by now; it is as valid as the one above.
    let change = |before: AgentProfile| agent_change(&body, before).unwrap_or(validated);
    Ok(Json(convert::agent(&app.agents.update(&id, change, &caller).await?)))
}

/// Remove an agent that holds no locks and has no tasks.
#[utoipa::path(delete, path = "/agents/{id}", operation_id = "remove_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 204, description = "The agent is removed"), ReadErrors, AgentNotFound,
    (status = 409, description = "AGENT_BUSY", body = wire::Problem),
))]
async fn remove(app: App, caller: Caller, Param(id): Param) -> ApiResult<StatusCode> {
    app.agents.remove(&id, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a heartbeat for an agent.
#[utoipa::path(post, path = "/agents/{id}/heartbeat", operation_id = "agent_heartbeat", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The updated agent", body = wire::Agent), ReadErrors, AgentNotFound,
))]
async fn heartbeat(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Agent> {
    Ok(Json(convert::agent(&app.agents.heartbeat(&id, &caller).await?)))
}

/// Drain an agent: it gets no new tasks. PATCH it with `draining: false` to resume.
#[utoipa::path(post, path = "/agents/{id}/drain", operation_id = "drain_agent", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The updated agent", body = wire::Agent), ReadErrors, AgentNotFound,
))]
async fn drain(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::Agent> {
    let drain = |_| AgentChange { draining: Some(true), ..AgentChange::default() };
    Ok(Json(convert::agent(&app.agents.update(&id, drain, &caller).await?)))
}

/// List the locks that an agent holds or waits for.
#[utoipa::path(get, path = "/agents/{id}/locks", operation_id = "agent_locks", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "At most 200 locks; use GET /locks?agent= for more", body = wire::Page<wire::Lock>),
    ReadErrors, AgentNotFound,
))]
async fn locks(app: App, caller: Caller, Param(id): Param) -> PageResult<wire::Lock> {
    app.agents.get(&id, &caller).await?;
    let page = PageParams::new(Some(MAX_LOCKS), None);
    let filter = LockFilter { agent: Some(id), ..LockFilter::default() };
    app.lock_page(&page, filter, None, &caller).await
}

/// List the valid tokens of an agent (its sponsor, or an administrator).
#[utoipa::path(get, path = "/agents/{id}/tokens", operation_id = "list_agent_tokens", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The tokens without their secrets, oldest first. Revoke one with DELETE /users/{sponsor}/tokens/{token_id}", body = wire::Page<wire::Token>),
    ReadErrors, AgentNotFound,
))]
async fn tokens(app: App, caller: Caller, Param(id): Param) -> PageResult<wire::Token> {
    app.agents.require_sponsor(&id, &caller).await?;
    let tokens = app.accounts.agent_tokens(&id, &caller).await?;
    Ok(single_page(tokens.iter().map(|token| convert::token(token, None)).collect()))
}

/// Create a token for an agent, which can read, propose tasks and lock on behalf of its sponsor.
#[utoipa::path(post, path = "/agents/{id}/tokens", operation_id = "create_agent_token", tag = "agents", params(("id" = String, Path)), request_body = wire::TokenRequest, responses(
    (status = 201, description = "The token; its secret is shown only in this response", body = wire::Token), PostErrors, AgentNotFound,
))]
async fn create_token(
    app: App,
    Param(id): Param,
    request: IdempotentPost<wire::TokenRequest, 201>,
) -> ApiResult {
    let sponsor = app.agents.require_sponsor(&id, &request.caller).await?;
    let draft = request.body.clone().convert();
    let created = app.accounts.create_agent_token(&id, &sponsor, &draft, &request.caller).await?;
    Ok((StatusCode::CREATED, Json(convert::token(&created.token, Some(created.secret)))).into_response())
}

/// List the inbox of an agent: broken locks and aborted requests.
#[utoipa::path(get, path = "/agents/{id}/inbox", operation_id = "agent_inbox", tag = "agents", params(("id" = String, Path), PageParams), responses(
    (status = 200, description = "A page of messages, oldest first; the last 1,000 are kept", body = wire::Page<wire::InboxMessage>),
    ReadErrors, AgentNotFound,
))]
async fn inbox(
    app: App,
    caller: Caller,
    Param(id): Param,
    Params(page): Params<PageParams>,
) -> PageResult<wire::InboxMessage> {
    let messages = app.agents.inbox(&id, page.uuid_cursor()?, page.fetch_limit_u32()?, &caller).await?;
    page.page(messages, |message| message.message_id.clone(), |message| message.clone().convert())
}

/// What a request changes about an agent that has this profile.
fn agent_change(body: &wire::AgentRequest, before: AgentProfile) -> ApiResult<AgentChange> {
    let has_profile =
        body.name.is_some() || body.model.is_some() || body.version.is_some() || body.config.is_some();
    let profile = merge_profile(body, before)?;
    let mut accepts = body.accepts.as_ref().map(|_| Vec::new());
    for (index, entry) in body.accepts.iter().flatten().enumerate() {
        let parsed = entry.parse::<PeopleSelector>();
        let parsed = parsed.map_err(|error| Problem::invalid_at(&format!("/accepts/{index}"), error))?;
        accepts.get_or_insert_default().push(parsed);
    }
    let grants = body
        .grants
        .as_ref()
        .map(|grants| grants.iter().map(|grant| (grant.capability.clone(), grant.scope.convert())).collect());
    Ok(AgentChange {
        profile: has_profile.then_some(profile),
        max_tasks: body.max_tasks,
        draining: body.draining,
        parent_agent_id: body.parent_agent_id.clone(),
        rights: ClaimRightsChange { capabilities: body.capabilities.clone(), grants, accepts },
    })
}

/// Validates a request and applies it to the profile that the agent has.
fn merge_profile(body: &wire::AgentRequest, before: AgentProfile) -> ApiResult<AgentProfile> {
    let texts = [("/name", &body.name), ("/model", &body.model), ("/version", &body.version)];
    for (pointer, text) in texts {
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
            return Err(Problem::invalid_at(pointer, format!("may have at most {MAX_TEXT_BYTES} bytes")));
        }
    }
    if body.name.as_deref() == Some("") {
        return Err(Problem::invalid_at("/name", "must not be empty"));
    }
    if body.max_tasks.is_some_and(|max| !(1..=MAX_TASKS).contains(&max)) {
        return Err(Problem::invalid_at("/max_tasks", format!("must be between 1 and {MAX_TASKS}")));
    }
    let config = match &body.config {
        None => before.config,
        Some(config) => {
            serde_json::to_string(config).map_err(|error| Problem::invalid_at("/config", error))?
        }
    };
    if config.len() > MAX_CONFIG_BYTES {
        return Err(Problem::invalid_at("/config", format!("may have at most {MAX_CONFIG_BYTES} bytes")));
    }
    Ok(AgentProfile {
        name: body.name.clone().unwrap_or(before.name),
        model: body.model.clone().or(before.model),
        version: body.version.clone().or(before.version),
        capabilities: before.capabilities,
        config,
    })
}
