//! Processing one claimed task: its preview, its execution, or its rollback.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::audit::Principal;
use ade_domain::task::{
    AttemptFailure, ExecutionOutput as StoredOutput, FailureCode, NextStep, Preview, Refusal,
    RemainingEffects, rollback_data_key,
};
use ade_executors::{Executor, Failure, Run, RunOutput, SideEffects, StopReason, derive_scope};
use ade_store::Blobs;
use ade_store::database::{StoredTask, WorkKind};
use tokio::time::Instant;

use super::Worker;
use super::evidence::may_apply;
use super::lease::{AttemptLocks, LOCK_TIMEOUT_MS, LeaseGuard, acquire_locks};
use crate::tasks::{preview_of, redact};
use crate::{Error, Result};

/// The maximum size of rollback data.
pub(super) const MAX_ROLLBACK_DATA_BYTES: u64 = 64 * 1_048_576;
const OUTPUT_INTERVAL: Duration = Duration::from_millis(250);

/// An attempt that has begun.
pub(super) struct Attempt<'a> {
    pub(super) worker: &'a Worker,
    pub(super) task: &'a StoredTask,
    pub(super) number: u64,
    pub(super) locks: &'a AttemptLocks,
    pub(super) executor: &'a Arc<dyn Executor>,
    pub(super) lease: LeaseGuard,
}

impl Worker {
    pub(super) async fn process(&self, task_id: &str) -> Result<()> {
        let task = self.tasks.get(task_id).await?;
        let work_queue = task.config.work_queue();
        let Some(executor) = self.executors.get(&work_queue) else { return Ok(()) };
        let by = self.principal(task.next_attempt());
        let kind = match WorkKind::of(&task) {
            Some(WorkKind::Preview) => {
                let computed = preview_of(executor, &task.config.parameters).await;
                let preview = computed.unwrap_or_else(|failure| Preview::failed(failure.message));
                return self.tasks.put_preview(&task, &redact(preview, &self.secrets), &by).await;
            }
            Some(kind) => kind,
            None => return Ok(()),
        };
        let acquired = acquire_locks(&self.locks, &self.name, &task, self.lease_ms, LOCK_TIMEOUT_MS);
        let Some((locks, since)) = acquired.await? else {
            self.postpone(task_id).await;
            return Ok(());
        };
        let done = if kind == WorkKind::Apply {
            Box::pin(self.apply(&task, executor, &locks, since)).await
        } else {
            Box::pin(self.roll_back_failed(&task, executor, &locks, since)).await
        };
        locks.release(&self.locks).await;
        done
    }

    async fn apply(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        locks: &AttemptLocks,
        since: Instant,
    ) -> Result<()> {
        // The task may have changed while the locks were acquired. Then the attempt cannot begin, and the task is claimed again.
        let (task_id, number) = (task.task_id.as_str(), task.next_attempt());
        let by = self.principal(number);
        if !may_apply(&self.context, &self.tasks, task, &self.name, &by).await? {
            self.postpone(task_id).await;
            return Ok(());
        }
        let scope = derive_scope(&task.config, &self.bindings);
        if !scope.is_ok_and(|scope| scope.digest(&task.config) == task.scope_digest) {
            if !self.tasks.go_stale_in_scope(task_id, task.revision, &by).await? {
                tracing::error!(
                    task_id,
                    "the configuration of this worker differs from what is published; the task is not applied here"
                );
                self.postpone(task_id).await;
            }
            return Ok(());
        }
        if !self.tasks.is_approval_valid(task) {
            // If it has expired, the approval_timeout job sends it back into review.
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
            return self.tasks.go_stale(task_id, task.revision, &redacted, &by).await;
        }
        let start = self.attempt_start(locks.grants.clone());
        let task = &self.tasks.begin(task.clone(), start, &by, None).await?;
        let lease = self.guard_lease(task_id, number, locks, since);
        let attempt = Attempt { worker: self, task, number, locks, executor, lease };
        let file = self.context.blobs.temp_path(&format!("output-{task_id}-{number}"));
        let run = attempt.run(Some(&file));
        let outcome = match preview {
            Err(failure) => Err(FailedRun { failure, rollback_data: Vec::new() }),
            Ok(_) => attempt.apply(&run).await,
        };
        attempt.finish(&run, outcome).await
    }
}

