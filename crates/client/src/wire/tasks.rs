//! Wire types of tasks, their config, comments and statistics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    ConsideredPolicy, Execution, LockMode, LockPreview, PendingOverride, Preview, PreviewRequest, Reopened,
    Requirement, Risk, Time, nullable,
};

/// A task: a proposed change that is reviewed and then applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Unique id.
    pub task_id: String,
    /// State in the lifecycle.
    pub state: TaskState,
    /// Incremented with every change.
    pub revision: u64,
    /// SHA-256 of the canonical form of `config`. Approvals are given for this digest.
    pub digest: String,
    /// SHA-256 of the scope. Approvals are given for this digest, too.
    pub scope_digest: Option<String>,
    /// What the task does.
    pub config: Config,
    /// What the task can touch, derived from its parameters.
    pub scope: Vec<ScopePart>,
    /// Author, team, ticket, tags and history.
    pub metadata: TaskMetadata,
    /// Risk, once it is assessed.
    pub risk: Option<Risk>,
    /// Changes that applying the task would make.
    pub preview: Preview,
    /// Locks that applying the task needs, with their state at submission.
    pub lock_preview: Vec<LockPreview>,
    /// Approvals required, and their progress.
    pub requirements: Vec<Requirement>,
    /// Minimum number of approvals that would satisfy all requirements from the beginning.
    pub required_count: u32,
    /// Archive with the approval requests. They are archived 30 days after the task ended.
    #[serde(default)]
    pub requests_archive: Option<String>,
    /// Policies that were considered, and why they apply or not.
    pub policies: Vec<ConsideredPolicy>,
    /// Candidates who were skipped as reviewers, and why.
    pub skipped_reviewers: Vec<String>,
    /// Why the task was approved automatically.
    pub auto_approved: Option<String>,
    /// Why the task was not approved automatically.
    pub not_automatic: Vec<String>,
    /// Override that waits for confirmation by a second administrator.
    pub override_request: Option<PendingOverride>,
    /// Why the review was restarted the last time.
    #[serde(default)]
    pub reopened: Option<Reopened>,
    /// Whether it is applied before all other tasks.
    pub forced: bool,
    /// Commands that the caller may use on the task now.
    pub allowed: Vec<String>,
    /// What an approval of the task must carry, and the confirmation of an override: `digest`, `scope_digest`, `reason` and `confirm` in the
    /// request, and a `password` given within 15 minutes. It grows with the risk; empty unless the task is in review.
    #[serde(default)]
    pub approve_needs: Vec<String>,
    /// Worker or agent that claimed the task last since its last change.
    #[serde(default)]
    pub claimed_by: Option<String>,
    /// Current or last execution.
    pub execution: Option<Execution>,
    /// Until when the approved task is held before it is applied, so that the approval can be revoked; null unless it is held now.
    #[serde(default)]
    pub held_until: Option<Time>,
    /// Task from which it was resubmitted.
    pub predecessor: Option<String>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TaskState {
    /// Not submitted yet.
    Draft,
    /// Validated, with risk and preview. Left in the same step, for review or approval.
    Submitted,
    /// Reviewers are asked.
    Reviewing,
    /// Every requirement is satisfied or overridden.
    Approved,
    /// A worker holds the locks and applies it.
    Applying,
    /// Applied.
    Completed,
    /// Applying it failed, or its outcome is unknown.
    Failed,
    /// Rejected by reviewers, or its approval was revoked.
    Rejected,
    /// Cancelled before it was applied.
    Cancelled,
}

/// What a task executes. It does not change once submitted: a modification has a new digest and restarts the review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The type of the task. Policies and the failure rate go by it.
    #[serde(rename = "type")]
    pub task_type: String,
    /// The version of the type.
    pub version: String,
    /// What the task does, for people.
    pub description: String,
    /// What applies the task: files, sql, command, http, agent or noop.
    pub executor: String,
    /// The input of the executor.
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// The resources that the task changes or reads.
    pub resources: Vec<Resource>,
    /// What happens to the effects of a failed attempt.
    pub rollback_strategy: RollbackStrategy,
    /// How long applying the task may take.
    pub timeout_seconds: u32,
    /// From 0 to 100; higher is applied first.
    pub priority: u8,
}

/// What a task reaches through one root, connection, template or host of the operator, or through an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScopePart {
    /// Its name, such as `files:handbook`.
    pub binding: String,
    /// Targets, such as `files:handbook/guide.md`.
    pub targets: Vec<String>,
    /// Resources that the operator has bound to it.
    pub resources: Vec<Resource>,
    /// Criticality that the operator has given to it.
    pub criticality: Option<u8>,
    /// How the task locks it as a whole.
    pub lock: Option<LockMode>,
}

