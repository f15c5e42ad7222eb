//! From approved to done or failed: what becomes of a task while it is carried out, by whom, and when its worker is gone.
//!
//! Everything that a worker says names its attempt, and is refused if that is not the present one. A task begins to be carried
//! out only out of `APPROVED`, never again by itself once something may have been changed.

use super::decide::said;
use super::{
    Actor, Asked, Execution, Failed, FailureCode, HeldLock, Left, MOST_RETRIES, Output, Phase, Refusal,
    RollbackStrategy, State, Task, TaskCommand, next, retry_after_ms,
};
use crate::Moment;
use crate::people::UserId;
use crate::permission::Permission;

/// Who begins to carry out, with what.
#[derive(Debug, Clone)]
pub struct Begin {
    /// Who.
    pub worker: String,
    /// The locks that it holds.
    pub grants: Vec<HeldLock>,
    /// Until when it counts as alive.
    pub lease_until: Moment,
}

/// What becomes of an attempt that failed or whose worker is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// It is over.
    Over,
    /// It will be tried again.
    Again,
    /// What was changed is to be changed back, by this attempt.
    RollBack,
}

impl Task {
    /// The attempt that whoever begins next has.
    #[must_use]
    pub fn next_attempt(&self) -> u64 {
        self.execution.as_ref().map_or(0, |execution| execution.attempt) + 1
    }

    /// A worker holds all locks.
    pub fn begin(&mut self, begin: Begin, now: Moment) -> Result<u64, Refusal> {
        next(self.state, TaskCommand::BeginApply)?;
        let (attempt, before) = (self.next_attempt(), self.execution.take());
        let worker = begin.worker.clone();
        self.execution = Some(Execution {
            attempt,
            worker: begin.worker,
            phase: Phase::Prepared,
            lease_until: begin.lease_until,
            started_at: before.as_ref().map_or(now, |before| before.started_at),
            completed_at: None,
            result: None,
            reported: None,
            grants: begin.grants,
            output: None,
            output_key: None,
            error: None,
            code: None,
            effects_of: None,
            stash_key: None,
            rolled_back: None,
            retry_count: before.map_or(0, |before| before.retry_count),
            stop: None,
            undo: None,
        });
        self.apply_after = None;
        self.go(TaskCommand::BeginApply, None, now)?.reason = Some(format!("{worker} carries it out"));
        Ok(attempt)
    }

    /// What is stored is not what was approved: nobody carries it out, and nobody is asked to agree to what somebody else wrote.
    pub fn spoiled(&mut self, worker: &str, now: Moment) -> Result<(), Refusal> {
        let begin = Begin { worker: worker.to_owned(), grants: Vec::new(), lease_until: now };
        let attempt = self.begin(begin, now)?;
        let error = "what is stored is not what was approved: its digest is another one; find out who changed it past \
                     the service, and propose it anew";
        let (code, left) = (FailureCode::DigestMismatch, Left::Nothing);
        let failed = Failed { code, error: error.to_owned(), left, again: false };
        self.fail(attempt, failed, Output::default(), now).map(drop)
    }

    /// What is needed to undo it is saved: from now on something may be changed.
    pub fn started(&mut self, attempt: u64, stash_key: Option<String>, now: Moment) -> Result<(), Refusal> {
        let execution = self.present(attempt, State::Applying)?;
        // Whoever was stopped for so long holds no locks any more, even if nobody has taken over yet.
        if execution.lease_until <= now {
            return Err(Refusal::NotPresent { attempt, now: execution.attempt });
        }
        if execution.stop.is_some() {
            return Err(Refusal::Stopped);
        }
        execution.phase = Phase::Started;
        execution.effects_of = Some(attempt);
        execution.stash_key = stash_key;
        execution.started_at = now;
        self.record("task.started", State::Applying, None);
        Ok(())
    }

    /// It is done.
    pub fn complete(&mut self, attempt: u64, output: Output, now: Moment) -> Result<(), Refusal> {
        let execution = self.present(attempt, State::Applying)?;
        execution.phase = Phase::Ended;
        execution.completed_at = Some(now);
        execution.result = Some(crate::task::ExecutionResult::Success);
        (execution.output, execution.output_key) = (output.text, output.key);
        self.forced = false;
        let told = self.concerned();
        self.go(TaskCommand::Complete, None, now)?.tell = told;
        Ok(())
    }

