//! Wire types of the audit log, statistics, and the inbox of agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{TaskState, Time};

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Position in the log; the first entry has 1, and there are no gaps.
    pub number: u64,
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
    /// Reason that was given.
    pub reason: Option<String>,
    /// Ticket that was given.
    pub ticket: Option<String>,
    /// Further details, depending on the action.
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
    /// Hash of the previous entry.
    pub previous_hash: String,
    /// Hash of this entry.
    pub entry_hash: String,
}

/// Who did something, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditActor {
    /// The person; none for the service itself.
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
    /// The server that received the request.
    pub service: Option<String>,
}

/// The result of verifying the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerification {
    /// Whether the log is intact.
    pub valid: bool,
    /// Number of verified entries.
    pub entries: u64,
    /// Hash of the last verified entry.
    pub head: Option<String>,
    /// The first invalid entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<InvalidAuditEntry>,
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
}

/// Outcomes of tasks on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