/// A resource that a task changes or reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Type, such as `database`.
    #[serde(rename = "type")]
    pub resource_type: String,
    /// Id within the type.
    pub id: String,
    /// How the task locks it.
    #[serde(default)]
    pub mode: LockMode,
}

/// What happens to the effects of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RollbackStrategy {
    /// They are rolled back immediately.
    Automatic,
    /// An administrator can request a rollback.
    Manual,
    /// They remain.
    None,
}

/// The agents that proposed a task and the person on whose behalf they act.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lineage {
    /// The agent that proposed the task.
    pub agent_id: Option<String>,
    /// The agent that instructed it.
    pub parent_agent_id: Option<String>,
    /// The person who is responsible for these agents.
    pub sponsor_id: Option<String>,
}

/// Author, team, ticket, tags and history of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskMetadata {
    /// User id of the author.
    pub author_id: String,
    /// Display name of the author at creation.
    pub author_name: String,
    /// Team.
    pub team: Option<String>,
    /// Reference to a ticket.
    pub ticket_ref: Option<String>,
    /// Tags to find the task by.
    pub tags: Vec<String>,
    /// Agents and users through whom the task was created.
    pub lineage: Lineage,
    /// Agents that created, changed or submitted the task, or created a task that it was resubmitted from.
    #[serde(default)]
    pub by_agent: Vec<String>,
    /// Time of the last change.
    pub updated_at: Time,
    /// Time at which the task entered each state for the last time.
    pub since: BTreeMap<String, Time>,
}

/// Creates a task, or updates one. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Task type, which selects policies and the failure history. Required to create a task.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub task_type: Option<String>,
    /// Version of the task type; `1` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub version: Option<String>,
    /// Description for reviewers. Required to create a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 16_384)]
    pub description: Option<String>,
    /// Executor: `agent` (default), `command`, `files`, `http`, `noop` or `sql`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(agent|command|files|http|noop|sql)$")]
    pub executor: Option<String>,
    /// Parameters of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Resources that the task changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub resources: Option<Vec<Resource>>,
    /// What happens after a failure; automatic rollback by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_strategy: Option<RollbackStrategy>,
    /// Maximum execution time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86_400)]
    pub timeout_seconds: Option<u32>,
    /// Priority from 0 to 100; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub priority: Option<u8>,
    /// Team; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub team: Option<Option<String>>,
    /// Reference to a ticket; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub ticket_ref: Option<Option<String>>,
    /// Tags to find the task by; at most 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 50)]
    pub tags: Option<Vec<String>>,
    /// Agents through which the task was created: the calling agent or one that you sponsor, with the parent that it is
    /// registered with. Their sponsors count as authors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// Preview, for the executor `agent` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewRequest>,
}

/// A reason for an action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasonRequest {
    /// Reason, recorded in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Requests an override of the policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OverrideRequest {
    /// Reason. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Incident ticket. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident_ticket: Option<String>,
}

/// Comments on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommentRequest {
    /// Text, 1 to 16,384 bytes.
    #[schema(min_length = 1, max_length = 16_384)]
    pub text: String,
}

/// A comment on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Comment {
    /// Unique id.
    pub comment_id: String,
    /// The task.
    pub task_id: String,
    /// User who wrote it, or whose agent did.
    pub author_id: String,
    /// Agent that wrote it; null if the user did.
    #[serde(default)]
    pub agent_id: Option<String>,
    /// The text.
    pub text: String,
    /// Time of creation.
    pub created_at: Time,
}

/// Review statistics of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskStats {
    /// The task.
    pub task_id: String,
    /// Seconds from submission to decision; null if undecided.
    pub decided_after_seconds: Option<f64>,
    /// Minimum number of approvals that would satisfy all requirements from the beginning.
    pub required_count: u32,
    /// Number of approvals of the task as it is now.
    pub approved_count: usize,
    /// Number of rejections of the task as it is now.
    pub rejected_count: usize,
    /// Number of approval requests without a decision.
    pub pending_count: usize,
    /// Whether the approvals suffice, or none is required.
    pub quorum_reached: bool,
    /// Number of approval requests.
    pub requested: usize,
    /// Number of reviewers who decided.
    pub decided: usize,
    /// Number of escalations.
    pub escalations: u64,
    /// Number of comments.
    pub comments: usize,
}
