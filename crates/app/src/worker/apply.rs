//! Processing one claimed task: its preview, its execution, or its rollback.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::task::{
    AttemptFailure, ExecutionOutput as StoredOutput, FailureCode, Preview, RemainingEffects,
};
use ade_domain::task::{AttemptStart, NextStep, Refusal};
use ade_executors::{Executor, Failure, Parameters, Run, RunOutput, SideEffects, StopReason};
use ade_store::database::{StoredTask, WorkKind};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Worker;
use super::lease::{AttemptLocks, LOCK_TIMEOUT_MS, LeaseGuard, acquire_locks};
use crate::Error;
use crate::tasks::redact;

const PREVIEW_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum size of rollback data.
pub(super) const MAX_ROLLBACK_DATA_BYTES: u64 = 64 * 1_048_576;
/// How often the end of a run is written again while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const OUTPUT_INTERVAL: Duration = Duration::from_millis(250);

/// An attempt that has begun.
pub(super) struct Attempt<'a> {
    pub(super) task: &'a StoredTask,
    pub(super) number: u64,
    pub(super) locks: &'a AttemptLocks,
    pub(super) executor: &'a Arc<dyn Executor>,
}

impl Worker {
    pub(super) async fn process(&self, task_id: &str) -> Result<(), Error> {
        let task = self.tasks.get(task_id).await?;
        let work_queue = task.config.work_queue();
        let Some(executor) = self.executors.get(&work_queue) else { return Ok(()) };
        match WorkKind::of(&task) {
            Some(WorkKind::Preview) => {
                let computed = preview_of(executor, &task.config.parameters).await;
                let preview = computed.unwrap_or_else(|failure| Preview::failed(failure.message));
                let preview = redact(preview, &self.secrets);
                self.tasks.put_preview(task_id, &task, &preview).await
            }
            Some(WorkKind::Apply) => self.apply(task, executor).await,
            Some(WorkKind::RollBack) => self.roll_back_failed(&task, executor).await,
            None => Ok(()),
        }
    }

    async fn apply(&self, task: StoredTask, executor: &Arc<dyn Executor>) -> Result<(), Error> {
        let (task_id, attempt, config) = (task.task_id.as_str(), task.next_attempt(), &task.config);
        let acquired =
            acquire_locks(&self.locks, &self.name, task_id, attempt, config, self.lease_ms, LOCK_TIMEOUT_MS);
        let Some((locks, since)) = acquired.await? else {
            self.postpone(task_id).await;
            return Ok(());
        };
        let done = self.apply_locked(&task, executor, &locks, since).await;
        locks.release(&self.locks).await;
        done
    }

    async fn apply_locked(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        locks: &AttemptLocks,
        since: Instant,
    ) -> Result<(), Error> {
        // The task may have changed while the locks were acquired. Then the attempt cannot begin, and the task is claimed again.
        let task_id = task.task_id.as_str();
        if !matches_digest(task) {
            tracing::error!(task_id, "the stored task differs from what was approved; it is not applied");
            return self.tasks.mark_corrupt(task_id, task.revision, &self.name).await;
        }
        if !self.tasks.is_approval_valid(task) {
            // The approval_timeout job sends it back into review.
            self.postpone(task_id).await;
            return Ok(());
        }
        let computing = preview_of(executor, &task.config.parameters);
        let Some((preview, since)) = self.while_held(locks, since, computing).await else {
            tracing::warn!(task_id, "locks lost before the task began; retrying");
            self.postpone(task_id).await;
            return Ok(());
        };
        if let Ok(preview) = &preview
            && (preview.fingerprint.map(|fingerprint| fingerprint.to_string()) != task.fingerprint
                // An error during the preview may hide a change that no reviewer has seen.
                || (preview.has_errors() && !task.preview.has_errors()))
        {
            let redacted = redact(preview.clone(), &self.secrets);
            return self.tasks.go_stale(task_id, task.revision, &redacted).await;
        }
        let begin = AttemptStart {
            worker: self.name.clone(),
            grants: locks.grants(),
            lease_until: self.lease_until(),
        };
        let number = task.next_attempt();
        let task = &self.tasks.begin(task.clone(), begin).await?;
        let lease = self.guard_lease(task_id, number, locks, since);
        let attempt = Attempt { task, number, locks, executor };
        let run = attempt.run(self.stored_output(task_id, number), &lease);
        let outcome = match preview {
            Err(failure) => Err(FailedRun { failure, rollback_data: Vec::new() }),
            Ok(_) => self.run(&attempt, &run, &lease).await,
        };
        self.finish(&attempt, &run, outcome, &lease).await
    }

