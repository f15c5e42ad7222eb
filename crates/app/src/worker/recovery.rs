//! Recovery of tasks whose worker is lost: find out what it left, and roll back or record it, once the worker can no longer change
//! anything.
//!
//! Recovery begins only when the locks of an attempt are gone and its lease has expired, and it starts a new attempt first. If the
//! executor has no fence, the outcome is unknown, and the task says so. Nothing that may have begun is ever applied again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use ade_domain::Moment;
use ade_domain::task::{
    AttemptFailure, AttemptStart, ExecutionOutput as StoredOutput, FailureCode, NextStep, Phase,
    RemainingEffects, RollbackStrategy, TaskState,
};
use ade_executors::{AttemptOutcome, Executor, Fencing, Run, StopReason};
use ade_store::database::StoredTask;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::apply::Attempt;
use super::lease::{AttemptLocks, LeaseGuard, acquire_locks, holder_id};
use super::rollback::attempt_with_effects;
use super::{RECOVERY_INTERVAL, Worker};
use crate::Result;

const PAGE_SIZE: u32 = 50;
/// Recoveries that run at the same time.
const MAX_CONCURRENT: usize = 50;
/// Executors with a fence: only a worker with their place can find out what was left.
const FENCED: [&str; 3] = ["files", "sql", "noop"];
/// How long recovery waits for locks that others hold by now. Then it rolls back without them, protected by the fence: half-applied
/// changes are worse for the holders.
const LOCK_TIMEOUT_MS: u64 = 1_000;
/// How long after the end of a lease missing rollback data may still appear: a shared folder shows new files late on other hosts.
const ROLLBACK_DATA_GRACE_MS: u64 = 120_000;
/// Attempts whose warnings are remembered.
const MAX_WARNED: usize = 1_000;
/// How long after a stop request recovery still tries to find out what the lost worker left.
const STOP_GRACE_MS: u64 = 60_000;
/// How long after the end of its lease the rollback of a failed task waits for a worker that can continue it. An administrator can
/// request the rollback again later.
const ROLLBACK_GRACE_MS: u64 = 600_000;

/// The recoveries of this process, so that none runs twice, and the attempts that were already warned about.
#[derive(Debug, Clone, Default)]
struct Recoveries {
    active: Arc<Mutex<BTreeSet<String>>>,
    warned: Arc<Mutex<BTreeSet<String>>>,
}

/// One active recovery, until it is dropped.
struct Recovery {
    recoveries: Recoveries,
    task_id: String,
}

impl Recoveries {
    /// `None` if the task is being recovered already, or too many others are.
    fn begin(&self, task_id: &str) -> Option<Recovery> {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        (active.len() < MAX_CONCURRENT && active.insert(task_id.to_owned()))
            .then(|| Recovery { recoveries: self.clone(), task_id: task_id.to_owned() })
    }

    /// Whether this is the first warning about an attempt.
    fn is_first_warning(&self, task_id: &str, attempt: u64) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= MAX_WARNED {
            warned.clear();
        }
        warned.insert(format!("{task_id} {attempt}"))
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.recoveries.active.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.task_id);
    }
}

