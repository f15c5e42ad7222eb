//! Operations routes for monitoring: health, readiness, Prometheus metrics. They need no authentication.

use axum::http::header;
use serde_json::{Value, json};

use super::prelude::*;
use crate::process::metrics;

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

/// Check that the server can serve requests.
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()), responses(
    (status = 200, description = "The server is ready; `status` is `ready`, or `degraded` with `reasons` if the audit log was tampered with or its entries get no numbers", body = Value),
    (status = 503, description = "STOPPING or UNAVAILABLE", body = wire::Problem),
))]
async fn readyz(app: App) -> JsonResult<Value> {
    if *app.stopping.borrow() {
        return Err(Problem::stopping());
    }
    app.locks.coordination().counts().await?;
    app.database.has_unnumbered().await?;
    // Requests are served: an operator must look, a load balancer must not act.
    let reasons = app.alerts.reasons();
    Ok(Json(if reasons.is_empty() {
        json!({ "status": "ready" })
    } else {
        json!({ "status": "degraded", "reasons": reasons })
    }))
}

/// Get metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", operation_id = "scrape", tag = "operations", security(()), responses(
    (status = 200, description = "The metrics", body = String, content_type = "text/plain"),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn metrics_text(app: App) -> ApiResult {
    // Metrics are needed most during an outage: whatever is available is rendered.
    let counts = app.locks.coordination().counts().await.ok();
    if let (Ok(jobs), Ok(waiting)) =
        (app.jobs.statuses().await, app.database.queued_work(MAX_WORK_QUEUES).await)
    {
        metrics::record_jobs(&jobs, &waiting);
    }
    metrics::record_alerts(&app.alerts);
    if let Ok(quarantined) = app.database.quarantined_entries().await {
        metrics::record_quarantined(quarantined);
    }
    let unavailable = || Problem::unavailable("UNAVAILABLE", "this process records no metrics");
    let text = metrics::render(counts).ok_or_else(unavailable)?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
