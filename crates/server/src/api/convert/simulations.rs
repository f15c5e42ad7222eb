//! Conversions of simulation and replay results.

use ade_app::tasks::{ReplayDifference, Simulation};
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::approval::assignment::Assignee;
use ade_domain::approval::quorum::Requirement;

use super::lock_preview;

pub(crate) fn simulation(simulated: Simulation, assessed_at: Moment) -> wire::Simulation {
    let Simulation { risk, assignment, required_count, locks } = simulated;
    let auto_approved = assignment.as_ref().ok().and_then(|assignment| assignment.auto_approved.clone());
    let mut simulation = wire::Simulation {
        risk: wire::Risk {
            score: risk.score,
            level: risk.level,
            factors: risk.factors,
            auto_approvable: auto_approved.is_some(),
            assessed_at: assessed_at.into(),
            assessed_by: risk.assessed_by,
        },
        outcome: "reviewing".to_owned(),
        why: None,
        policies: Vec::new(),
        requirements: Vec::new(),
        required_count,
        reviewers: Vec::new(),
        passed_by: Vec::new(),
        lock_preview: locks.iter().map(lock_preview).collect(),
    };
    match assignment {
        Err(unreachable) => {
            simulation.outcome = "no_quorum".to_owned();
            simulation.why = Some(unreachable.to_string());
            simulation.passed_by = unreachable.skipped;
        }
        Ok(assignment) => {
            if let Some(why) = auto_approved {
                simulation.outcome = "auto_approved".to_owned();
                simulation.why = Some(why);
            }
            simulation.policies = assignment.considered_policies;
            simulation.passed_by = assignment.skipped;
            simulation.requirements = assignment.requirements.iter().map(requirement).collect();
            simulation.reviewers = assignment.assignees.into_iter().map(reviewer).collect();
        }
    }
    simulation
}

fn requirement(requirement: &Requirement) -> wire::SimulatedRequirement {
    wire::SimulatedRequirement {
        policy: requirement.policy.clone(),
        min_approvers: requirement.min_approvers,
        required_roles: requirement.required_roles.iter().cloned().collect(),
        reviewers: requirement.reviewers.keys().map(ToString::to_string).collect(),
    }
}

fn reviewer(assignee: Assignee) -> wire::SimulatedReviewer {
    wire::SimulatedReviewer {
        reviewer_id: assignee.reviewer_id.to_string(),
        policies: assignee.policies,
        stands_for: assignee.on_behalf_of.iter().map(ToString::to_string).collect(),
        delegation_chain: assignee.delegation_chain,
        why: assignee.reasons,
    }
}

pub(crate) fn replayed_task(task: ReplayDifference) -> wire::ReplayedTask {
    wire::ReplayedTask { task_id: task.task_id, was: task.before, would_be: task.after }
}