    /// It failed. What follows depends on what it left behind, and on what its author wanted for that.
    pub fn fail(
        &mut self,
        attempt: u64,
        failed: Failed,
        output: Output,
        now: Moment,
    ) -> Result<Follows, Refusal> {
        let strategy = self.config.rollback_strategy;
        let execution = self.present(attempt, State::Applying)?;
        let (may_again, stopped) = (execution.retry_count < MOST_RETRIES, execution.stop.is_some());
        (execution.output, execution.output_key) = (output.text, output.key);
        if failed.left == Left::Nothing && failed.again && may_again && !stopped {
            execution.retry_count += 1;
            let after = now.plus_ms(retry_after_ms(execution.retry_count - 1));
            self.back(&failed.error, Some(after), now)?;
            return Ok(Follows::Again);
        }
        // Whoever was stopped says that it failed; why it did is what was asked.
        let code = if stopped && failed.code == FailureCode::ExecutionFailed {
            FailureCode::Stopped
        } else {
            failed.code
        };
        execution.code = Some(code);
        execution.error = Some(failed.error.clone());
        if failed.left == Left::Something && strategy == RollbackStrategy::Automatic {
            execution.phase = Phase::RollingBack;
            self.record("task.rolling_back", State::Applying, None).reason = Some(failed.error);
            return Ok(Follows::RollBack);
        }
        match failed.left {
            // Who was stopped, or took too long, ended for that reason; what it left is another matter, and is said as well.
            Left::Unknown if matches!(code, FailureCode::Stopped | FailureCode::TimedOut) => {
                execution.error =
                    Some(format!("OUTCOME_UNKNOWN: {}, and nobody knows what it did", failed.error));
            }
            Left::Unknown => execution.code = Some(FailureCode::OutcomeUnknown),
            Left::Undone => execution.rolled_back = Some(true),
            // There is nothing that an administrator could undo.
            Left::Nothing => execution.stash_key = None,
            Left::Something | Left::Stays => {}
        }
        self.end_failed(now)?;
        Ok(Follows::Over)
    }

    /// What was changed was changed back, or could not be.
    pub fn rolled_back(
        &mut self,
        attempt: u64,
        outcome: Result<(), String>,
        now: Moment,
    ) -> Result<(), Refusal> {
        let state = self.state;
        let execution = self.present(attempt, state)?;
        if execution.phase != Phase::RollingBack {
            return Err(Refusal::NotPresent { attempt, now: execution.attempt });
        }
        execution.rolled_back = Some(outcome.is_ok());
        if let Err(why) = outcome {
            let before = execution.error.take().unwrap_or_default();
            execution.error = Some(format!("{before}; changing it back failed: {why}"));
        }
        if state == State::Applying {
            return self.end_failed(now);
        }
        execution.phase = Phase::Ended;
        execution.completed_at = Some(now);
        let (done, told) = (execution.rolled_back == Some(true), self.concerned());
        let action = if done { "task.rolled_back" } else { "task.rollback_failed" };
        self.record(action, state, None).tell = told;
        Ok(())
    }

    /// Nobody heard of its worker for long enough. The attempt grows first, so that whatever the worker still says is refused.
    /// Where it can be found out what was left, whoever recovers does so and says how it ended; elsewhere nobody knows.
    pub fn recover(&mut self, begin: Begin, can_settle: bool, now: Moment) -> Result<Follows, Refusal> {
        let (state, attempt) = (self.state, self.next_attempt());
        let timeout_ms = u64::from(self.config.timeout_seconds) * 1_000;
        let Some(execution) = self.execution.as_mut() else { return Err(Refusal::NotLost) };
        if execution.phase == Phase::Ended || execution.lease_until > now {
            return Err(Refusal::NotLost);
        }
        execution.attempt = attempt;
        execution.lease_until = begin.lease_until;
        execution.grants = begin.grants;
        let why = format!("nothing was heard of {} any more", execution.worker);
        if execution.phase == Phase::Prepared {
            if execution.stop.is_some() {
                // Nobody is left who could say that it was stopped, and nobody begins it again.
                execution.code = Some(FailureCode::Stopped);
                execution.error =
                    Some(format!("{why}, and an administrator had stopped it; nothing was changed"));
                self.end_failed(now)?;
                return Ok(Follows::Over);
            }
            self.back(&why, None, now)?;
            return Ok(Follows::Again);
        }
        let undoing = execution.phase == Phase::RollingBack;
        if !undoing {
            execution.code = Some(FailureCode::WorkerLost);
            execution.error = Some(why.clone());
        }
        if can_settle {
            // What is to be done is not known before it is found out: if whoever does so is lost as well, the next one finds the
            // phase as it was.
            execution.worker = begin.worker;
            self.record("task.recover", state, None).reason = Some(why);
            return Ok(Follows::RollBack);
        }
        if undoing {
            let failed = format!("the lease of {} ended before it was done", execution.worker);
            self.rolled_back(attempt, Err(failed), now)?;
            return Ok(Follows::Over);
        }
        let too_long = execution.started_at.plus_ms(timeout_ms) <= now;
        execution.code = Some(match execution.stop {
            Some(_) => FailureCode::Stopped,
            None if too_long => FailureCode::TimedOut,
            None => FailureCode::OutcomeUnknown,
        });
        execution.error = Some(format!("OUTCOME_UNKNOWN: {why}, and nobody knows what it did"));
        self.end_failed(now)?;
        Ok(Follows::Over)
    }

