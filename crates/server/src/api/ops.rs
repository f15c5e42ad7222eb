//! For those who run it: is it alive, is it ready, how is it doing.

use ade_client::wire;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use crate::metrics;
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(scrape))
}

/// The process answers
#[utoipa::path(get, path = "/healthz", tag = "operations", security(()), responses(
    (status = 200, description = "It does", body = Value)
))]
async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Requests can be served
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()), responses(
    (status = 200, description = "They can", body = Value),
    (status = 503, description = "STOPPING or UNAVAILABLE", body = wire::Problem),
))]
async fn readyz(State(app): State<App>) -> Answer<Json<Value>> {
    if *app.stopping.borrow() {
        return Err(Problem::stopping());
    }
    app.locks.coordination().counts().await?;
    app.record.has_unnumbered().await?;
    Ok(Json(json!({ "status": "ready" })))
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()), responses(
    (status = 200, description = "The text format", body = String, content_type = "text/plain"),
    (status = 503, description = "UNAVAILABLE", body = wire::Problem),
))]
async fn scrape(State(app): State<App>) -> Answer<Response> {
    // An outage is when metrics are looked at: whatever else is known is told.
    let counts = app.locks.coordination().counts().await.ok();
    if let (Ok(standing), Ok(waiting)) = (app.jobs.standing().await, app.record.waiting_work(1_000).await) {
        metrics::jobs(&standing, &waiting);
    }
    let none =
        || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "this process records no metrics");
    let text = metrics::render(counts).ok_or_else(none)?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
