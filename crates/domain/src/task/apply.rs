//! Applying a task: attempts, failures, retries, rollback, and recovery from lost workers.
//!
//! Each report of a worker names its attempt and is refused unless that is the current one. A task is applied only from
//! `APPROVED`, and is never retried automatically once something may have changed.

use super::decision::required_reason;
use super::{
    Actor, AdminRequest, AttemptFailure, Execution, ExecutionOutput, ExecutionResult, FailureCode, HeldLock,
    MAX_RETRIES, Phase, Refusal, RemainingEffects, Result, RollbackStrategy, Task, TaskCommand, TaskState,
    UnprovenApproval, next_state, retry_backoff_ms,
};
use crate::Moment;
use crate::people::UserId;
use crate::permission::Permission;

/// What a worker needs to start or take over an attempt.
#[derive(Debug, Clone)]
pub struct AttemptStart {
    pub worker: String,
    /// The locks that the worker holds.
    pub grants: Vec<HeldLock>,
    pub lease_until: Moment,
}

/// What follows a failed or lost attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    Finished,
    /// The task is approved again and waits for another attempt.
    Retry,
    /// The present attempt has to determine and roll back the effects.
    RollBack,
}

impl Task {
    /// The current or last attempt; 0 if the task was never applied.
    pub fn attempt(&self) -> u64 {
        self.execution.as_ref().map_or(0, |execution| execution.attempt)
    }

    pub fn next_attempt(&self) -> u64 {
        self.attempt() + 1
    }

    /// Starts an attempt. The worker holds all locks, and has changed nothing yet.
    pub fn begin_apply(&mut self, start: AttemptStart, now: Moment) -> Result<u64> {
        next_state(self.state, TaskCommand::BeginApply)?;
        if let Some(until) = self.held_until(now) {
            return Err(Refusal::Held { until });
        }
        let (attempt, previous) = (self.next_attempt(), self.execution.take());
        let worker = start.worker.clone();
        self.execution = Some(Execution {
            attempt,
            worker: start.worker,
            lease_until: start.lease_until,
            started_at: previous.as_ref().map_or(now, |previous| previous.started_at),
            grants: start.grants,
            retry_count: previous.map_or(0, |previous| previous.retry_count),
            ..Execution::default()
        });
        self.apply_after = None;
        self.execute(TaskCommand::BeginApply, None, now)?.reason = Some(format!("started by {worker}"));
        Ok(attempt)
    }

    /// Fails the task because the audit log does not prove that it was approved. It must not be applied, and it must not go back to
    /// review either: reviewers would approve what an unknown person wrote.
    pub fn fail_unproven(&mut self, worker: &str, reason: &UnprovenApproval, now: Moment) -> Result {
        let start = AttemptStart { worker: worker.to_owned(), grants: Vec::new(), lease_until: now };
        let attempt = self.begin_apply(start, now)?;
        let code = match reason {
            UnprovenApproval::DigestMismatch => FailureCode::DigestMismatch,
            _ => FailureCode::UnprovenApproval,
        };
        let failure = AttemptFailure {
            code,
            error: format!("{reason}. Find out who changed the database, and create the task again."),
            effects: RemainingEffects::None,
            is_retryable: false,
            reported: None,
        };
        self.fail(attempt, failure, ExecutionOutput::default(), now).map(drop)
    }

    /// Marks that the rollback data is saved: from now on something may change.
    pub fn mark_started(&mut self, attempt: u64, rollback_data_key: Option<String>, now: Moment) -> Result {
        let execution = self.current_attempt_mut(attempt, TaskState::Applying)?;
        // A worker that was suspended beyond its lease no longer holds its locks, even if nobody has recovered the task yet.
        if execution.lease_until <= now {
            return Err(Refusal::NotCurrentAttempt { attempt, current: execution.attempt });
        }
        if execution.stop.is_some() {
            return Err(Refusal::Stopped);
        }
        execution.phase = Phase::Started;
        execution.effects_attempt = Some(attempt);
        execution.rollback_data_key = rollback_data_key;
        execution.started_at = now;
        self.record("task.started", TaskState::Applying, None);
        Ok(())
    }

