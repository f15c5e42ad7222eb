//! Wire types of executions, and of agents that claim tasks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{LockMode, Task, Time};

/// The execution of a task: the current attempt, or the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// Number of the attempt; incremented with every attempt and every recovery.
    pub attempt: u64,
    /// Worker or agent that applies the task.
    pub agent_id: String,
    /// Phase of the execution.
    pub phase: Phase,
    /// Time until which the worker or agent counts as alive without a heartbeat; null after the end.
    pub lease_until: Option<Time>,
    /// Start of the attempt.
    pub started_at: Time,
    /// End of the attempt.
    pub completed_at: Option<Time>,
    /// Result of the attempt.
    pub result: Option<ExecutionResult>,
    /// Output, at most 64 KiB.
    pub output: Option<String>,
    /// Key of the blob with the complete output, if it is longer.
    pub output_key: Option<String>,
    /// Error message.
    pub error: Option<String>,
    /// The error as data: `code`, `effects`, `phase`, `retryable`, `attempt`, `worker`, `rolled_back`, and what the agent
    /// `reported`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub error_details: Option<Map<String, Value>>,
    /// Error code.
    pub code: Option<FailureCode>,
    /// Whether the changes were rolled back; null if no rollback was attempted.
    pub rolled_back: Option<bool>,
    /// Number of retries so far.
    pub retry_count: u32,
    /// Locks that are held for the execution, with their fencing tokens.
    pub grants: Vec<HeldLock>,
    /// Request of an administrator to stop the execution.
    pub stop: Option<AdminRequest>,
    /// Request of an administrator to roll the execution back.
    pub rollback: Option<AdminRequest>,
}

/// The phase of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// The locks are held, and nothing has changed.
    Prepared,
    /// Something may have changed. The data for a rollback is saved.
    Started,
    /// The changes are being rolled back.
    RollingBack,
    /// It has a result.
    Ended,
}

/// The result of applying a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionResult {
    /// It is applied.
    Success,
    /// It failed, or the outcome is unknown.
    Failure,
    /// It took too long.
    Timeout,
    /// An administrator stopped it.
    Cancelled,
}

/// Why applying a task failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// The executor or agent reported a failure.
    ExecutionFailed,
    /// It exceeded its timeout.
    TimedOut,
    /// An administrator stopped it.
    Stopped,
    /// The locks were lost while it ran.
    LocksLost,
    /// The worker was lost, and its effects were rolled back.
    WorkerLost,
    /// The effects are unknown.
    OutcomeUnknown,
    /// The stored config is not the approved one; nothing was changed.
    DigestMismatch,
    /// The audit log does not prove the approval; nothing was changed.
    UnprovenApproval,
}

/// A lock that an attempt holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldLock {
    /// The name, such as `resource:database:users`.
    pub lock: String,
    /// Mode in which it is held.
    pub mode: LockMode,
    /// Increases with every grant of the lock.
    pub fencing_token: u64,
}

/// A request of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdminRequest {
    /// User id of the administrator.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// Time of the request.
    pub at: Time,
}

/// Claims a task for an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Agent; the caller by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Only this task; any by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Accepted task types; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 50)]
    pub types: Vec<String>,
    /// Time to wait for a task, at most 60; by default the server responds at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 60)]
    pub wait_seconds: Option<f64>,
}

/// A claimed task, which the agent must now apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskClaim {
    /// The task.
    pub task: Task,
    /// Number of the attempt; required in every report on this claim.
    pub attempt: u64,
    /// Locks that are held for the task, with their fencing tokens.
    pub grants: Vec<HeldLock>,
    /// Time until which the agent counts as alive without a heartbeat.
    pub lease_until: Time,
}

/// A heartbeat for a claimed task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskHeartbeatRequest {
    /// Number of the attempt.
    pub attempt: u64,
}

/// The extended lease of a claimed task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskLease {
    /// Time until which the agent counts as alive without a heartbeat.
    pub lease_until: Time,
    /// Whether an administrator stopped the task. If so, make no more changes and report `cancelled`.
    pub stop: bool,
}

/// Appends to the log of a claimed task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogRequest {
    /// Number of the attempt.
    pub attempt: u64,
    /// Text, 1 to 65,536 bytes.
    #[schema(min_length = 1, max_length = 65_536)]
    pub text: String,
}

/// A line in the log of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Position in the log; the first line has 1.
    pub number: u64,
    /// Attempt that wrote it.
    pub attempt: u64,
    /// Time at which it was written.
    pub at: Time,
    /// The text.
    pub text: String,
}

/// Reports the result of a claimed task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// Number of the attempt.
    pub attempt: u64,
    /// The result.
    pub result: ExecutionResult,
    /// Output of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Error message, at most 16,384 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The error as data, at most 16,384 bytes as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub error_details: Option<Map<String, Value>>,
}
