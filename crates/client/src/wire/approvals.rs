//! Wire types of approval requests and decisions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Priority, RiskLevel, TaskState, Time};

/// An approval request: one reviewer is asked to decide about one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    /// Unique id.
    pub approval_id: String,
    /// Task to decide about.
    pub task_id: String,
    /// First line of the task description, at most 200 characters.
    #[serde(default)]
    pub task_description: String,
    /// Display name of the author of the task. This and the next three are absent in responses to decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_author: Option<String>,
    /// Agent that proposed the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_agent_id: Option<String>,
    /// Risk score of the task, from 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_risk_score: Option<u8>,
    /// Risk level of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_risk_level: Option<RiskLevel>,
    /// User who is asked to decide.
    pub reviewer_id: String,
    /// Display name of the reviewer.
    pub reviewer_name: String,
    /// Status of the request.
    pub status: ApprovalStatus,
    /// Urgency, from the policy.
    pub priority: Priority,
    /// Rank in the queue of the reviewer; the highest comes first.
    pub score: u32,
    /// Delegate who is asked instead of this reviewer.
    pub delegated_to: Option<String>,
    /// Delegations through which the request reached this reviewer.
    pub delegation_chain: Vec<DelegationStep>,
    /// User whose decision this reviewer follows.
    pub follows: Option<String>,
    /// Time of creation.
    pub created_at: Time,
    /// Time at which the request escalates if there is no decision.
    pub due_at: Time,
    /// Number of escalations so far.
    pub escalation_level: u8,
    /// Time of the decision.
    pub responded_at: Option<Time>,
    /// The decision.
    pub response_action: Option<DecisionKind>,
    /// Reason of the decision.
    pub response_reason: Option<String>,
    /// User who decided.
    pub reviewed_by: Option<String>,
    /// Digest of the task configuration that is to be approved.
    pub digest: String,
    /// Digest of the scope that is to be approved.
    pub scope_digest: Option<String>,
    /// Policies that require this approval.
    pub policies: Vec<String>,
    /// Why this reviewer was chosen.
    pub why: Vec<String>,
    /// State of the task; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_state: Option<TaskState>,
    /// Incremented with every change.
    pub revision: u64,
}

/// Status of an approval request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ApprovalStatus {
    /// Waits for the decision.
    Pending,
    /// The reviewer approved.
    Approved,
    /// The reviewer rejected.
    Rejected,
    /// Reassigned to another reviewer.
    Delegated,
    /// The reviewer requested changes.
    ChangesRequested,
    /// It asked about a config or preview that has changed since.
    Invalidated,
    /// The task was decided or cancelled without it.
    Closed,
}

/// What a reviewer can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseAction)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Approve the task.
    Approve,
    /// Reject the task.
    Reject,
    /// Return the task to its author.
    RequestChanges,
}

/// One step of a delegation chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DelegationStep {
    /// User who delegated.
    pub from: String,
    /// The delegate.
    pub to: String,
    /// The delegation.
    pub delegation_id: String,
}

/// A decision on an approval request, or the confirmation of an override. What an approval must carry depends on the risk of the task:
/// see `approve_needs` of the task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRequest {
    /// Reason; required to reject, to request changes, and to approve tasks of level HIGH and CRITICAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Digest of the task that you reviewed; required to approve unless the level is LOW. The decision is refused if the task has changed
    /// since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub digest: Option<String>,
    /// Digest of the scope that you reviewed; required to approve unless the level is LOW. The decision is refused if what the task can
    /// touch has changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub scope_digest: Option<String>,
    /// One of the task's resources, as `type:id` or only the id, or one of its targets, typed exactly; for a task without any, the first 8
    /// characters of its id. Required to approve tasks of level CRITICAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
}

/// Delegates an approval request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegateRequest {
    /// User id of the delegate.
    pub to: String,
}

/// The same decision on many approval requests: all succeed, or none is changed. Tasks of level HIGH and CRITICAL are not approved
/// together with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// Approval requests with the digest of each task that you reviewed; at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub items: Vec<BatchItem>,
    /// Approval requests without digests, instead of `items`; approves only tasks of the risk level LOW.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub approval_ids: Vec<String>,
    /// The decision on each of them.
    pub action: DecisionKind,
    /// Reason; required to reject, to request changes, and for `apply_immediately`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Options of the batch.
    #[serde(default)]
    pub options: BatchOptions,
}

/// One approval request of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchItem {
    /// Approval request.
    pub approval_id: String,
    /// Digest of the task that you reviewed. The batch is refused if the task has changed since.
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub digest: String,
    /// Digest of the scope that you reviewed; required to approve unless the level is LOW.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-fA-F]{64}$")]
    pub scope_digest: Option<String>,
}

/// Options of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchOptions {
    /// Ignore freshness warnings (admin). Digest, state and own tasks are always checked.
    pub skip_validation: bool,
    /// Move approved tasks to the head of the apply queue (admin). Needs a reason.
    pub apply_immediately: bool,
}

/// The result of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResponse {
    /// The updated approval requests, in the order of the request.
    pub items: Vec<Approval>,
}
