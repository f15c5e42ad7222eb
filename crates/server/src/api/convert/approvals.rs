//! Conversions of approval requests.

use ade_app::ApprovalView;
use ade_client::wire;
use ade_domain::approval::Approval;
use ade_domain::task::{Task, TaskState};

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
        status: approval.status,
        priority: approval.priority,
        score: approval.score,
        delegated_to: approval.delegated_to.as_ref().map(ToString::to_string),
        delegation_chain: approval.delegation_chain.clone(),
        follows: approval.follows.as_ref().map(ToString::to_string),
        created_at: approval.created_at.into(),
        due_at: approval.due_at.into(),
        escalation_level: approval.escalation_level,
        responded_at: approval.responded_at.map(Into::into),
        response_action: approval.response_action,
        response_reason: approval.response_reason.clone(),
        reviewed_by: approval.reviewed_by.as_ref().map(ToString::to_string),
        digest: approval.digest.to_string(),
        policies: approval.policies.clone(),
        why: approval.reasons.clone(),
        task_state,
        revision: approval.revision,
    }
}

pub(crate) fn approval_view(view: &ApprovalView) -> wire::Approval {
    listed_approval(&view.approval, &view.task_description, Some(view.task_state))
}