    pub fn complete(&mut self, attempt: u64, output: ExecutionOutput, now: Moment) -> Result {
        let execution = self.current_attempt_mut(attempt, TaskState::Applying)?;
        execution.phase = Phase::Ended;
        execution.completed_at = Some(now);
        execution.result = Some(ExecutionResult::Success);
        (execution.output, execution.output_key) = (output.text, output.blob_key);
        self.forced = false;
        let recipients = self.outcome_recipients();
        self.execute(TaskCommand::Complete, None, now)?.notify = recipients;
        Ok(())
    }

    /// Records a failure. What follows depends on the remaining effects and on the rollback strategy.
    pub fn fail(
        &mut self,
        attempt: u64,
        failure: AttemptFailure,
        output: ExecutionOutput,
        now: Moment,
    ) -> Result<NextStep> {
        let strategy = self.config.rollback_strategy;
        let execution = self.current_attempt_mut(attempt, TaskState::Applying)?;
        let (has_retries, is_stopped) = (execution.retry_count < MAX_RETRIES, execution.stop.is_some());
        (execution.output, execution.output_key) = (output.text, output.blob_key);
        execution.describe_failure(&failure);
        if failure.effects == RemainingEffects::None && failure.is_retryable && has_retries && !is_stopped {
            execution.retry_count += 1;
            let retry_at = now.plus_ms(retry_backoff_ms(execution.retry_count - 1));
            self.return_to_approved(&failure.error, Some(retry_at), now)?;
            return Ok(NextStep::Retry);
        }
        // A stopped worker reports a failure; the cause is the stop request.
        let code = if is_stopped && failure.code == FailureCode::ExecutionFailed {
            FailureCode::Stopped
        } else {
            failure.code
        };
        execution.code = Some(code);
        execution.error = Some(failure.error.clone());
        if failure.effects == RemainingEffects::Reversible && strategy == RollbackStrategy::Automatic {
            execution.phase = Phase::RollingBack;
            self.record("task.rolling_back", TaskState::Applying, None).reason = Some(failure.error);
            return Ok(NextStep::RollBack);
        }
        match failure.effects {
            // The code remains the cause, a stop or timeout; the error says that the outcome is unknown as well.
            RemainingEffects::Unknown if matches!(code, FailureCode::Stopped | FailureCode::TimedOut) => {
                execution.error =
                    Some(format!("OUTCOME_UNKNOWN: {}; its effects are unknown", failure.error));
            }
            RemainingEffects::Unknown => execution.code = Some(FailureCode::OutcomeUnknown),
            RemainingEffects::RolledBack => execution.rolled_back = Some(true),
            // There is nothing to roll back.
            RemainingEffects::None => execution.rollback_data_key = None,
            RemainingEffects::Reversible | RemainingEffects::Irreversible => {}
        }
        self.finish_failed(now)?;
        Ok(NextStep::Finished)
    }

    /// Records the result of a rollback.
    pub fn finish_rollback(&mut self, attempt: u64, outcome: Result<(), String>, now: Moment) -> Result {
        let state = self.state;
        let execution = self.current_attempt_mut(attempt, state)?;
        if execution.phase != Phase::RollingBack {
            return Err(Refusal::NotCurrentAttempt { attempt, current: execution.attempt });
        }
        execution.rolled_back = Some(outcome.is_ok());
        if let Err(error) = outcome {
            let cause = execution.error.take().unwrap_or_default();
            execution.error = Some(format!("{cause}; the rollback failed: {error}"));
        }
        if state == TaskState::Applying {
            return self.finish_failed(now);
        }
        execution.phase = Phase::Ended;
        execution.completed_at = Some(now);
        let (succeeded, recipients) = (execution.rolled_back == Some(true), self.outcome_recipients());
        let action = if succeeded { "task.rolled_back" } else { "task.rollback_failed" };
        self.record(action, state, None).notify = recipients;
        Ok(())
    }

