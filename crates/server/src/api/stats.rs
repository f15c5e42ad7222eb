//! Statistics routes: counts of the whole system, and the work of one user.

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(overview)).routes(routes!(user_stats))
}

/// Get counts of tasks, approvals, locks, agents and audit entries.
#[utoipa::path(get, path = "/stats/overview", operation_id = "overview", tag = "audit", responses(
    (status = 200, description = "The counts", body = wire::Overview), CommonErrors,
))]
async fn overview(app: App, caller: Caller) -> JsonResult<wire::Overview> {
    let (counts, audit_entries, days) = app.audits.overview(&caller).await?;
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
