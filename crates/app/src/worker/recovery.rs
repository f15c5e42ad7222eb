//! Recovery of tasks whose worker is lost: find out what it left, and roll back or record it, once the worker can no longer change
//! anything.
//!
//! Recovery begins only when the locks of an attempt are gone and its lease has expired, and it starts a new attempt first. If the
//! executor has no fence, the outcome is unknown, and the task says so. Nothing that may have begun is ever applied again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use ade_domain::Moment;
use ade_domain::audit::AuditBody;
use ade_domain::task::{
    AttemptFailure, AttemptStart, ExecutionOutput as StoredOutput, FailureCode, NextStep, Phase,
    RemainingEffects, RollbackStrategy, TaskState,
};
use ade_executors::{AttemptOutcome, Executor, Fencing, Run, StopReason};
use ade_store::database::StoredTask;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::apply::Attempt;
use super::evidence::{Evidence, verify_evidence};
use super::lease::{AttemptLocks, LeaseGuard, acquire_locks, holder_id};
use super::rollback::attempt_with_effects;
use super::{RECOVERY_INTERVAL, Worker};
use crate::Result;
use crate::retry::FailureLog;

const PAGE_SIZE: u32 = 50;
/// Recoveries that run at the same time.
const MAX_CONCURRENT: usize = 50;
/// Executors with a fence: only a worker with the same root or connection can determine the outcome.
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

/// The recoveries that run in this process, by task, so that none runs twice.
type Recoveries = BTreeMap<String, AbortHandle>;

/// The attempts that were warned about already.
#[derive(Debug, Clone, Default)]
struct Warnings(Arc<Mutex<BTreeSet<String>>>);

impl Warnings {
    /// Whether this is the first warning about an attempt.
    fn is_first(&self, task_id: &str, attempt: u64) -> bool {
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= MAX_WARNED {
            warned.clear();
        }
        warned.insert(format!("{task_id} {attempt}"))
    }
}

impl Worker {
    pub(super) async fn recover_lost(self, mut stopped: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(RECOVERY_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut tasks, mut recoveries, mut failures) =
            (JoinSet::new(), Recoveries::new(), FailureLog::default());
        let warnings = Warnings::default();
        let mut worker_lost = self.tasks.subscriptions().lost_workers();
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                _ = tick.tick() => {}
                _ = worker_lost.changed() => {}
            }
            while tasks.try_join_next().is_some() {}
            recoveries.retain(|_, recovery| !recovery.is_finished());
            let started = self.start_recoveries(&mut tasks, &mut recoveries, &warnings).await;
            failures.check(started, "cannot look for lost workers");
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Starts the recovery of all tasks whose lease has expired. It waits for none: a slow recovery must not delay others.
    async fn start_recoveries(
        &self,
        tasks: &mut JoinSet<()>,
        recoveries: &mut Recoveries,
        warnings: &Warnings,
    ) -> Result<()> {
        let (now, mut last) = (self.now(), None);
        loop {
            // All pages: tasks that cannot be recovered here must not hide the others.
            let page = self.context.database.tasks_with_expired_lease(now, last.as_ref(), PAGE_SIZE).await?;
            for (_, task_id) in &page {
                if recoveries.contains_key(task_id) || recoveries.len() >= MAX_CONCURRENT {
                    continue;
                }
                let (worker, warnings, lost) = (self.clone(), warnings.clone(), task_id.clone());
                let recovery = tasks.spawn(async move {
                    if let Err(error) = worker.recover(&lost, &warnings).await {
                        tracing::debug!(task_id = lost, %error, "cannot recover a task of a lost worker now");
                    }
                });
                recoveries.insert(task_id.clone(), recovery);
            }
            if page.len() < PAGE_SIZE as usize {
                return Ok(());
            }
            last = page.into_iter().next_back();
        }
    }