    /// Takes over from a worker whose lease expired. The attempt increases, so that later reports of the lost worker are refused.
    /// If the effects can be determined, the new worker determines them and reports; otherwise the outcome is unknown.
    pub fn recover(&mut self, start: AttemptStart, can_determine: bool, now: Moment) -> Result<NextStep> {
        let (state, attempt) = (self.state, self.next_attempt());
        let timeout_ms = u64::from(self.config.timeout_seconds) * 1_000;
        let Some(execution) = self.execution.as_mut() else { return Err(Refusal::WorkerNotLost) };
        if execution.phase == Phase::Ended || execution.lease_until > now {
            return Err(Refusal::WorkerNotLost);
        }
        execution.attempt = attempt;
        execution.lease_until = start.lease_until;
        execution.grants = start.grants;
        let cause = format!("worker {} was lost: its lease expired", execution.worker);
        if execution.phase == Phase::Prepared {
            if execution.stop.is_some() {
                // No worker is left to report the stop, and the task must not start again.
                execution.code = Some(FailureCode::Stopped);
                execution.error =
                    Some(format!("{cause}; an administrator had stopped the task; nothing was changed"));
                self.finish_failed(now)?;
                return Ok(NextStep::Finished);
            }
            self.return_to_approved(&cause, None, now)?;
            return Ok(NextStep::Retry);
        }
        let is_rolling_back = execution.phase == Phase::RollingBack;
        if !is_rolling_back {
            execution.code = Some(FailureCode::WorkerLost);
            execution.error = Some(cause.clone());
        }
        if can_determine {
            // The phase stays: if this worker is lost before it has determined the effects, the next one finds the same phase.
            execution.worker = start.worker;
            self.record("task.recover", state, None).reason = Some(cause);
            return Ok(NextStep::RollBack);
        }
        if is_rolling_back {
            let error = format!("the lease of worker {} expired during the rollback", execution.worker);
            self.finish_rollback(attempt, Err(error), now)?;
            return Ok(NextStep::Finished);
        }
        let is_timed_out = execution.started_at.plus_ms(timeout_ms) <= now;
        execution.code = Some(match execution.stop {
            Some(_) => FailureCode::Stopped,
            None if is_timed_out => FailureCode::TimedOut,
            None => FailureCode::OutcomeUnknown,
        });
        execution.error = Some(format!("OUTCOME_UNKNOWN: {cause}; its effects are unknown"));
        self.finish_failed(now)?;
        Ok(NextStep::Finished)
    }

    /// Starts the rollback of effects that a recovery has found.
    pub fn start_rollback(&mut self, attempt: u64) -> Result {
        let state = self.state;
        let execution = self.current_attempt_mut(attempt, state)?;
        if execution.code.is_none() {
            return Err(Refusal::NotCurrentAttempt { attempt, current: execution.attempt });
        }
        if execution.phase == Phase::RollingBack {
            return Ok(());
        }
        execution.phase = Phase::RollingBack;
        let cause = execution.error.clone();
        self.record("task.rolling_back", state, None).reason = cause;
        Ok(())
    }