    /// Stores the rollback data, records the start, and runs the executor. Returns the current state of the task.
    async fn run(
        &self,
        attempt: &Attempt<'_>,
        run: &Run,
        lease: &LeaseGuard,
    ) -> Result<StoredTask, FailedRun> {
        if attempt.executor.is_noop() {
            return Ok(attempt.task.clone());
        }
        let unchanged = |failure| FailedRun { failure, rollback_data: Vec::new() };
        let (executor, task_id) = (attempt.executor, attempt.task.task_id.as_str());
        let rollback_data = executor.prepare_rollback(run).await.map_err(unchanged)?;
        let task = match self.record_start(attempt, lease, &rollback_data).await {
            Ok(task) => task,
            Err(failure) => {
                // The rollback data is not needed.
                executor.clean_up(task_id, attempt.number).await;
                return Err(unchanged(failure));
            }
        };
        if lease.is_lost() {
            // Nothing has been changed. If no other worker has taken over yet, this can still be recorded.
            return Err(unchanged(stopped(StopReason::LeaseLost)));
        }
        lease.start_timeout(Duration::from_secs(attempt.task.config.timeout_seconds.into()));
        let applied = self.while_relaying(attempt, &run.output, executor.apply(run, &rollback_data)).await;
        applied.map(|()| task).map_err(|failure| FailedRun { failure, rollback_data })
    }

    /// Stores the rollback data, and records that the executor may change something from now on.
    async fn record_start(
        &self,
        attempt: &Attempt<'_>,
        lease: &LeaseGuard,
        rollback_data: &[u8],
    ) -> Result<StoredTask, Failure> {
        let task_id = attempt.task.task_id.as_str();
        let key = self.save_rollback_data(task_id, attempt.number, rollback_data).await?;
        if let Some(reason) = lease.stop.reason() {
            return Err(stopped(reason));
        }
        self.tasks.started(task_id, attempt.number, key).await.map_err(|error| {
            let is_stopped = matches!(error, Error::Refused(Refusal::Stopped));
            Failure {
                stop_reason: is_stopped.then_some(StopReason::Stopped),
                ..Failure::retryable(error.to_string())
            }
        })
    }

