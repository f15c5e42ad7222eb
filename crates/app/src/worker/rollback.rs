//! Rollbacks: automatically after a failure, or on request of an administrator.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::audit::AuditBody;
use ade_executors::{Executor, Run, StopReason};
use ade_store::database::StoredTask;
use ade_store::{BlobError, Blobs};
use tokio::time::Instant;

use super::Worker;
use super::apply::{Attempt, MAX_ROLLBACK_DATA_BYTES};
use super::evidence::{Evidence, verify_evidence};
use super::lease::AttemptLocks;
use crate::Result;

impl Attempt<'_> {
    /// Rolls back the changes of this attempt, or of the one that it took over from. An attempt that has lost its lease or its locks
    /// neither begins nor records anything: recovery does.
    pub(super) async fn roll_back(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        let (lease, task_id) = (&self.lease, self.task_id());
        if lease.is_lost() {
            tracing::warn!(task_id, "locks lost before the rollback; leaving it to recovery");
            return Ok(());
        }
        // A rollback is not ended by what stopped the run, but by the loss of the lease.
        let (sender, stop) = lease.stop.with_same_lease();
        let run = Run { stop, ..run.clone() };
        let timeout = Duration::from_secs(self.task.config.timeout_seconds.into());
        let rolled_back = {
            let work = self.while_relaying(&run.output, self.executor.roll_back(&run, rollback_data));
            tokio::pin!(work);
            let stopped = async {
                tokio::select! {
                    biased;
                    () = lease.stop.wait_lease_lost() => StopReason::LeaseLost,
                    () = tokio::time::sleep(timeout) => StopReason::TimedOut,
                }
            };
            tokio::select! {
                biased;
                reason = stopped => {
                    sender.send_replace(Some(reason));
                    work.await
                }
                rolled_back = &mut work => rolled_back,
            }
        };
        self.relay_output(&run.output).await;
        if rolled_back.is_err() {
            if lease.is_lost() {
                tracing::warn!(task_id, "locks lost during the rollback; leaving the rest to recovery");
                return Ok(());
            }
            // It is not retried automatically.
            self.executor.clean_up(task_id, run.attempt).await;
        }
        let rolled_back = rolled_back.map_err(|failure| self.worker.secrets.redact(&failure.message));
        self.record_rollback(&rolled_back).await
    }

    /// Records the outcome of a rollback.
    pub(super) async fn record_rollback(&self, outcome: &Result<(), String>) -> Result<()> {
        let finish = |task: &mut StoredTask, now| task.finish_rollback(self.number, outcome.clone(), now);
        let by = self.principal();
        self.lease.record(|| self.worker.tasks.change(self.task_id(), &by, finish)).await.map(drop)
    }
}

impl Worker {
    /// Rolls back what a failed task left behind, on request of an administrator.
    pub(super) async fn roll_back_failed(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        locks: &AttemptLocks,
        since: Instant,
    ) -> Result<()> {
        let (task_id, by) = (task.task_id.as_str(), self.principal(task.next_attempt()));
        let verify = |task: &StoredTask, entries: &[AuditBody]| task.verify_rollback(entries);
        match verify_evidence(&self.context, task, verify).await? {
            Evidence::Proven => {}
            Evidence::Unknown => {
                self.postpone(task_id).await;
                return Ok(());
            }
            Evidence::Unproven(reason) => {
                let start = self.attempt_start(Vec::new());
                let refuse = |task: &mut StoredTask, now| {
                    let attempt = task.begin_rollback(start.clone())?;
                    task.finish_rollback(attempt, Err(format!("UNPROVEN_APPROVAL: {reason}")), now)
                };
                return self.tasks.change(task_id, &by, refuse).await.map(drop);
            }
        }
        let loaded = self.while_held(locks, since, self.load_rollback_data(task)).await;
        let Some((rollback_data, since)) = loaded else { return Ok(()) };
        // If it is missing, the executor reports that nothing can be rolled back.
        let rollback_data = rollback_data?.unwrap_or_default();
        let start = self.attempt_start(locks.grants.clone());
        let begun = self.tasks.change(task_id, &by, |task, _| task.begin_rollback(start.clone()));
        let (_, number) = begun.await?;
        let lease = self.guard_lease(task_id, number, locks, since);
        let attempt = Attempt { worker: self, task, number, locks, executor, lease };
        let run = Run { attempt: attempt_with_effects(task), ..attempt.run(None) };
        attempt.roll_back(&run, &rollback_data).await
    }

    /// The rollback data; `None` if the blob is missing, an error if the blob folder is not available.
    pub(super) async fn load_rollback_data(&self, task: &StoredTask) -> Result<Option<Vec<u8>>> {
        let key = task.execution.as_ref().and_then(|execution| execution.rollback_data_key.clone());
        let Some(key) = key else { return Ok(Some(Vec::new())) };
        let read = move |blobs: &Blobs| match blobs.get(&key, MAX_ROLLBACK_DATA_BYTES) {
            Err(BlobError::NotFound(_)) => Ok(None),
            read => Ok(Some(read?)),
        };
        self.context.with_blobs("cannot read the rollback data", read).await
    }
}

/// The attempt whose changes are in effect. If it was not recorded, the key of its rollback data tells.
pub(super) fn attempt_with_effects(task: &StoredTask) -> u64 {
    let Some(execution) = &task.execution else { return 0 };
    let by_rollback_data = || execution.rollback_data_key.as_deref()?.rsplit('/').next()?.parse().ok();
    execution.effects_attempt.or_else(by_rollback_data).unwrap_or(execution.attempt)
}