/// A run that failed, with the rollback data.
struct FailedRun {
    failure: Failure,
    rollback_data: Vec<u8>,
}

impl Attempt<'_> {
    pub(super) fn task_id(&self) -> &str {
        &self.task.task_id
    }

    /// The worker with this attempt, for audit entries.
    pub(super) fn principal(&self) -> Principal {
        self.worker.principal(self.number)
    }

    /// A run of the executor. Its whole output also goes into the file, if one is given.
    pub(super) fn run(&self, output_file: Option<&Path>) -> Run {
        Run {
            task_id: self.task.task_id.clone(),
            attempt: self.number,
            parameters: self.task.config.parameters.clone(),
            approved_fingerprint: self.task.fingerprint.clone(),
            fencing_tokens: self.locks.tokens(),
            output: RunOutput::new(self.worker.secrets.clone(), output_file),
            stop: self.lease.stop.clone(),
        }
    }

    /// Stores the rollback data, records the start, and runs the executor. Returns the current state of the task.
    async fn apply(&self, run: &Run) -> Result<StoredTask, FailedRun> {
        if self.executor.is_noop() {
            return Ok(self.task.clone());
        }
        let unchanged = |failure| FailedRun { failure, rollback_data: Vec::new() };
        let rollback_data = self.executor.prepare_rollback(run).await.map_err(unchanged)?;
        let task = match self.record_start(&rollback_data).await {
            Ok(task) => task,
            Err(failure) => {
                // The rollback data is not needed.
                self.executor.clean_up(self.task_id(), self.number).await;
                return Err(unchanged(failure));
            }
        };
        if self.lease.is_lost() {
            // Nothing has been changed. If no other worker has taken over yet, this can still be recorded.
            return Err(unchanged(stopped(StopReason::LeaseLost)));
        }
        self.lease.start_timeout(Duration::from_secs(self.task.config.timeout_seconds.into()));
        let applied = self.while_relaying(&run.output, self.executor.apply(run, &rollback_data)).await;
        applied.map(|()| task).map_err(|failure| FailedRun { failure, rollback_data })
    }

    /// Stores the rollback data, and records that the executor may change something from now on.
    async fn record_start(&self, rollback_data: &[u8]) -> Result<StoredTask, Failure> {
        let key = self.save_rollback_data(rollback_data).await?;
        if let Some(reason) = self.lease.stop.reason() {
            return Err(stopped(reason));
        }
        let start = |task: &mut StoredTask, now| task.mark_started(self.number, key.clone(), now);
        let started = self.worker.tasks.change(self.task_id(), &self.principal(), start).await;
        started.map(|(task, ())| task).map_err(|error| {
            let is_stopped = matches!(error, Error::Refused(Refusal::Stopped));
            Failure {
                stop_reason: is_stopped.then_some(StopReason::Stopped),
                ..Failure::retryable(error.to_string())
            }
        })
    }

    /// Relays the output of a run to the log of the task while it runs.
    pub(super) async fn while_relaying<T>(&self, output: &RunOutput, work: impl Future<Output = T>) -> T {
        let mut tick = tokio::time::interval(OUTPUT_INTERVAL);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = tick.tick() => {}
            }
            let relaying = self.relay_output(output);
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

    pub(super) async fn relay_output(&self, output: &RunOutput) {
        let new = output.take_unread();
        if new.is_empty() {
            return;
        }
        let (context, task_id) = (&self.worker.context, self.task_id());
        let appended =
            context.database.append_task_log(task_id, self.number, context.now(), &new, None).await;
        // The log then misses a part; the stored output is complete.
        if let Err(error) = appended {
            tracing::debug!(task_id, %error, "cannot relay the output of a task");
        }
    }

    async fn finish(&self, run: &Run, outcome: Result<StoredTask, FailedRun>) -> Result<()> {
        let output = self.finish_output(&run.output).await;
        let FailedRun { failure, rollback_data } = match outcome {
            Ok(task) => return self.record_success(&task, &output).await,
            Err(failed) => failed,
        };
        match self.record_failure(&self.failed(&failure), &output).await? {
            NextStep::RollBack => self.roll_back(run, &rollback_data).await,
            NextStep::Finished | NextStep::Retry => Ok(()),
        }
    }

    /// Records success. `known` is the probable state of the task, which saves a read.
    pub(super) async fn record_success(&self, known: &StoredTask, output: &StoredOutput) -> Result<()> {
        let by = self.principal();
        self.lease.record(|| self.worker.tasks.complete(known, self.number, output, &by)).await
    }

    /// Records a failure; returns what has to be done next.
    pub(super) async fn record_failure(
        &self,
        failed: &AttemptFailure,
        output: &StoredOutput,
    ) -> Result<NextStep> {
        let fail = |task: &mut StoredTask, now| task.fail(self.number, failed.clone(), output.clone(), now);
        let by = self.principal();
        Ok(self.lease.record(|| self.worker.tasks.change(self.task_id(), &by, fail)).await?.1)
    }

    fn failed(&self, failure: &Failure) -> AttemptFailure {
        let code = match failure.stop_reason {
            Some(StopReason::TimedOut) => FailureCode::TimedOut,
            Some(StopReason::Stopped) => FailureCode::Stopped,
            Some(StopReason::LeaseLost) => FailureCode::LocksLost,
            None => FailureCode::ExecutionFailed,
        };
        let can_roll_back = self.executor.can_roll_back(&self.task.config.parameters);
        let effects = match failure.side_effects {
            SideEffects::None => RemainingEffects::None,
            SideEffects::RolledBack => RemainingEffects::RolledBack,
            SideEffects::Remaining if can_roll_back => RemainingEffects::Reversible,
            SideEffects::Remaining => RemainingEffects::Irreversible,
            SideEffects::Unknown => RemainingEffects::Unknown,
        };
        let error = self.worker.secrets.redact(&failure.message);
        AttemptFailure { code, error, effects, is_retryable: failure.is_retryable, reported: None }
    }

    async fn save_rollback_data(&self, rollback_data: &[u8]) -> Result<Option<String>, Failure> {
        if rollback_data.is_empty() {
            return Ok(None);
        }
        if rollback_data.len() as u64 > MAX_ROLLBACK_DATA_BYTES {
            let size = rollback_data.len();
            return Err(Failure::permanent(format!(
                "the rollback data is too large: {size} bytes, at most {MAX_ROLLBACK_DATA_BYTES}"
            )));
        }
        let key = rollback_data_key(self.task_id(), self.number);
        let bytes = rollback_data.to_vec();
        let stored = self.worker.context.put_blob("cannot store the rollback data", key, bytes).await;
        stored.map(Some).map_err(|error| Failure::retryable(error.to_string()))
    }

    async fn finish_output(&self, output: &RunOutput) -> StoredOutput {
        let (finished, task_id) = (output.finish(), self.task_id());
        self.relay_output(output).await;
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
        let key = format!("output/{task_id}/{}", self.number);
        let blob_key = key.clone();
        let persist = move |blobs: &Blobs| Ok(blobs.persist(&file, &blob_key)?);
        let stored = self.worker.context.with_blobs("the blob folder failed", persist).await;
        if let Err(error) = &stored {
            tracing::warn!(task_id, %error, "cannot store the whole output of a task");
        }
        StoredOutput { text, blob_key: stored.is_ok().then_some(key) }
    }
}

fn stopped(reason: StopReason) -> Failure {
    Failure::stopped(reason, SideEffects::None)
}
