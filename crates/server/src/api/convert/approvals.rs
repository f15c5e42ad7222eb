//! Conversions of approval requests.

use ade_app::ApprovalView;
use ade_client::wire;
use ade_domain::approval::delegation::DelegationStep;
use ade_domain::approval::{Approval, ApprovalStatus, DecisionKind};
use ade_domain::task::{Task, TaskState};

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
    listed_approval(approval, &task.config.description, Some(task.state))
}

/// An approval request in a list, for which the task itself is not loaded.
pub(crate) fn listed_approval(
    approval: &Approval,
    task_description: &str,
    task_state: Option<TaskState>,
) -> wire::Approval {
    let first_line = task_description.lines().next().unwrap_or_default();
    wire::Approval {
        approval_id: approval.approval_id.clone(),
        task_id: approval.task_id.clone(),
        task_description: first_line.chars().take(MAX_DESCRIPTION_LEN).collect(),
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
        task_state: task_state.convert(),
        revision: approval.revision,
    }
}

pub(crate) fn approval_view(view: &ApprovalView) -> wire::Approval {
    listed_approval(&view.approval, &view.task_description, Some(view.task_state))
}
