//! Conversions of simulations.

use ade_app::tasks::{ReplayDifference, Simulation};
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::approval::assignment::Assignee;
use ade_domain::approval::quorum::Requirement;

use super::{Convert, convert_structs, lock_preview};

convert_structs! {
    ReplayDifference => wire::ReplayedTask { task_id, before, after };
}

pub(crate) fn simulation(simulated: Simulation, assessed_at: Moment) -> wire::Simulation {
    let Simulation { risk, assignment, required_count, locks, scope } = simulated;
    let auto_approved = assignment.as_ref().ok().and_then(|assignment| assignment.auto_approved.clone());
    let mut simulation = wire::Simulation {
        risk: wire::Risk {
            score: risk.score,
            level: risk.level.convert(),
            factors: risk.factors.convert(),
            auto_approvable: auto_approved.is_some(),
            assessed_at: assessed_at.convert(),
            assessed_by: risk.assessed_by,
        },
        outcome: "reviewing".to_owned(),
        why: None,
        policies: Vec::new(),
        requirements: Vec::new(),
        required_count,
        reviewers: Vec::new(),
        skipped_reviewers: Vec::new(),
        lock_preview: locks.iter().map(lock_preview).collect(),
        scope: scope.0.convert(),
        not_automatic: Vec::new(),
    };
    match assignment {
        Err(unreachable) => {
            simulation.outcome = "no_quorum".to_owned();
            simulation.why = Some(unreachable.to_string());
            simulation.skipped_reviewers = unreachable.skipped;
        }
        Ok(assignment) => {
            if let Some(why) = auto_approved {
                simulation.outcome = "auto_approved".to_owned();
                simulation.why = Some(why);
            }
            simulation.not_automatic = assignment.not_automatic;
            simulation.policies = assignment.considered_policies.convert();
            simulation.skipped_reviewers = assignment.skipped;
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
        on_behalf_of: assignee.on_behalf_of.convert(),
        delegation_chain: assignee.delegation_chain.convert(),
        why: assignee.reasons,
    }
}
