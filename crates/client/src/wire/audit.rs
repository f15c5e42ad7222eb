//! Wire types of the audit log, statistics, and the inbox of agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{TaskState, Time};

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Position in the log; the first entry has 1, and there are no gaps. Null for an entry of the last moments that has none yet.
    pub number: Option<u64>,
    /// Unique id.
    pub entry_id: String,
    /// Time of the action.
    pub at: Time,
    /// Who acted, and from where.
    pub who: AuditActor,
    /// Action, such as `task.submit`.
    pub action: String,
    /// Type of the object, such as `task`, `approval`, `policy` or `lock`.
    pub object_type: String,
    /// Id of the object.
    pub object_id: String,
    /// Task that the action concerns.
    pub task_id: Option<String>,
    /// State of the task before the action.
    pub from: Option<TaskState>,
    /// State of the task after the action.
    pub to: Option<TaskState>,
    /// Revision of the object after the action.
    pub revision: Option<u64>,
    /// Digest of the task configuration that the action refers to.
    pub digest: Option<String>,
    /// What was reviewed besides the configuration, where reviewers are asked or decide, or the task is approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reviewed: Option<ReviewedContent>,
    /// Reason that was given.
    pub reason: Option<String>,
    /// Ticket that was given.
    pub ticket: Option<String>,
    /// Further details, depending on the action.
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
    /// Hash of the previous entry; null without a number.
    pub previous_hash: Option<String>,
    /// Hash of this entry; null without a number.
    pub entry_hash: Option<String>,
}

/// What reviewers decide on, besides the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReviewedContent {
    /// Digest of the whole preview, as reviewers see it.
    pub preview: Option<String>,
    /// Fingerprint of the preview.
    pub fingerprint: Option<String>,
    /// Digest of what the task can touch.
    pub scope: Option<String>,
    /// Digest of the approvals that are required.
    pub requirements: String,
}

/// Who did something, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditActor {
    /// The person; null for the bootstrap token and for the service itself.
    pub user_id: Option<String>,
    /// The agent that acted for the person.
    pub agent_id: Option<String>,
    /// The session.
    pub session_id: Option<String>,
    /// The token.
    pub token_id: Option<String>,
    /// The client's address.
    pub ip: Option<String>,
    /// The client's program.
    pub user_agent: Option<String>,
    /// The server that received the request, or the part of the service that acted by itself.
    pub service: Option<String>,
    /// The process or worker that acted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Why it acted by itself: an attempt, a job, a policy or a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
}

/// The result of verifying the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerification {
    /// Whether the log is intact and contains a checkpoint: the same as `status` `valid`.
    pub valid: bool,
    /// The result.
    pub status: AuditStatus,
    /// Number of verified entries.
    pub entries: u64,
    /// Hash of the last verified entry.
    pub head: Option<String>,
    /// Number of the latest checkpoint that the log contains: up to this entry, the log is signed. The order of later entries is not
    /// proven, and entries may be missing after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
    /// Number of rows that ade did not write. They are kept, but are not part of the log.
    #[serde(default)]
    pub quarantined: u64,
    /// The first invalid entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<InvalidAuditEntry>,
}

/// Whether an audit log is intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditStatus {
    /// Every entry is intact, and the log contains a checkpoint.
    Valid,
    /// Every entry is intact, but there is no checkpoint: entries may be missing at the end.
    Unverified,
    /// An entry was edited, removed, reordered or truncated.
    Invalid,
}

/// An invalid entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvalidAuditEntry {
    /// Position in the log.
    pub number: u64,
    /// Why it is invalid.
    pub reason: String,
}

/// Counts of the whole system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// Tasks by state, including archived ones.
    pub tasks: BTreeMap<String, u64>,
    /// Number of archived tasks.
    #[serde(default)]
    pub tasks_archived: u64,
    /// Approval requests that wait for a decision.
    pub pending: u64,
    /// Creation time of the oldest of them.
    pub oldest_pending: Option<Time>,
    /// Locks held; null if the lock store is unavailable.
    pub locks_held: Option<usize>,
    /// Lock requests in queues; null if the lock store is unavailable.
    pub locks_waiting: Option<usize>,
    /// Known agents; null if the lock store is unavailable.
    pub agents: Option<usize>,
    /// Numbered entries of the audit log.
    pub audit_entries: u64,
    /// Outcomes of tasks on each of the last 30 complete days, newest first.
    #[serde(default)]
    pub days: Vec<DailyOutcomes>,
    /// Outcomes since midnight UTC.
    #[serde(default)]
    pub today: Option<DailyOutcomes>,
}

/// Outcomes of tasks on one day, and the decisions of reviewers about them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DailyOutcomes {
    /// Date in UTC, such as `2026-11-16`.
    pub day: String,
    /// Tasks that completed.
    pub completed: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were rejected.
    pub rejected: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Tasks that reviewers decided about, among the last 2,000 that ended on the day.
    #[serde(default)]
    pub reviewed: u64,
    /// Those of them that were approved.
    #[serde(default)]
    pub approved: u64,
    /// Median time from the start of their review to the decision; null without a decision.
    #[serde(default)]
    pub median_decision_seconds: Option<f64>,
    /// Approval requests that waited at the end of the day, or wait now; null if no server counted them.
    #[serde(default)]
    pub backlog: Option<u64>,
}

/// Statistics of a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserStats {
    /// The user.
    pub user_id: String,
    /// The user's own tasks by state, including archived ones.
    pub tasks: BTreeMap<String, u64>,
    /// Approval requests to the user by status, including archived ones.
    pub approvals: BTreeMap<String, u64>,
    /// Approval requests that wait for a decision of the user.
    pub pending_count: u64,
    /// Approvals that the user gave since midnight UTC.
    pub approved_today: u64,
    /// Rejections that the user gave since midnight UTC.
    pub rejected_today: u64,
    /// Time of the user's last decision that is not archived.
    pub last_action_at: Option<Time>,
    /// Mean response time of the last 200 decisions that are not archived.
    pub mean_response_seconds: Option<f64>,
    /// Median response time of the same decisions.
    pub median_response_seconds: Option<f64>,
}

/// A message to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InboxMessage {
    /// Unique id.
    pub message_id: String,
    /// Kind, such as `LOCK_BROKEN`.
    pub kind: String,
    /// Time of the event.
    pub at: Time,
    /// Details, depending on the kind.
    pub data: Value,
}