    async fn recover(&self, task_id: &str, warnings: &Warnings) -> Result<()> {
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
        // What is rolled back must be what was executed.
        let verify = |task: &StoredTask, entries: &[AuditBody]| task.verify_current(entries);
        match verify_evidence(&self.context, &task, verify).await? {
            Evidence::Proven => {}
            Evidence::Unknown => return Ok(()),
            Evidence::Unproven(_) => return self.give_up(&task).await,
        }
        let loaded = self.load_rollback_data(&task).await;
        let Ok(Some(rollback_data)) = loaded else {
            let may_appear = execution.lease_until.plus_ms(ROLLBACK_DATA_GRACE_MS) > self.now();
            if !is_given_up && (may_appear || loaded.is_err()) {
                if warnings.is_first(task_id, execution.attempt) {
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
        let by = self.principal(task.next_attempt());
        let recovered =
            self.tasks.change(&task.task_id, &by, |task, now| task.recover(start.clone(), false, now));
        recovered.await.map(drop)
    }

    /// Whether the attempt holds none of its locks any more.
    async fn locks_are_gone(&self, task: &StoredTask) -> Result<bool> {
        let Some(execution) = &task.execution else { return Ok(true) };
        let holder = holder_id(&task.task_id, execution.attempt);
        for grant in &execution.grants {
            let Ok(lock) = grant.lock.parse() else { continue };
            let view = self.context.coordination.lock_view(lock).await?;
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
        let by = self.principal(task.next_attempt());
        let recovered = self.tasks.change(task_id, &by, |task, now| task.recover(start.clone(), true, now));
        let (taken_over, follows) = recovered.await?;
        if follows != NextStep::RollBack {
            return Ok(());
        }
        let number = taken_over.next_attempt() - 1;
        let lease = self.guard_lease(task_id, number, locks, since);
        let attempt = Attempt { worker: self, task, number, locks, executor, lease };
        // A stop request does not end recovery: the task has ended already. The loss of the lease does.
        let (_sender, stop) = attempt.lease.stop.with_same_lease();
        let run = Run { attempt: attempt_with_effects(task), stop, ..attempt.run(None) };
        let mut is_warned = false;
        loop {
            let failure = match executor.resolve_outcome(&run, rollback_data).await {
                Ok(outcome) => return attempt.end_recovery(&run, rollback_data, outcome).await,
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
                return attempt.record_unknown(self.secrets.redact(&error)).await;
            }
            // The outcome is blocked, perhaps by the lost worker itself; once that has ended, this succeeds.
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
}

impl Attempt<'_> {
    /// Records that the outcome is unknown: a failed rollback for a failed task, otherwise a failed task.
    async fn record_unknown(&self, error: String) -> Result<()> {
        if is_rolling_back(self.task) {
            return self.record_rollback(&Err(error)).await;
        }
        self.record_lost(FailureCode::OutcomeUnknown, error, RemainingEffects::Unknown).await
    }

    async fn record_lost(&self, code: FailureCode, error: String, effects: RemainingEffects) -> Result<()> {
        let failed = AttemptFailure { code, error, effects, is_retryable: false, reported: None };
        self.record_failure(&failed, &StoredOutput::default()).await.map(drop)
    }

    /// Ends the attempt according to what was found.
    async fn end_recovery(&self, run: &Run, rollback_data: &[u8], outcome: AttemptOutcome) -> Result<()> {
        let (task, tasks, task_id) = (self.task, &self.worker.tasks, self.task_id());
        let is_rolling_back = is_rolling_back(task);
        let is_automatic = task.config.rollback_strategy == RollbackStrategy::Automatic;
        let worker = task.execution.as_ref().map(|execution| execution.worker.as_str()).unwrap_or_default();
        match outcome {
            // SQL commits all or nothing, so this is exactly what was approved.
            AttemptOutcome::Applied if task.config.executor == "sql" && !is_rolling_back => {
                let text = format!("{worker} was lost; recovery found that all changes were committed");
                let output = StoredOutput { text: Some(text), blob_key: None };
                let by = self.principal();
                let complete =
                    async || tasks.complete(&tasks.get(task_id).await?, self.number, &output, &by).await;
                self.lease.record(complete).await
            }
            AttemptOutcome::NotApplied if !is_rolling_back => {
                let error = format!("{worker} was lost before it changed anything");
                self.record_lost(FailureCode::WorkerLost, error, RemainingEffects::None).await
            }
            AttemptOutcome::Applied if !is_rolling_back && !is_automatic => {
                let error = format!(
                    "OUTCOME_UNKNOWN: {worker} was lost after it had made all changes, but before it reported success"
                );
                self.executor.clean_up(task_id, run.attempt).await;
                self.record_unknown(error).await
            }
            _ => {
                let start = |task: &mut StoredTask, _| task.start_rollback(self.number);
                let by = self.principal();
                self.lease.record(|| tasks.change(task_id, &by, start)).await?;
                self.roll_back(run, rollback_data).await
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
