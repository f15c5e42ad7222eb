//! Changing back: at once after a failure, or because an administrator wants it.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::task::Begin;
use ade_executors::{Executor, Halt, Run};
use ade_store::BlobError;
use ade_store::database::StoredTask;
use tokio::task::spawn_blocking;

use super::Worker;
use super::hold::{Kept, PATIENCE_MS, take};
use super::one::{Begun, MOST_STASHED};
use crate::Error;

impl Worker {
    /// Changes back what this attempt changed, or the one that it took over from. Whoever has lost its lease or its locks begins
    /// nothing and says nothing: whoever recovers it does.
    pub(super) async fn change_back(
        &self,
        begun: &Begun<'_>,
        run: &Run,
        stash: &[u8],
        kept: &Kept,
    ) -> Result<(), Error> {
        let task_id = begun.task.task_id.as_str();
        if kept.is_lost() {
            tracing::warn!(
                task_id,
                "its locks were lost before it was changed back; whoever recovers it does"
            );
            return Ok(());
        }
        // What ended the run before does not end this; that its lease is lost does.
        let (halt, halted) = kept.halted.another();
        let run = Run { halted, ..run.clone() };
        let timeout = Duration::from_secs(begun.task.config.timeout_seconds.into());
        let undone = {
            let work = self.while_followed(begun, &run.output, begun.executor.roll_back(&run, stash));
            tokio::pin!(work);
            let ends = async {
                tokio::select! {
                    biased;
                    () = kept.halted.lost() => Halt::Lost,
                    () = tokio::time::sleep(timeout) => Halt::TimedOut,
                }
            };
            tokio::select! {
                biased;
                why = ends => {
                    halt.send_replace(Some(why));
                    work.await
                }
                undone = &mut work => undone,
            }
        };
        self.pass_on(task_id, begun.attempt, &run.output).await;
        if undone.is_err() {
            if kept.is_lost() {
                tracing::warn!(
                    task_id,
                    "its locks were lost while it was changed back; whoever recovers it goes on"
                );
                return Ok(());
            }
            // Nobody tries it again by itself.
            begun.executor.forget(task_id, run.attempt).await;
        }
        let undone = undone.map_err(|failure| self.secrets.hide(&failure.message));
        self.tell(kept, || self.reviews.rolled_back(task_id, begun.attempt, &undone)).await
    }

    /// An administrator wants undone what a failed task left.
    pub(super) async fn undo(&self, task: &StoredTask, executor: &Arc<dyn Executor>) -> Result<(), Error> {
        let (task_id, attempt) = (task.task_id.as_str(), task.next_attempt());
        let config = &task.config;
        let taken =
            take(&self.locks, &self.name, task_id, attempt, config, self.lease_ms, PATIENCE_MS).await?;
        let Some((locks, since)) = taken else {
            self.put_off(task_id).await;
            return Ok(());
        };
        let done = async {
            let Some((stash, since)) = self.while_held(&locks, since, self.stash_of(task)).await else {
                return Ok(());
            };
            // Without it nothing can be changed back, and the executor says so.
            let stash = stash?.unwrap_or_default();
            let begin =
                Begin { worker: self.name.clone(), grants: locks.grants(), lease_until: self.lease_until() };
            let attempt = self.reviews.begin_roll_back(task_id, &begin).await?;
            let kept = self.keep(task_id, attempt, &locks, since);
            let begun = Begun { task, attempt, locks: &locks, executor };
            let output = self.only_followed();
            // What is undone is what the last attempt did that changed something.
            let run = Run { attempt: changed_by(task), ..begun.run(output, &kept) };
            self.change_back(&begun, &run, &stash, &kept).await
        };
        let done = done.await;
        locks.release(&self.locks).await;
        done
    }

    /// What was kept to undo it: nothing, if its folder has it not; an error, if the folder itself is not there.
    pub(super) async fn stash_of(&self, task: &StoredTask) -> Result<Option<Vec<u8>>, Error> {
        let key = task.execution.as_ref().and_then(|execution| execution.stash_key.clone());
        let Some(key) = key else { return Ok(Some(Vec::new())) };
        let blobs = self.blobs.clone();
        let got = spawn_blocking(move || blobs.get(&key, MOST_STASHED)).await;
        let away = |error: String| Error::Record(ade_store::DatabaseError::Unavailable(error));
        match got.map_err(|error| away(error.to_string()))? {
            Ok(stash) => Ok(Some(stash)),
            Err(BlobError::Missing(_)) => Ok(None),
            Err(error) => Err(away(error.to_string())),
        }
    }
}

/// The attempt whose effects there are. What was begun before that was written down is known by the name of its stash.
pub(super) fn changed_by(task: &StoredTask) -> u64 {
    let Some(execution) = &task.execution else { return 0 };
    let by_stash = || execution.stash_key.as_deref()?.rsplit('/').next()?.parse().ok();
    execution.effects_of.or_else(by_stash).unwrap_or(execution.attempt)
}
