//! What was recorded, on the wire: the audit log, statistics, the inbox of an agent.

use std::collections::BTreeMap;

use ade_domain::audit::AuditActor;
use ade_domain::task::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Time;

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Its place: the first has 1, and none is left out.
    pub number: u64,
    /// What it is known by.
    pub entry_id: String,
    /// When.
    pub at: Time,
    /// By whom, and from where.
    pub who: AuditActor,
    /// As `task.submit`.
    pub action: String,
    /// About what: `task`, `approval`, `policy`, `lock`.
    pub object_type: String,
    /// About which.
    pub object_id: String,
    /// About which task, if about one.
    pub task_id: Option<String>,
    /// Out of which state.
    pub from: Option<State>,
    /// Into which.
    pub to: Option<State>,
    /// Which revision it made.
    pub revision: Option<u64>,
    /// For what exactly.
    pub digest: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// For which ticket.
    pub ticket: Option<String>,
    /// Whatever else belongs to it.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub details: Map<String, Value>,
    /// The hash of the entry before.
    pub previous_hash: String,
    /// The hash of this one.
    pub entry_hash: String,
}

/// Whether the audit log is as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditVerdict {
    /// Whether it is.
    pub valid: bool,
    /// Entries that were looked at and found good.
    pub entries: u64,
    /// The hash of the last of them.
    pub head: Option<String>,
    /// The first that is not as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<BadEntry>,
}

/// An entry that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BadEntry {
    /// Its place.
    pub number: u64,
    /// In which way.
    pub why: String,
}

/// How everything stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Overview {
    /// Tasks by state, those included that are archived.
    pub tasks: BTreeMap<String, u64>,
    /// How many of them are archived.
    #[serde(default)]
    pub tasks_archived: u64,
    /// Requests that wait for an answer.
    pub pending: u64,
    /// Since when the oldest of them waits.
    pub oldest_pending: Option<Time>,
    /// Locks that are held; null if the locks are away.
    pub locks_held: Option<usize>,
    /// Requests that wait for locks.
    pub locks_waiting: Option<usize>,
    /// Agents that are known.
    pub agents: Option<usize>,
    /// Entries of the audit log that have their number.
    pub audit_entries: u64,
    /// How tasks ended on the last 30 days that are over, the newest first.
    #[serde(default)]
    pub days: Vec<Day>,
}

/// How tasks ended on a day that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Day {
    /// Which, in UTC, as `2026-11-16`.
    pub day: String,
    /// Tasks that were done.
    pub completed: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were rejected.
    pub rejected: u64,
    /// Tasks that were given up.
    pub cancelled: u64,
}

/// How somebody works.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserStats {
    /// Who.
    pub user_id: String,
    /// Its own tasks by state, those included that are archived.
    pub tasks: BTreeMap<String, u64>,
    /// Requests to it by status, those included that are archived.
    pub approvals: BTreeMap<String, u64>,
    /// How long it takes to answer, on average over the last 200 answers that are not archived.
    pub mean_response_seconds: Option<f64>,
    /// The one in the middle.
    pub median_response_seconds: Option<f64>,
}

/// Something that an agent must hear of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InboxMessage {
    /// What it is known by.
    pub message_id: String,
    /// Of which kind, such as `LOCK_BROKEN`.
    pub kind: String,
    /// When.
    pub at: Time,
    /// What happened.
    pub data: Value,
}
