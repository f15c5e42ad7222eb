//! Agents that carry a task out: until when they may be at it, and what counts of what they say in the end.
//!
//! However often an agent says that it is alive, a task ends when its time is over or somebody wants it to end. That it is done
//! counts only if it held its locks to the end.

use super::{Execution, ExecutionResult, Failed, FailureCode, Left, Output, Phase, Refusal, State, Task};
use crate::Moment;

impl Task {
    /// The present attempt, if that is the one.
    pub fn under_way(&self, attempt: u64) -> Result<&Execution, Refusal> {
        let now = self.execution.as_ref().map_or(0, |execution| execution.attempt);
        let is_present = |execution: &&Execution| {
            self.state == State::Applying && execution.attempt == attempt && execution.phase != Phase::Ended
        };
        self.execution.as_ref().filter(is_present).ok_or(Refusal::NotPresent { attempt, now })
    }

    /// Until when an agent that is heard of now counts as alive: for one lease more, but not longer than the task may take, and
    /// not longer than one lease after somebody wanted it to end.
    pub fn lives_until(&self, attempt: u64, lease_ms: u64, now: Moment) -> Result<Moment, Refusal> {
        let execution = self.under_way(attempt)?;
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

    /// Whether an attempt ended by this report: saying it again is answered the same.
    #[must_use]
    pub fn was_reported(&self, attempt: u64, result: ExecutionResult) -> bool {
        self.execution.as_ref().is_some_and(|execution| {
            let is_over = execution.attempt == attempt && execution.phase == Phase::Ended;
            // What ended before reports were kept is told apart by how it ended.
            is_over && execution.reported.or(execution.result) == Some(result)
        })
    }

    /// An agent says how it ended, and whether it held its locks until then. Only the agent knows what it did, and only it could
    /// undo it.
    pub fn report(
        &mut self,
        attempt: u64,
        (result, error): (ExecutionResult, Option<String>),
        held: bool,
        output: Output,
        now: Moment,
    ) -> Result<(), Refusal> {
        let execution = self.present(attempt, State::Applying)?;
        execution.reported = Some(result);
        let worker = execution.worker.clone();
        let code = match result {
            ExecutionResult::Success if held => return self.complete(attempt, output, now),
            ExecutionResult::Success => FailureCode::LocksLost,
            ExecutionResult::Failure => FailureCode::ExecutionFailed,
            ExecutionResult::Timeout => FailureCode::TimedOut,
            ExecutionResult::Cancelled => FailureCode::Stopped,
        };
        let error = if code == FailureCode::LocksLost {
            format!(
                "{worker} says that it is done, but it had lost its locks before it said so: others may have been at the same \
                 resources; look before anything is built on it"
            )
        } else {
            error.unwrap_or_else(|| format!("{worker} did not say why"))
        };
        let failed = Failed { code, error, left: Left::Stays, again: false };
        self.fail(attempt, failed, output, now).map(drop)
    }
}
