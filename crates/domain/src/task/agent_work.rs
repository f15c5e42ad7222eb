//! Tasks that agents pull and apply themselves: how long their lease can be extended, and how their reports count.
//!
//! Heartbeats cannot extend a task beyond its timeout or a stop request. A success counts only if the agent held its locks to
//! the end.

use serde_json::{Map, Value};

use super::{
    AttemptFailure, Execution, ExecutionOutput, ExecutionResult, FailureCode, Phase, Refusal,
    RemainingEffects, Result, Task, TaskState,
};
use crate::Moment;

/// How an agent reports that its attempt ended.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    pub result: ExecutionResult,
    pub error: Option<String>,
    /// The error as data.
    pub error_details: Option<Map<String, Value>>,
}

impl Task {
    /// The execution, if this is its current attempt.
    pub fn current_attempt(&self, attempt: u64) -> Result<&Execution> {
        let execution = self.execution.as_ref().filter(|_| self.state == TaskState::Applying);
        let execution = execution.filter(|execution| execution.is_running(attempt));
        execution.ok_or(Refusal::NotCurrentAttempt { attempt, current: self.attempt() })
    }

    /// The end of the lease after a heartbeat: one lease from now, but not beyond the timeout of the task, and not beyond
    /// one lease after a stop request.
    pub fn extended_lease(&self, attempt: u64, lease_ms: u64, now: Moment) -> Result<Moment> {
        let execution = self.current_attempt(attempt)?;
        let timeout_ms = u64::from(self.config.timeout_seconds) * 1_000;
        let ends_at = execution.started_at.plus_ms(timeout_ms);
        if ends_at <= now {
            return Err(Refusal::TimedOut);
        }
        let grace_ends_at = execution.stop.as_ref().map(|stop| stop.at.plus_ms(lease_ms));
        if grace_ends_at.is_some_and(|ends_at| ends_at <= now) {
            return Err(Refusal::Stopped);
        }
        let until = now.plus_ms(lease_ms).min(ends_at);
        Ok(grace_ends_at.map_or(until, |ends_at| until.min(ends_at)))
    }

    /// Whether this report ended the attempt. Repeating it is then not an error.
    pub fn was_reported(&self, attempt: u64, result: ExecutionResult) -> bool {
        self.execution.as_ref().is_some_and(|execution| {
            let has_ended = execution.attempt == attempt && execution.phase == Phase::Ended;
            // An attempt that ended without a report counts by its result.
            has_ended && execution.reported.or(execution.result) == Some(result)
        })
    }

    /// Records the report of an agent, and whether it held its locks until then. The service cannot roll back what an agent did.
    pub fn report(
        &mut self,
        attempt: u64,
        AttemptReport { result, error, error_details }: AttemptReport,
        held_locks: bool,
        output: ExecutionOutput,
        now: Moment,
    ) -> Result {
        let execution = self.current_attempt_mut(attempt, TaskState::Applying)?;
        execution.reported = Some(result);
        let worker = execution.worker.clone();
        let code = match result {
            ExecutionResult::Success if held_locks => return self.complete(attempt, output, now),
            ExecutionResult::Success => FailureCode::LocksLost,
            ExecutionResult::Failure => FailureCode::ExecutionFailed,
            ExecutionResult::Timeout => FailureCode::TimedOut,
            ExecutionResult::Cancelled => FailureCode::Stopped,
        };
        let error = if code == FailureCode::LocksLost {
            format!(
                "{worker} reported success after it had lost its locks: others may have changed the same resources. Check them \
                 before you rely on the result."
            )
        } else {
            error.unwrap_or_else(|| format!("{worker} reported no error message"))
        };
        let failure = AttemptFailure {
            code,
            error,
            effects: RemainingEffects::Irreversible,
            is_retryable: false,
            reported: error_details,
        };
        self.fail(attempt, failure, output, now).map(drop)
    }
}