    /// Whoever recovers has found something that is changed back now.
    pub fn change_back(&mut self, attempt: u64) -> Result<(), Refusal> {
        let state = self.state;
        let execution = self.present(attempt, state)?;
        if execution.code.is_none() {
            return Err(Refusal::NotPresent { attempt, now: execution.attempt });
        }
        if execution.phase == Phase::RollingBack {
            return Ok(());
        }
        execution.phase = Phase::RollingBack;
        let why = execution.error.clone();
        self.record("task.rolling_back", state, None).reason = why;
        Ok(())
    }

    /// An administrator wants it to end.
    pub fn ask_stop(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let asked = self.asked(reason, actor, now)?;
        self.go(TaskCommand::Stop, Some(asked.by.clone()), now)?.reason = Some(asked.reason.clone());
        if let Some(execution) = &mut self.execution {
            execution.stop = Some(asked);
        }
        Ok(())
    }

    /// An administrator wants undone what a failed task left behind.
    pub fn ask_roll_back(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let asked = self.asked(reason, actor, now)?;
        next(self.state, TaskCommand::RollBack)?;
        if !self.can_be_rolled_back() {
            return Err(Refusal::NothingToRollBack);
        }
        self.go(TaskCommand::RollBack, Some(asked.by.clone()), now)?.reason = Some(asked.reason.clone());
        if let Some(execution) = &mut self.execution {
            execution.undo = Some(asked);
        }
        Ok(())
    }

    /// What was to be changed back by itself and was not may be tried again by hand.
    pub(super) fn can_be_rolled_back(&self) -> bool {
        self.config.rollback_strategy != RollbackStrategy::None
            && self.execution.as_ref().is_some_and(|execution| {
                let kept = execution.stash_key.is_some() && execution.rolled_back != Some(true);
                // Whoever is at it already would otherwise be followed by another one.
                kept && execution.undo.is_none() && execution.phase == Phase::Ended
            })
    }

    /// A worker holds all locks of a failed task that somebody wants undone.
    pub fn begin_roll_back(&mut self, begin: Begin, _now: Moment) -> Result<u64, Refusal> {
        let (attempt, state) = (self.next_attempt(), self.state);
        let wanted = |execution: &&mut Execution| execution.undo.is_some() && execution.phase == Phase::Ended;
        let failed = state == State::Failed;
        let execution = self.execution.as_mut().filter(wanted).filter(|_| failed);
        let execution = execution.ok_or(Refusal::NothingToRollBack)?;
        execution.attempt = attempt;
        execution.phase = Phase::RollingBack;
        execution.undo = None;
        execution.grants = begin.grants;
        execution.lease_until = begin.lease_until;
        let why = format!("{} changes it back", begin.worker);
        execution.worker = begin.worker;
        self.record("task.rolling_back", state, None).reason = Some(why);
        Ok(attempt)
    }

    pub(super) fn may_command(actor: &Actor) -> Result<UserId, Refusal> {
        Self::permit_admin(actor, Permission::ForceApply)?;
        actor.user.clone().ok_or(Refusal::Forbidden)
    }

    fn asked(&self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<Asked, Refusal> {
        let by = Self::may_command(actor)?;
        let reason = said(reason).ok_or(Refusal::ReasonRequired)?.to_owned();
        Ok(Asked { by, reason, at: now })
    }

    /// The present attempt, if that is the one.
    pub(super) fn present(&mut self, attempt: u64, state: State) -> Result<&mut Execution, Refusal> {
        let now = self.execution.as_ref().map_or(0, |execution| execution.attempt);
        let is_in = self.state == state;
        let present = self
            .execution
            .as_mut()
            .filter(|execution| is_in && execution.attempt == attempt && execution.phase != Phase::Ended);
        present.ok_or(Refusal::NotPresent { attempt, now })
    }

    /// Nothing was changed: it waits to be carried out again.
    fn back(&mut self, why: &str, after: Option<Moment>, now: Moment) -> Result<(), Refusal> {
        if let Some(execution) = &mut self.execution {
            execution.phase = Phase::Ended;
            execution.error = Some(why.to_owned());
            execution.grants = Vec::new();
        }
        self.apply_after = after;
        // What was approved is what it was: the approval goes on from where it was given.
        let approved_at = self.since.get(&State::Approved).copied();
        self.go(TaskCommand::Retry, None, now)?.reason = Some(why.to_owned());
        if let Some(at) = approved_at {
            self.since.insert(State::Approved, at);
        }
        Ok(())
    }

    fn end_failed(&mut self, now: Moment) -> Result<(), Refusal> {
        let why = self.execution.as_mut().and_then(|execution| {
            execution.phase = Phase::Ended;
            execution.completed_at = Some(now);
            execution.result = execution.code.map(FailureCode::result);
            execution.error.clone()
        });
        self.forced = false;
        let told = self.concerned();
        let record = self.go(TaskCommand::Fail, None, now)?;
        record.reason = why;
        record.tell = told;
        Ok(())
    }

    /// Who wants to know how it ended: the author, and whoever approved it.
    fn concerned(&self) -> Vec<UserId> {
        let mut told = vec![self.author_id.clone()];
        told.extend(self.deciders());
        told.sort();
        told.dedup();
        told
    }
}
