//! Conversions of approval requests.

use ade_app::ApprovalView;
use ade_client::wire;
use ade_domain::approval::delegation::DelegationStep;
use ade_domain::approval::{Approval, ApprovalStatus, DecisionKind};
use ade_domain::task::Task;
use ade_store::database::TaskSummary;

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    ApprovalStatus = wire::ApprovalStatus { Pending, Approved, Rejected, Delegated, ChangesRequested, Invalidated, Closed }
    DecisionKind = wire::DecisionKind { Approve, Reject, RequestChanges }
}

convert_structs! {
    DelegationStep => wire::DelegationStep { from, to, delegation_id };
}

/// Characters of the task description that an approval request shows.
const MAX_DESCRIPTION_LEN: usize = 200;

pub(crate) fn approval(approval: &Approval, task: &Task) -> wire::Approval {
    wire::Approval {
        task_state: Some(task.state).convert(),
        ..listed_approval(approval, Some(&TaskSummary::of(task)))
    }
}

/// An approval request in a list, for which the task itself is not loaded.
pub(crate) fn listed_approval(approval: &Approval, task: Option<&TaskSummary>) -> wire::Approval {
    let risk = task.and_then(|task| task.risk);
    wire::Approval {
        approval_id: approval.approval_id.clone(),
        task_id: approval.task_id.clone(),
        task_description: task.map_or_else(String::new, |task| short_description(&task.description)),
        task_author: task.map(|task| task.author_name.clone()),
        task_agent_id: task.and_then(|task| task.agent_id.clone()),
        task_risk_score: risk.map(|(score, _)| score),
        task_risk_level: risk.map(|(_, level)| level).convert(),
        reviewer_id: approval.reviewer_id.to_string(),
        reviewer_name: approval.reviewer_name.clone(),
        status: approval.status.convert(),
        priority: approval.priority.convert(),
        score: approval.score,
        delegated_to: approval.delegated_to.clone().convert(),
        delegation_chain: approval.delegation_chain.clone().convert(),
        follows: approval.follows.clone().convert(),
        created_at: approval.created_at.convert(),
        due_at: approval.due_at.convert(),
        escalation_level: approval.escalation_level,
        responded_at: approval.responded_at.convert(),
        response_action: approval.response_action.convert(),
        response_reason: approval.response_reason.clone(),
        reviewed_by: approval.reviewed_by.clone().convert(),
        digest: approval.digest.to_string(),
        scope_digest: approval.scope_digest.convert(),
        policies: approval.policies.clone(),
        why: approval.reasons.clone(),
        task_state: None,
        revision: approval.revision,
    }
}

pub(crate) fn approval_view(view: &ApprovalView) -> wire::Approval {
    wire::Approval {
        task_description: short_description(&view.task_description),
        task_state: Some(view.task_state).convert(),
        ..listed_approval(&view.approval, None)
    }
}

fn short_description(description: &str) -> String {
    description.lines().next().unwrap_or_default().chars().take(MAX_DESCRIPTION_LEN).collect()
}