    /// Relays the output of a run to the log of the task while it runs.
    pub(super) async fn while_relaying<T>(
        &self,
        attempt: &Attempt<'_>,
        output: &RunOutput,
        work: impl Future<Output = T>,
    ) -> T {
        let task_id = attempt.task.task_id.as_str();
        let mut tick = tokio::time::interval(OUTPUT_INTERVAL);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = tick.tick() => {}
            }
            let relaying = self.relay_output(task_id, attempt.number, output);
            tokio::pin!(relaying);
            tokio::select! {
                biased;
                done = &mut work => {
                    // What is already taken out of the output would be lost otherwise.
                    relaying.await;
                    return done;
                }
                () = &mut relaying => {}
            }
        }
    }

    pub(super) async fn relay_output(&self, task_id: &str, attempt: u64, output: &RunOutput) {
        let new = output.take_unread();
        if new.is_empty() {
            return;
        }
        // The log then misses a part; the stored output is complete.
        if let Err(error) = self.database.append_task_log(task_id, attempt, self.now(), &new, None).await {
            tracing::debug!(task_id, %error, "cannot relay the output of a task");
        }
    }

    async fn finish(
        &self,
        attempt: &Attempt<'_>,
        run: &Run,
        outcome: Result<StoredTask, FailedRun>,
        lease: &LeaseGuard,
    ) -> Result<(), Error> {
        let (task_id, number) = (attempt.task.task_id.as_str(), attempt.number);
        let output = self.finish_output(task_id, number, &run.output).await;
        let FailedRun { failure, rollback_data } = match outcome {
            Ok(task) => return self.report(lease, || self.tasks.complete(&task, number, &output)).await,
            Err(failed) => failed,
        };
        let failed = self.failed(attempt, &failure);
        match self.report(lease, || self.tasks.fail(task_id, number, &failed, &output)).await? {
            NextStep::RollBack => self.roll_back(attempt, run, &rollback_data, lease).await,
            NextStep::Finished | NextStep::Retry => Ok(()),
        }
    }

    fn failed(&self, attempt: &Attempt<'_>, failure: &Failure) -> AttemptFailure {
        let code = match failure.stop_reason {
            Some(StopReason::TimedOut) => FailureCode::TimedOut,
            Some(StopReason::Stopped) => FailureCode::Stopped,
            Some(StopReason::LeaseLost) => FailureCode::LocksLost,
            None => FailureCode::ExecutionFailed,
        };
        let can_roll_back = attempt.executor.can_roll_back(&attempt.task.config.parameters);
        let left = match failure.side_effects {
            SideEffects::None => RemainingEffects::None,
            SideEffects::RolledBack => RemainingEffects::RolledBack,
            SideEffects::Remaining if can_roll_back => RemainingEffects::Reversible,
            SideEffects::Remaining => RemainingEffects::Irreversible,
            SideEffects::Unknown => RemainingEffects::Unknown,
        };
        AttemptFailure {
            code,
            error: self.secrets.redact(&failure.message),
            effects: left,
            is_retryable: failure.is_retryable,
        }
    }

    /// Records how a run ended. While the database is unavailable it retries for as long as the attempt has its lease.
    pub(super) async fn report<T, F: Future<Output = Result<T, Error>>>(
        &self,
        lease: &LeaseGuard,
        write: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            match write().await {
                Err(Error::Database(error)) if !lease.is_lost() => {
                    tracing::warn!(%error, "cannot record the end of a task; retrying");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                written => return written,
            }
        }
    }

    async fn save_rollback_data(
        &self,
        task_id: &str,
        attempt: u64,
        rollback_data: &[u8],
    ) -> Result<Option<String>, Failure> {
        if rollback_data.is_empty() {
            return Ok(None);
        }
        if rollback_data.len() as u64 > MAX_ROLLBACK_DATA_BYTES {
            let size = rollback_data.len();
            return Err(Failure::permanent(format!(
                "the rollback data is too large: {size} bytes, at most {MAX_ROLLBACK_DATA_BYTES}"
            )));
        }
        let key = format!("rollback_data/{task_id}/{attempt}");
        let (blobs, bytes) = (self.blobs.clone(), rollback_data.to_vec());
        let put = spawn_blocking(move || blobs.put(&key, &bytes).map(|()| key)).await;
        let failed = |error: String| Failure::retryable(format!("cannot store the rollback data: {error}"));
        put.map_err(|error| failed(error.to_string()))?.map(Some).map_err(|error| failed(error.to_string()))
    }

    /// An output whose whole text goes into a file.
    fn stored_output(&self, task_id: &str, attempt: u64) -> RunOutput {
        let file = self.blobs.temp_path(&format!("output-{task_id}-{attempt}"));
        RunOutput::new(self.secrets.clone(), Some(&file))
    }

    /// An output that goes to the log only, for rollbacks.
    pub(super) fn log_output(&self) -> RunOutput {
        RunOutput::new(self.secrets.clone(), None)
    }

    async fn finish_output(&self, task_id: &str, attempt: u64, output: &RunOutput) -> StoredOutput {
        let finished = output.finish();
        self.relay_output(task_id, attempt, output).await;
        let (text, bytes, file) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::warn!(task_id, %error, "cannot store the output of a task");
                return StoredOutput { text: Some(format!("(output not stored: {error})")), blob_key: None };
            }
        };
        let text = Some(text).filter(|text| !text.is_empty());
        let Some(file) = file else { return StoredOutput { text, blob_key: None } };
        tracing::debug!(task_id, bytes, "storing the output of a task as a blob");
        let (blobs, key) = (self.blobs.clone(), format!("output/{task_id}/{attempt}"));
        let kept = spawn_blocking(move || blobs.persist(&file, &key).map(|()| key)).await;
        match kept.map_err(|error| error.to_string()).and_then(|kept| kept.map_err(|error| error.to_string()))
        {
            Ok(key) => StoredOutput { text, blob_key: Some(key) },
            Err(error) => {
                tracing::warn!(task_id, %error, "cannot store the whole output of a task");
                StoredOutput { text, blob_key: None }
            }
        }
    }
}

/// A run that failed, with the rollback data.
struct FailedRun {
    failure: Failure,
    rollback_data: Vec<u8>,
}

impl Attempt<'_> {
    pub(super) fn run(&self, output: RunOutput, lease: &LeaseGuard) -> Run {
        Run {
            task_id: self.task.task_id.clone(),
            attempt: self.number,
            parameters: self.task.config.parameters.clone(),
            approved_fingerprint: self.task.fingerprint.clone(),
            fencing_tokens: self.locks.tokens(),
            output,
            stop: lease.stop.clone(),
        }
    }
}

/// Whether the stored config is the one that was approved.
pub(super) fn matches_digest(task: &StoredTask) -> bool {
    task.config.digest().ok() == Some(task.digest)
}

fn stopped(reason: StopReason) -> Failure {
    Failure::stopped(reason, SideEffects::None)
}

pub(crate) async fn preview_of(
    executor: &Arc<dyn Executor>,
    parameters: &Parameters,
) -> Result<Preview, Failure> {
    let computed = tokio::time::timeout(PREVIEW_TIMEOUT, executor.preview(parameters)).await;
    computed.unwrap_or_else(|_| {
        Err(Failure::retryable(format!("the preview took longer than {} s", PREVIEW_TIMEOUT.as_secs())))
    })
}