impl Worker {
    pub(super) async fn recover_lost(self, mut stopped: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(RECOVERY_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (recoveries, mut running, mut is_failing) = (Recoveries::default(), JoinSet::new(), false);
        let mut worker_lost = self.tasks.subscriptions().lost_workers();
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                _ = tick.tick() => {}
                _ = worker_lost.changed() => {}
            }
            while running.try_join_next().is_some() {}
            match self.start_recoveries(&recoveries, &mut running).await {
                Ok(()) => is_failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(%error, "cannot look for lost workers; retrying");
                    }
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Starts the recovery of all tasks whose lease has expired. It waits for none: a slow recovery must not delay others.
    async fn start_recoveries(&self, recoveries: &Recoveries, running: &mut JoinSet<()>) -> Result<()> {
        let (now, mut last) = (self.now(), None);
        loop {
            // All pages: tasks that cannot be recovered here must not hide the others.
            let page = self.context.database.tasks_with_expired_lease(now, last.as_ref(), PAGE_SIZE).await?;
            for (_, task_id) in &page {
                let Some(recovery) = recoveries.begin(task_id) else { continue };
                let worker = self.clone();
                running.spawn(async move {
                    if let Err(error) = worker.recover(&recovery).await {
                        let task_id = recovery.task_id.as_str();
                        tracing::debug!(task_id, %error, "cannot recover a task of a lost worker now");
                    }
                });
            }
            if page.len() < PAGE_SIZE as usize {
                return Ok(());
            }
            last = page.into_iter().next_back();
        }
    }

    async fn recover(&self, recovery: &Recovery) -> Result<()> {
        let task_id = recovery.task_id.as_str();
        let task = self.tasks.get(task_id).await?;
        let Some(execution) = &task.execution else { return Ok(()) };
        if !self.locks_are_gone(&task).await? {
            return Ok(());
        }
        let executor = self.executors.get(&task.config.work_queue());
        let is_fenced = FENCED.contains(&task.config.executor.as_str());
        if execution.phase == Phase::Prepared || !is_fenced {
            self.give_up(&task).await?;
            if let Some(executor) = executor {
                executor.clean_up(task_id, execution.attempt).await;
            }
            return Ok(());
        }
        // Only a worker with the work queue of the task can find out what was left.
        let stopped_at = execution.stop.as_ref().map(|stop| stop.at);
        let is_given_up = is_stop_overdue(stopped_at, execution.lease_until, self.now())
            || is_rollback_overdue(task.state, execution.lease_until, self.now());
        let Some(executor) = executor.filter(|executor| executor.fencing() == Fencing::Fenced) else {
            if is_given_up {
                tracing::error!(
                    task_id,
                    "no worker can find out what a lost worker left, or roll it back; giving up"
                );
                self.give_up(&task).await?;
            }
            return Ok(());
        };
        let loaded = self.load_rollback_data(&task).await;
        let Ok(Some(rollback_data)) = loaded else {
            let may_appear = execution.lease_until.plus_ms(ROLLBACK_DATA_GRACE_MS) > self.now();
            if !is_given_up && (may_appear || loaded.is_err()) {
                if recovery.recoveries.is_first_warning(task_id, execution.attempt) {
                    let error = loaded.err().map(|error| error.to_string());
                    tracing::warn!(
                        task_id,
                        error,
                        "rollback data of a lost worker is not available yet; retrying"
                    );
                }
                return Ok(());
            }
            tracing::error!(task_id, "rollback data of a lost worker is missing; the outcome is unknown");
            self.give_up(&task).await?;
            executor.clean_up(task_id, attempt_with_effects(&task)).await;
            return Ok(());
        };
        let acquired = acquire_locks(&self.locks, &self.name, &task, self.lease_ms, LOCK_TIMEOUT_MS);
        let none = || AttemptLocks::new(&self.name, task_id, task.next_attempt(), Vec::new());
        let no_locks = || Some((none()?, Instant::now()));
        let Some((locks, since)) = acquired.await?.or_else(no_locks) else { return Ok(()) };
        let done = self.resolve(&task, executor, &rollback_data, &locks, since).await;
        locks.release(&self.locks).await;
        done
    }

    /// Ends an attempt that has not begun, or whose outcome nobody can find out.
    async fn give_up(&self, task: &StoredTask) -> Result<()> {
        let start = AttemptStart { lease_until: self.now(), ..self.attempt_start(Vec::new()) };
        let recovered = self.tasks.change(&task.task_id, |task, now| task.recover(start.clone(), false, now));
        recovered.await.map(drop)
    }

    /// Whether the attempt holds none of its locks any more.
    async fn locks_are_gone(&self, task: &StoredTask) -> Result<bool> {
        let Some(execution) = &task.execution else { return Ok(true) };
        let holder = holder_id(&task.task_id, execution.attempt);
        for grant in &execution.grants {
            let Ok(lock) = grant.lock.parse() else { continue };
            let view = self.locks.get(lock).await?;
            if view.holders.iter().any(|held| held.holder.holder_id() == holder) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes over the attempt, finds out what the lost worker left, and ends it accordingly.
    async fn resolve(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        rollback_data: &[u8],
        locks: &AttemptLocks,
        since: Instant,
    ) -> Result<()> {
        let task_id = task.task_id.as_str();
        let since = if locks.grants.is_empty() { Instant::now() } else { since };
        let start = self.attempt_start(locks.grants.clone());
        let recovered = self.tasks.change(task_id, |task, now| task.recover(start.clone(), true, now));
        let (taken_over, follows) = recovered.await?;
        if follows != NextStep::RollBack {
            return Ok(());
        }
        let number = taken_over.next_attempt() - 1;
        let lease = self.guard_lease(task_id, number, locks, since);
        let attempt = Attempt { task, number, locks, executor, lease };
        // A stop request does not end recovery: the task has ended already. The loss of the lease does.
        let (_sender, stop) = attempt.lease.stop.with_same_lease();
        let run = Run { attempt: attempt_with_effects(task), stop, ..attempt.run(self.log_output()) };
        let mut is_warned = false;
        loop {
            let failure = match executor.resolve_outcome(&run, rollback_data).await {
                Ok(outcome) => return self.end_recovery(&attempt, &run, rollback_data, outcome).await,
                Err(failure) => failure,
            };
            if !std::mem::replace(&mut is_warned, true) {
                let error = self.secrets.redact(&failure.message);
                tracing::warn!(task_id, error, "cannot find out what a lost worker left");
            }
            if attempt.lease.is_lost() {
                // The next recovery tries again.
                return Ok(());
            }
            if !failure.is_retryable || self.is_stop_overdue(task_id, &attempt.lease).await? {
                let message = &failure.message;
                let error = format!("OUTCOME_UNKNOWN: cannot find out what a lost worker left: {message}");
                executor.clean_up(task_id, run.attempt).await;
                return self.record_unknown(&attempt, self.secrets.redact(&error)).await;
            }
            // Something is in the way, perhaps the lost worker itself; once it is gone, this succeeds.
            tokio::time::sleep(RECOVERY_INTERVAL).await;
        }
    }

    /// Whether an administrator has requested a stop so long ago that recovery gives up.
    async fn is_stop_overdue(&self, task_id: &str, lease: &LeaseGuard) -> Result<bool> {
        if lease.stop.reason() != Some(StopReason::Stopped) {
            return Ok(false);
        }
        let task = self.tasks.get(task_id).await?;
        let stop = task.execution.as_ref().and_then(|execution| execution.stop.as_ref());
        // The lease of the lost worker had expired before this attempt took over.
        Ok(stop.is_some_and(|stop| is_stop_overdue(Some(stop.at), stop.at, self.now())))
    }

    /// Records that the outcome is unknown: a failed rollback for a failed task, otherwise a failed task.
    async fn record_unknown(&self, attempt: &Attempt<'_>, error: String) -> Result<()> {
        if is_rolling_back(attempt.task) {
            return self.record_rollback(attempt, &Err(error)).await;
        }
        self.record_lost(attempt, FailureCode::OutcomeUnknown, error, RemainingEffects::Unknown).await
    }

    async fn record_lost(
        &self,
        attempt: &Attempt<'_>,
        code: FailureCode,
        error: String,
        effects: RemainingEffects,
    ) -> Result<()> {
        let failed = AttemptFailure { code, error, effects, is_retryable: false };
        self.record_failure(attempt, &failed, &StoredOutput::default()).await.map(drop)
    }

    /// Ends the attempt according to what was found.
    async fn end_recovery(
        &self,
        attempt: &Attempt<'_>,
        run: &Run,
        rollback_data: &[u8],
        outcome: AttemptOutcome,
    ) -> Result<()> {
        let (task, number) = (attempt.task, attempt.number);
        let task_id = task.task_id.as_str();
        let is_rolling_back = is_rolling_back(task);
        let is_automatic = task.config.rollback_strategy == RollbackStrategy::Automatic;
        let worker = task.execution.as_ref().map(|execution| execution.worker.as_str()).unwrap_or_default();
        match outcome {
            // SQL commits all or nothing, so this is exactly what was approved.
            AttemptOutcome::Applied if task.config.executor == "sql" && !is_rolling_back => {
                let text = format!("{worker} was lost; recovery found that all changes were committed");
                let output = StoredOutput { text: Some(text), blob_key: None };
                let complete = async || {
                    let task = self.tasks.get(task_id).await?;
                    self.tasks.complete(&task, number, &output).await
                };
                attempt.lease.record(complete).await
            }
            AttemptOutcome::NotApplied if !is_rolling_back => {
                let error = format!("{worker} was lost before it changed anything");
                self.record_lost(attempt, FailureCode::WorkerLost, error, RemainingEffects::None).await
            }
            AttemptOutcome::Applied if !is_rolling_back && !is_automatic => {
                let error = format!(
                    "OUTCOME_UNKNOWN: {worker} was lost after it had made all changes, but before it reported success"
                );
                attempt.executor.clean_up(task_id, run.attempt).await;
                self.record_unknown(attempt, error).await
            }
            _ => {
                let start = || self.tasks.change(task_id, |task, _| task.start_rollback(number));
                attempt.lease.record(start).await?;
                self.roll_back(attempt, run, rollback_data).await
            }
        }
    }
}

/// Whether both the stop request and the end of the lease are so long ago that nobody will find out what was left.
fn is_stop_overdue(stopped_at: Option<Moment>, lease_until: Moment, now: Moment) -> bool {
    stopped_at.is_some_and(|at| at.max(lease_until).plus_ms(STOP_GRACE_MS) <= now)
}

/// Whether a failed task, which cannot be stopped any more, has waited long enough for a worker that continues its rollback.
fn is_rollback_overdue(state: TaskState, lease_until: Moment, now: Moment) -> bool {
    state == TaskState::Failed && lease_until.plus_ms(ROLLBACK_GRACE_MS) <= now
}

/// Whether the worker was lost during a rollback.
fn is_rolling_back(task: &StoredTask) -> bool {
    task.execution.as_ref().is_some_and(|execution| execution.phase == Phase::RollingBack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_of_a_failed_task_does_not_wait_for_ever() {
        let lease_until = Moment::from_micros(1_000);
        let deadline = lease_until.plus_ms(ROLLBACK_GRACE_MS);
        assert!(is_rollback_overdue(TaskState::Failed, lease_until, deadline));
        assert!(!is_rollback_overdue(
            TaskState::Failed,
            lease_until,
            lease_until.plus_ms(ROLLBACK_GRACE_MS - 1)
        ));
        assert!(!is_rollback_overdue(TaskState::Applying, lease_until, deadline), "it can still be stopped");
    }

    #[test]
    fn stop_is_overdue_one_grace_period_after_request_and_lease() {
        let (early, late) = (Moment::from_micros(1_000), Moment::from_micros(5_000_000));
        for (stopped_at, lease_until) in [(early, late), (late, early), (late, late)] {
            assert!(!is_stop_overdue(Some(stopped_at), lease_until, late.plus_ms(STOP_GRACE_MS - 1)));
            assert!(is_stop_overdue(Some(stopped_at), lease_until, late.plus_ms(STOP_GRACE_MS)));
        }
        assert!(!is_stop_overdue(None, early, late.plus_ms(10 * STOP_GRACE_MS)), "no stop was requested");
    }
}
