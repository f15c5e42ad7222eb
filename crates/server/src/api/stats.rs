//! Statistics routes: counts of the whole system, and the work of one user.

use ade_app::agents::{AgentFilter, HealthCursor};
use ade_domain::agent::AgentStatus;

use super::convert::status_name;
use ade_app::audit::Overview;

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(user_stats))
        .routes(routes!(agents_health))
        .routes(routes!(agent_health))
}

/// Get counts of tasks, approvals, locks, agents and audit entries.
#[utoipa::path(get, path = "/stats/overview", operation_id = "overview", tag = "audit", responses(
    (status = 200, description = "The counts", body = wire::Overview), CommonErrors,
))]
async fn overview(app: App, caller: Caller) -> JsonResult<wire::Overview> {
    let Overview { counts, audit_entries, days, today } = app.audits.overview(&caller).await?;
    let locks = app.locks.coordination().counts().await.ok();
    Ok(Json(wire::Overview {
        tasks: counts.tasks.iter().map(|(state, count)| (state.to_string(), *count)).collect(),
        tasks_archived: counts.archived,
        pending: counts.pending_approvals,
        oldest_pending: counts.oldest_pending.convert(),
        locks_held: locks.map(|locks| locks.held),
        locks_waiting: locks.map(|locks| locks.waiting),
        agents: locks.map(|locks| locks.agents),
        audit_entries,
        days: days.convert(),
        today: Some(today.convert()),
    }))
}

/// Get the tasks, approval requests and response times of a user.
#[utoipa::path(get, path = "/stats/users/{id}", operation_id = "user_stats", tag = "audit", params(("id" = String, Path)), responses(
    (status = 200, description = "The statistics", body = wire::UserStats), ReadErrors, UserNotFound,
))]
async fn user_stats(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::UserStats> {
    let user_id = caller.resolve_me(id);
    let stats = app.audits.user_stats(&user_id, &caller).await?;
    Ok(Json(wire::UserStats {
        user_id,
        tasks: stats.tasks.iter().map(|(state, count)| (state.to_string(), *count)).collect(),
        approvals: stats
            .approvals
            .iter()
            .map(|(status, count)| (status.as_str().to_owned(), *count))
            .collect(),
        pending_count: stats.pending,
        approved_today: stats.approved_today,
        rejected_today: stats.rejected_today,
        last_action_at: stats.last_action_at.convert(),
        mean_response_seconds: stats.mean_seconds,
        median_response_seconds: stats.median_seconds,
    }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HealthParams {
    /// `active`, `draining` or `offline`.
    #[param(pattern = "^(active|draining|offline)$")]
    status: Option<String>,
    /// User id of the sponsor; `me` for the caller.
    sponsor: Option<String>,
    /// Part of the id or name.
    text: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

fn parse_status(word: &str) -> Option<AgentStatus> {
    let all = [AgentStatus::Active, AgentStatus::Draining, AgentStatus::Offline];
    all.into_iter().find(|status| status_name(*status) == word)
}

/// List how the agents are: those that are offline first, then those that are draining.
///
/// Each with the locks that it holds, and how its last tasks ended that the caller may see. A page may have fewer items although more
/// follow.
#[utoipa::path(get, path = "/stats/agents", operation_id = "agents_health", tag = "agents", params(HealthParams), responses(
    (status = 200, description = "A page of agents, by status and id", body = wire::Page<wire::AgentHealth>), ReadErrors,
))]
async fn agents_health(
    app: App,
    caller: Caller,
    Params(params): Params<HealthParams>,
) -> PageResult<wire::AgentHealth> {
    let HealthParams { status, sponsor, text, limit, cursor } = params;
    let invalid = |word: &String| {
        let detail = format!("must be active, draining or offline, not {word:?}");
        Problem::invalid_at("?status", detail)
    };
    let status = status.map(|word| parse_status(&word).ok_or_else(|| invalid(&word))).transpose()?;
    let page = PageParams::new(limit, cursor);
    let after = page.parse_cursor(|cursor| {
        let (status, agent_id) = cursor.split_once(':')?;
        let agent_id = Some(agent_id.to_owned()).filter(|id| !id.is_empty());
        Some(HealthCursor { status: parse_status(status)?, agent_id })
    })?;
    let sponsor = sponsor.map(|id| caller.resolve_me(id));
    let filter = AgentFilter { status, sponsor, text };
    let found = app.agents.health(&filter, after, page.fetch_limit()? - 1, &caller).await?;
    let next_cursor =
        found.next.map(|next| format!("{}:{}", status_name(next.status), next.agent_id.unwrap_or_default()));
    Ok(Json(wire::Page { items: found.agents.iter().map(convert::agent_health).collect(), next_cursor }))
}

/// Get how an agent is.
#[utoipa::path(get, path = "/stats/agents/{id}", operation_id = "agent_health", tag = "agents", params(("id" = String, Path)), responses(
    (status = 200, description = "The agent with the locks that it holds, and how its last tasks ended", body = wire::AgentHealth),
    ReadErrors, AgentNotFound,
))]
async fn agent_health(app: App, caller: Caller, Param(id): Param) -> JsonResult<wire::AgentHealth> {
    Ok(Json(convert::agent_health(&app.agents.health_of(&id, &caller).await?)))
}
