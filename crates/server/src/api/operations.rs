//! Operations routes for monitoring: health, readiness, Prometheus metrics. They need no authentication.

use std::time::Duration;

use ade_app::locks::LockAvailability;
use axum::http::header;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::prelude::*;
use crate::process::metrics;

/// How long a check of readiness waits for a store: load balancers wait for little more.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCKS_UNAVAILABLE: &str = "Redis is unavailable: lock requests with a ticket and releases are stored, other lock requests are \
    refused; tasks and reviews go on";
const LOCKS_RECOVERING: &str =
    "Redis is back: stored lock requests are executed before new ones are admitted";
const DATABASE_UNAVAILABLE: &str = "the database is unavailable: agents whose tokens were used in the last five minutes keep and \
    acquire locks; everything else is refused";
/// Places whose waiting tasks are counted.
const MAX_WORK_QUEUES: u32 = 1_000;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics_text))
}

/// Check that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "operations", security(()), responses(
    (status = 200, description = "The process is alive", body = Value),
))]
async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReadyParams {
    /// Respond 503 also if the server is degraded: for checks that need everything, not for load balancers.
    #[serde(default)]
    strict: bool,
}

/// Check that the server can serve requests.
///
/// A degraded server still serves what does not need the missing part, so a load balancer should keep it.
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()), params(ReadyParams), responses(
    (status = 200, description = "The server is ready; `status` is `ready`, or `degraded` with `reasons`: Redis or the database is unavailable, the audit log was tampered with, or its entries get no numbers", body = Value),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
    (status = 503, description = "STOPPING; UNAVAILABLE if nothing can be served; DEGRADED with `reasons` if `strict`", body = wire::Problem),
))]
async fn readyz(app: App, Params(params): Params<ReadyParams>) -> JsonResult<Value> {
    if *app.stopping.borrow() {
        return Err(Problem::stopping());
    }
    let has_locks = app.has_locks().await;
    let has_database = app.has_database().await;
    if !has_locks && !has_database {
        let detail = "neither the lock store nor the database is available; see the log of the server";
        return Err(Problem::unavailable("UNAVAILABLE", detail).retry_after(1));
    }
    // Requests are served: an operator must look, a load balancer must not act.
    let mut reasons = app.alerts.reasons();
    reasons.extend(app.outage_reasons(has_locks, has_database));
    if reasons.is_empty() {
        return Ok(Json(json!({ "status": "ready" })));
    }
    if params.strict {
        let detail = format!("the server is degraded: {}", reasons.join("; "));
        return Err(Problem::unavailable("DEGRADED", detail).with("reasons", reasons).retry_after(1));
    }
    Ok(Json(json!({ "status": "degraded", "reasons": reasons })))
}

impl AppState {
    /// Whether the lock store answers.
    async fn has_locks(&self) -> bool {
        self.locks.availability() != LockAvailability::Unavailable
            && matches!(timeout(CHECK_TIMEOUT, self.locks.coordination().counts()).await, Ok(Ok(_)))
    }

    /// Whether the database answers.
    async fn has_database(&self) -> bool {
        matches!(timeout(CHECK_TIMEOUT, self.database.has_unnumbered()).await, Ok(Ok(_)))
    }

    fn outage_reasons(&self, has_locks: bool, has_database: bool) -> Vec<String> {
        let mut reasons = Vec::new();
        if !has_locks {
            reasons.push(LOCKS_UNAVAILABLE.to_owned());
        } else if self.locks.availability() == LockAvailability::Recovering {
            reasons.push(LOCKS_RECOVERING.to_owned());
        }
        if !has_database {
            reasons.push(DATABASE_UNAVAILABLE.to_owned());
        }
        reasons
    }
}

/// Get metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", operation_id = "scrape", tag = "operations", security(()), responses(
    (status = 200, description = "The metrics", body = String, content_type = "text/plain"),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn metrics_text(app: App) -> ApiResult {
    // Metrics are needed most during an outage: whatever is available is rendered.
    let counts = app.locks.coordination().counts().await.ok();
    metrics::record_availability(&app.locks, app.has_database().await);
    if let Ok(stored) = app.locks.count_pending_requests().await {
        metrics::record_stored_requests(stored);
    }
    if let (Ok(jobs), Ok(waiting)) =
        (app.jobs.statuses().await, app.database.queued_work(MAX_WORK_QUEUES).await)
    {
        metrics::record_jobs(&jobs, &waiting);
    }
    metrics::record_alerts(&app.alerts);
    metrics::record_deliveries(&app.webhooks.delivery_counts());
    if let Ok(backlog) = app.webhooks.backlog().await {
        metrics::record_webhook_backlog(&backlog);
    }
    metrics::record_followers(app.event_connections.count());
    if let Some(relay) = &app.relay
        && let Ok(events) = relay.unread_events().await
    {
        metrics::record_relay_lag(events);
    }
    if let Ok(quarantined) = app.database.quarantined_entries().await {
        metrics::record_quarantined(quarantined);
    }
    let unavailable = || Problem::unavailable("UNAVAILABLE", "this process records no metrics");
    let text = metrics::render(counts).ok_or_else(unavailable)?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
