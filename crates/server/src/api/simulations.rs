//! What would happen if. Nothing is changed.

use ade_app::tasks::{Imagined, Simulated};
use ade_client::wire;
use ade_domain::Moment;
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answers::{Always, Guarded, OfBody};
use super::convert::reviews as told;
use super::extract::Body;
use super::rules::policy_change;
use super::tasks::proposal;
use crate::caller::Caller;
use crate::problem::{Answer, Problem};

/// Drafted policies of one simulation.
const MOST_POLICIES: usize = 20;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(simulate))
}

/// What submitting a task would do: its risk, who would be asked and why, which locks it would need
#[utoipa::path(post, path = "/simulations", operation_id = "simulate", tag = "rules", request_body = wire::SimulationRequest, responses(
    (status = 200, description = "What would happen; nothing does", body = wire::Simulation),
    OfBody,
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn simulate(
    State(app): State<App>,
    caller: Caller,
    Body(body): Body<wire::SimulationRequest>,
) -> Answer<Json<wire::Simulation>> {
    let wire::SimulationRequest { task_id, task, at, policies } = body;
    if policies.len() > MOST_POLICIES {
        return Err(Problem::invalid_at("/policies", format!("may be at most {MOST_POLICIES}")));
    }
    let policies: Vec<_> = policies.into_iter().map(policy_change).collect();
    let policies = ade_app::rules::imagined(&policies)?;
    let at = at.map(|time| Moment::from(time.0));
    let (imagined, when) = match (task_id, task) {
        (Some(id), None) => {
            let task = app.reviews.task(&id, &caller).await?;
            (Imagined::of(&task, at, policies), at)
        }
        (None, Some(said)) => {
            let draft = app.reviews.imagine(proposal(said), &caller).await?;
            (Imagined::new(draft, at, policies), at)
        }
        _ => return Err(Problem::invalid_at("/task", "or task_id is needed, and not both")),
    };
    let now = when.unwrap_or_else(|| app.locks.coordination().now());
    let simulated = app.reviews.simulate(&imagined, &caller).await?;
    Ok(Json(tell(simulated, now)))
}

fn tell(simulated: Simulated, at: Moment) -> wire::Simulation {
    let Simulated { risk, assignment, required_count, locks } = simulated;
    let auto_approved = assignment.as_ref().ok().and_then(|found| found.auto_approved.clone());
    let mut answer = wire::Simulation {
        risk: wire::Risk {
            score: risk.score,
            level: risk.level,
            factors: risk.factors,
            auto_approvable: auto_approved.is_some(),
            assessed_at: at.into(),
            assessed_by: risk.assessed_by,
        },
        outcome: "reviewing".to_owned(),
        why: None,
        policies: Vec::new(),
        requirements: Vec::new(),
        required_count,
        reviewers: Vec::new(),
        passed_by: Vec::new(),
        lock_preview: locks.iter().map(told::lock_preview).collect(),
    };
    match assignment {
        Err(refused) => {
            answer.outcome = "no_quorum".to_owned();
            answer.why = Some(refused.to_string());
            answer.passed_by = refused.passed_by;
        }
        Ok(found) => {
            if let Some(why) = auto_approved {
                answer.outcome = "auto_approved".to_owned();
                answer.why = Some(why);
            }
            answer.policies = found.considered;
            answer.passed_by = found.passed_by;
            answer.requirements = found
                .requirements
                .iter()
                .map(|one| wire::SimulatedRequirement {
                    policy: one.policy.clone(),
                    min_approvers: one.min_approvers,
                    required_roles: one.required_roles.iter().cloned().collect(),
                    reviewers: one.reviewers.keys().map(ToString::to_string).collect(),
                })
                .collect();
            answer.reviewers = found
                .wanted
                .into_iter()
                .map(|one| wire::SimulatedReviewer {
                    reviewer_id: one.reviewer_id.to_string(),
                    policies: one.policies,
                    stands_for: one.stands_for.iter().map(ToString::to_string).collect(),
                    delegation_chain: one.chain,
                    why: one.why,
                })
                .collect();
        }
    }
    answer
}
