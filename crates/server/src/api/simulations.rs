//! Simulations: what submitting a task would do. Nothing is changed.

use ade_app::tasks::SimulationInput;
use ade_client::wire;
use ade_domain::Moment;
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::policies::policy_change;
use super::tasks::proposal;
use super::{AppState, convert};
use crate::auth::Caller;
use crate::http::extract::JsonBody;
use crate::http::openapi::responses::{BodyErrors, CommonErrors};
use crate::http::problem::{ApiResult, Problem};

const MAX_POLICIES: usize = 20;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(simulate))
}

/// Simulate the submission of a task: its risk, its reviewers and why, and the locks that it needs.
#[utoipa::path(post, path = "/simulations", operation_id = "simulate", tag = "rules", request_body = wire::SimulationRequest, responses(
    (status = 200, description = "The simulated outcome; nothing is changed", body = wire::Simulation),
    BodyErrors,
    CommonErrors,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn simulate(
    State(app): State<AppState>,
    caller: Caller,
    JsonBody(body): JsonBody<wire::SimulationRequest>,
) -> ApiResult<Json<wire::Simulation>> {
    let wire::SimulationRequest { task_id, task, at, policies } = body;
    if policies.len() > MAX_POLICIES {
        let detail = format!("may have at most {MAX_POLICIES} items, not {}", policies.len());
        return Err(Problem::invalid_at("/policies", detail));
    }
    let policies: Vec<_> = policies.into_iter().map(policy_change).collect();
    let policies = ade_app::rules::hypothetical_policies(&policies)?;
    let at = at.map(|time| Moment::from(time.0));
    let input = match (task_id, task) {
        (Some(id), None) => SimulationInput::of(&app.tasks.task(&id, &caller).await?, at, policies),
        (None, Some(body)) => {
            SimulationInput::new(app.tasks.draft_for_simulation(proposal(body), &caller).await?, at, policies)
        }
        _ => return Err(Problem::invalid_at("/task", "or task_id is required, but not both")),
    };
    let assessed_at = at.unwrap_or_else(|| app.locks.coordination().now());
    let simulated = app.tasks.simulate(&input, &caller).await?;
    Ok(Json(convert::simulation(simulated, assessed_at)))
}
