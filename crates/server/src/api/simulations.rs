//! Simulations: what submitting a task would do. Nothing is changed.

use ade_app::tasks::SimulationInput;

use super::prelude::*;

const MAX_POLICIES: usize = 20;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(simulate))
}

/// Simulate the submission of a task: its risk, its reviewers and why, and the locks that it needs.
#[utoipa::path(post, path = "/simulations", operation_id = "simulate", tag = "rules", request_body = wire::SimulationRequest, responses(
    (status = 200, description = "The simulated outcome; nothing is changed", body = wire::Simulation), BodyErrors, PreviewErrors, TaskNotFound,
))]
async fn simulate(
    app: App,
    caller: Caller,
    JsonBody(body): JsonBody<wire::SimulationRequest>,
) -> JsonResult<wire::Simulation> {
    let wire::SimulationRequest { task_id, task, at, policies } = body;
    if policies.len() > MAX_POLICIES {
        let detail = format!("may have at most {MAX_POLICIES} items, not {}", policies.len());
        return Err(Problem::invalid_at("/policies", detail));
    }
    let policies: Vec<_> = policies.convert();
    let policies = ade_app::rules::hypothetical_policies(&policies)?;
    let at = at.convert();
    let input = match (task_id, task) {
        (Some(id), None) => SimulationInput::of(&app.tasks.task(&id, &caller).await?, at, policies),
        (None, Some(body)) => {
            SimulationInput::new(app.tasks.draft_for_simulation(body.convert(), &caller).await?, at, policies)
        }
        _ => return Err(Problem::invalid_at("/task", "or task_id is required, but not both")),
    };
    let assessed_at = at.unwrap_or_else(|| app.locks.coordination().now());
    let simulated = app.tasks.simulate(&input, &caller).await?;
    Ok(Json(convert::simulation(simulated, assessed_at)))
}