    /// Requests that the worker stops.
    pub fn request_stop(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result {
        let request = Self::admin_request(reason, actor, now)?;
        self.execute(TaskCommand::Stop, Some(request.by.clone()), now)?.reason = Some(request.reason.clone());
        if let Some(execution) = &mut self.execution {
            execution.stop = Some(request);
        }
        Ok(())
    }

    /// Requests a rollback of the effects of a failed task.
    pub fn request_rollback(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result {
        let request = Self::admin_request(reason, actor, now)?;
        next_state(self.state, TaskCommand::RollBack)?;
        if !self.can_be_rolled_back() {
            return Err(Refusal::NothingToRollBack);
        }
        self.execute(TaskCommand::RollBack, Some(request.by.clone()), now)?.reason =
            Some(request.reason.clone());
        if let Some(execution) = &mut self.execution {
            execution.rollback = Some(request);
        }
        Ok(())
    }

    /// Also true after an automatic rollback that failed: it can be repeated manually.
    pub(super) fn can_be_rolled_back(&self) -> bool {
        self.config.rollback_strategy != RollbackStrategy::None
            && self.execution.as_ref().is_some_and(|execution| {
                let has_effects =
                    execution.rollback_data_key.is_some() && execution.rolled_back != Some(true);
                // Otherwise a second rollback would follow the one in progress.
                has_effects && execution.rollback.is_none() && execution.phase == Phase::Ended
            })
    }

    /// Starts a requested rollback. The worker holds all locks.
    pub fn begin_rollback(&mut self, start: AttemptStart) -> Result<u64> {
        let (attempt, state) = (self.next_attempt(), self.state);
        let is_requested =
            |execution: &&mut Execution| execution.rollback.is_some() && execution.phase == Phase::Ended;
        let execution = self.execution.as_mut().filter(is_requested).filter(|_| state == TaskState::Failed);
        let execution = execution.ok_or(Refusal::NothingToRollBack)?;
        execution.attempt = attempt;
        execution.phase = Phase::RollingBack;
        execution.rollback = None;
        execution.grants = start.grants;
        execution.lease_until = start.lease_until;
        let reason = format!("rollback started by {}", start.worker);
        execution.worker = start.worker;
        self.record("task.rolling_back", state, None).reason = Some(reason);
        Ok(attempt)
    }

    pub(super) fn authorize_admin(actor: &Actor) -> Result<UserId> {
        actor.require_admin(Permission::ForceApply)?;
        actor.user.clone().ok_or(Refusal::Forbidden)
    }

    fn admin_request(reason: Option<&str>, actor: &Actor, now: Moment) -> Result<AdminRequest> {
        Ok(AdminRequest { by: Self::authorize_admin(actor)?, reason: required_reason(reason)?, at: now })
    }

    /// The execution, if this is its current attempt and the task is in this state.
    pub(super) fn current_attempt_mut(&mut self, attempt: u64, state: TaskState) -> Result<&mut Execution> {
        let (current, is_in_state) = (self.attempt(), self.state == state);
        let execution = self.execution.as_mut();
        let execution = execution.filter(|execution| is_in_state && execution.is_running(attempt));
        execution.ok_or(Refusal::NotCurrentAttempt { attempt, current })
    }

    /// Returns to `APPROVED` for another attempt, because nothing was changed.
    fn return_to_approved(&mut self, cause: &str, retry_at: Option<Moment>, now: Moment) -> Result {
        if let Some(execution) = &mut self.execution {
            execution.phase = Phase::Ended;
            execution.error = Some(cause.to_owned());
            execution.grants = Vec::new();
        }
        self.apply_after = retry_at;
        // The approval keeps its age.
        let approved_at = self.entered_at.get(&TaskState::Approved).copied();
        self.execute(TaskCommand::Retry, None, now)?.reason = Some(cause.to_owned());
        if let Some(at) = approved_at {
            self.entered_at.insert(TaskState::Approved, at);
        }
        Ok(())
    }

    fn finish_failed(&mut self, now: Moment) -> Result {
        let error = self.execution.as_mut().and_then(|execution| {
            execution.phase = Phase::Ended;
            execution.completed_at = Some(now);
            execution.result = execution.code.map(FailureCode::result);
            execution.finish_description();
            execution.error.clone()
        });
        self.forced = false;
        let recipients = self.outcome_recipients();
        let transition = self.execute(TaskCommand::Fail, None, now)?;
        transition.reason = error;
        transition.notify = recipients;
        Ok(())
    }

    /// Who is notified of the outcome: the author and everybody who decided.
    fn outcome_recipients(&self) -> Vec<UserId> {
        let mut users = self.deciders();
        users.insert(self.author_id.clone());
        users.into_iter().collect()
    }
}
