//! Wire types of tasks, their risk, preview, comments and statistics.

use std::collections::BTreeMap;

use ade_domain::approval::assignment::ConsideredPolicy;
use ade_domain::approval::quorum::RequirementProgress;
use ade_domain::risk::{RiskFactor, RiskLevel};
use ade_domain::task::{Config, Lineage, Preview, PreviewChange, Resource, RollbackStrategy, TaskState};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Execution, LockMode, Time, nullable};

/// A task: a proposed change that is reviewed and then applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// Unique id.
    pub task_id: String,
    /// State in the lifecycle.
    pub state: TaskState,
    /// Incremented with every change.
    pub revision: u64,
    /// SHA-256 of the canonical form of `config`. Approvals are given for this digest.
    pub digest: String,
    /// What the task does.
    pub config: Config,
    /// Author, team, ticket, tags and history.
    pub metadata: TaskMetadata,
    /// Risk, once it is assessed.
    pub risk: Option<Risk>,
    /// Changes that applying the task would make.
    pub preview: Preview,
    /// Locks that applying the task needs, with their state at submission.
    pub lock_preview: Vec<LockPreview>,
    /// Approvals required, and their progress.
    pub requirements: Vec<RequirementProgress>,
    /// Minimum number of approvals that would satisfy all requirements from the beginning.
    pub required_count: u32,
    /// Archive with the approval requests. They are archived 30 days after the task ended.
    #[serde(default)]
    pub requests_archive: Option<String>,
    /// Policies that were considered, and why they apply or not.
    pub policies: Vec<ConsideredPolicy>,
    /// Candidates who were skipped as reviewers, and why.
    pub passed_by: Vec<String>,
    /// Why the task was approved automatically.
    pub auto_approved: Option<String>,
    /// Override that waits for confirmation by a second administrator.
    pub override_asked: Option<PendingOverride>,
    /// Why the review was restarted the last time.
    #[serde(default)]
    pub reopened: Option<Reopened>,
    /// Whether it is applied before all other tasks.
    pub forced: bool,
    /// Commands that the caller may use on the task now.
    pub allowed: Vec<String>,
    /// Worker or agent that claimed the task last since its last change.
    #[serde(default)]
    pub claimed_by: Option<String>,
    /// Current or last execution.
    pub execution: Option<Execution>,
    /// Task from which it was resubmitted.
    pub predecessor: Option<String>,
}

/// Author, team, ticket, tags and history of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Time at which the task entered each state for the last time.
    pub since: BTreeMap<String, Time>,
}

/// The risk of a task, with its factors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Risk {
    /// Score from 0 to 100.
    pub score: u8,
    /// Level that the score belongs to.
    pub level: RiskLevel,
    /// Factors of the score.
    pub factors: Vec<RiskFactor>,
    /// Whether the task can be approved automatically.
    pub auto_approvable: bool,
    /// Time of the assessment.
    pub assessed_at: Time,
    /// Scoring method.
    pub assessed_by: String,
}

/// A lock that applying a task needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockPreview {
    /// Name of the lock.
    pub lock: String,
    /// Required mode.
    pub mode: LockMode,
    /// Current holders.
    pub holders: Vec<String>,
    /// Number of waiters.
    pub queue_length: usize,
    /// Estimated wait in seconds.
    pub expected_wait_seconds: f64,
    /// Whether the lock store was unavailable, so that the state is unknown.
    pub unavailable: bool,
}

/// An override that waits for confirmation by a second administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PendingOverride {
    /// Administrator who requested it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Incident ticket.
    pub incident_ticket: String,
    /// Time of the request. It must be confirmed within an hour.
    pub at: Time,
}

/// Why a review was restarted. Earlier decisions do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reopened {
    /// Reason: the preview changed after approval (`STALE_PREVIEW: …`), the approval expired (`EXPIRED: …`), or the
    /// task was changed.
    pub why: String,
    /// Time of the restart.
    pub at: Time,
}

/// A preview that an agent supplies for its own task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// Changes; at most 1,000.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 1_000))]
    pub changes: Vec<PreviewChange>,
    /// Warnings for the reviewers.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub warnings: Vec<String>,
    /// Errors that applying the task would cause.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub errors: Vec<String>,
}

/// Creates a task, or updates one. In an update, absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Task type, which selects policies and the failure history. Required to create a task.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub task_type: Option<String>,
    /// Version of the task type; `1` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub version: Option<String>,
    /// Description for reviewers. Required to create a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16_384))]
    pub description: Option<String>,
    /// Executor: `agent` (default), `command`, `files`, `http`, `noop` or `sql`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(pattern = "^(agent|command|files|http|noop|sql)$"))]
    pub executor: Option<String>,
    /// Parameters of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub parameters: Option<Map<String, Value>>,
    /// Resources that the task changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub resources: Option<Vec<Resource>>,
    /// What happens after a failure; automatic rollback by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_strategy: Option<RollbackStrategy>,
    /// Maximum execution time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub timeout_seconds: Option<u32>,
    /// Priority from 0 to 100; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub priority: Option<u8>,
    /// Team; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 256))]
    pub team: Option<Option<String>>,
    /// Reference to a ticket; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 256))]
    pub ticket_ref: Option<Option<String>>,
    /// Tags to find the task by; at most 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub tags: Option<Vec<String>>,
    /// Agents and users through whom the task was created. Every user in it counts as an author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// Preview, for the executor `agent` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewRequest>,
}

/// A reason for an action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReasonRequest {
    /// Reason, recorded in the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Requests an override of the policies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CommentRequest {
    /// Text, 1 to 16,384 bytes.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 16_384))]
    pub text: String,
}

/// A comment on a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Comment {
    /// Unique id.
    pub comment_id: String,
    /// The task.
    pub task_id: String,
    /// User who wrote it.
    pub author_id: String,
    /// The text.
    pub text: String,
    /// Time of creation.
    pub created_at: Time,
}

/// Review statistics of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskStats {
    /// The task.
    pub task_id: String,
    /// Seconds from submission to decision; null if undecided.
    pub decided_after_seconds: Option<f64>,
    /// Number of reviewers who were asked.
    pub asked: usize,
    /// Number of reviewers who decided.
    pub answered: usize,
    /// Number of escalations.
    pub escalations: u64,
    /// Number of comments.
    pub comments: usize,
}
