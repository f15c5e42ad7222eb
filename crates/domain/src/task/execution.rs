//! The execution of a task: the current or last attempt to apply it. Reports of a worker count only while its attempt is the
//! current one.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Moment;
use crate::lock::LockMode;
use crate::people::UserId;

/// How often a task is retried that failed without effects.
pub const MAX_RETRIES: u32 = 3;

/// The current or last attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Execution {
    /// Increases with every attempt and every recovery.
    pub attempt: u64,
    /// The worker or agent that applies the task.
    pub worker: String,
    pub phase: Phase,
    /// The worker counts as lost once this has passed. In the database, a separate column is authoritative.
    pub lease_until: Moment,
    /// When the current attempt started to change something; before that, when the first attempt began.
    pub started_at: Moment,
    pub completed_at: Option<Moment>,
    pub result: Option<ExecutionResult>,
    /// The result that the agent reported, which may differ from `result`.
    pub reported: Option<ExecutionResult>,
    pub grants: Vec<HeldLock>,
    /// The beginning of the output.
    pub output: Option<String>,
    /// The blob with the full output, if `output` is truncated.
    pub output_key: Option<String>,
    pub error: Option<String>,
    /// The failure as data: what the service knows, and under `reported` what the agent said.
    pub error_details: Option<Map<String, Value>>,
    pub code: Option<FailureCode>,
    /// The attempt whose effects exist. A recovery increases `attempt`, but not this.
    pub effects_attempt: Option<u64>,
    /// The blob with the data for a rollback.
    pub rollback_data_key: Option<String>,
    /// Whether the rollback succeeded; none if there was none.
    pub rolled_back: Option<bool>,
    pub retry_count: u32,
    /// An administrator requested a stop.
    pub stop: Option<AdminRequest>,
    /// An administrator requested a rollback.
    pub rollback: Option<AdminRequest>,
}

/// The key of the blob with the rollback data of an attempt.
pub fn rollback_data_key(task_id: &str, attempt: u64) -> String {
    format!("rollback_data/{task_id}/{attempt}")
}

/// A request of an administrator to stop or roll back a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminRequest {
    pub by: UserId,
    pub reason: String,
    pub at: Moment,
}

/// A lock that an attempt holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// The name, such as `resource:database:users`.
    pub lock: String,
    pub mode: LockMode,
    /// Increases with every grant of the lock.
    pub fencing_token: u64,
}

/// The phase of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// The locks are held, and nothing has changed.
    #[default]
    Prepared,
    /// Something may have changed. The data for a rollback is saved.
    Started,
    /// The changes are being rolled back.
    RollingBack,
    Ended,
}

/// The result of applying a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionResult {
    Success,
    /// It failed, or the outcome is unknown.
    Failure,
    Timeout,
    /// An administrator stopped it.
    Cancelled,
}

/// Why applying a task failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// The effects that remain after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemainingEffects {
    None,
    /// The changes were rolled back while the locks were held.
    RolledBack,
    /// There are changes that can be rolled back.
    Reversible,
    /// There are changes that the service cannot roll back.
    Irreversible,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFailure {
    pub code: FailureCode,
    pub error: String,
    pub effects: RemainingEffects,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
    /// What the agent reported about it, as data.
    pub reported: Option<Map<String, Value>>,
}

/// The output of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutionOutput {
    /// The beginning of the output.
    pub text: Option<String>,
    /// The blob with the full output, if `text` is truncated.
    pub blob_key: Option<String>,
}

impl Execution {
    /// Describes a failure as data.
    pub(super) fn describe_failure(&mut self, failure: &AttemptFailure) {
        let details = self.error_details.insert(Map::new());
        details.insert("effects".to_owned(), json!(failure.effects));
        details.insert("retryable".to_owned(), json!(failure.is_retryable));
        details.insert("phase".to_owned(), json!(self.phase));
        if let Some(reported) = &failure.reported {
            details.insert("reported".to_owned(), json!(reported));
        }
    }

    /// Completes the description of a failure when it is final.
    pub(super) fn finish_description(&mut self) {
        let details = self.error_details.get_or_insert_default();
        details.insert("code".to_owned(), json!(self.code));
        details.insert("worker".to_owned(), json!(self.worker));
        details.insert("attempt".to_owned(), json!(self.attempt));
        details.insert("rolled_back".to_owned(), json!(self.rolled_back));
    }

    /// Whether this is its attempt, and it has not ended.
    pub(super) fn is_running(&self, attempt: u64) -> bool {
        self.attempt == attempt && self.phase != Phase::Ended
    }
}

impl FailureCode {
    pub const fn result(self) -> ExecutionResult {
        match self {
            Self::TimedOut => ExecutionResult::Timeout,
            Self::Stopped => ExecutionResult::Cancelled,
            Self::ExecutionFailed
            | Self::LocksLost
            | Self::WorkerLost
            | Self::OutcomeUnknown
            | Self::DigestMismatch
            | Self::UnprovenApproval => ExecutionResult::Failure,
        }
    }
}

/// The delay before a retry: one second, doubled for each retry so far.
pub const fn retry_backoff_ms(retries: u32) -> u64 {
    let doublings = if retries > 10 { 10 } else { retries };
    1_000 << doublings
}
