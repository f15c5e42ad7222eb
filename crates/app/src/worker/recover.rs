//! Workers that are gone: what they left is found out, undone or told, once nobody can be at it any more.
//!
//! Only when the locks of an attempt are gone and its lease has passed; the attempt grows first. Where effects have no fence,
//! nobody knows what happened, and the task says so; nothing is ever carried out again that may have been begun.

use std::sync::Arc;

use ade_domain::review::{Begin, Follows};
use ade_domain::task::{Failed, FailureCode, Left, Output as Said, Phase, RollbackStrategy};
use ade_executors::{Executor, Fence, Settled};
use ade_store::record::StoredTask;
use futures_util::future::join_all;

use super::hold::{Kept, Locks, holder_id, take};
use super::one::Begun;
use super::undo::changed_by;
use super::{RECOVER_EVERY, Worker};
use crate::Error;

/// Tasks that are looked at in one round.
const MOST: u32 = 50;
/// Executors whose effects have a fence: only a worker with their place finds out what was left.
const FENCED: [&str; 3] = ["files", "sql", "noop"];

impl Worker {
    pub(super) async fn recover_all(self) {
        let mut tick = tokio::time::interval(RECOVER_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut fails = false;
        loop {
            tick.tick().await;
            match self.recover_some().await {
                Ok(()) => fails = false,
                Err(error) => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!(%error, "cannot look for workers that are gone; trying again");
                    }
                }
            }
        }
    }

    async fn recover_some(&self) -> Result<(), Error> {
        let silent = self.record.silent(self.now(), MOST).await?;
        let each = silent.iter().map(|task_id| async move {
            if let Err(error) = self.recover(task_id).await {
                tracing::debug!(task_id, %error, "a task whose worker is gone cannot be settled now");
            }
        });
        // One after the other would let one that waits for locks hold up all.
        join_all(each).await;
        Ok(())
    }

    async fn recover(&self, task_id: &str) -> Result<(), Error> {
        let task = self.reviews.look(task_id).await?;
        let Some(execution) = &task.review.execution else { return Ok(()) };
        if !self.locks_are_gone(&task).await? {
            return Ok(());
        }
        let (config, attempt) = (&task.review.config, task.review.next_attempt());
        let here = self.executors.at(&config.place());
        let fenced = FENCED.contains(&config.executor.as_str());
        if execution.phase == Phase::Prepared || !fenced {
            let begin = Begin { worker: self.name.clone(), grants: Vec::new(), lease_until: self.now() };
            return self.reviews.recover(task_id, &begin, false).await.map(drop);
        }
        // Whoever has its place finds out.
        let Some(executor) = here.filter(|executor| executor.fence() == Fence::Fenced) else { return Ok(()) };
        let Some(locks) = take(&self.locks, &self.name, task_id, attempt, config, self.lease_ms).await?
        else {
            return Ok(());
        };
        let done = self.settle(&task, executor, &locks).await;
        locks.release(&self.locks).await;
        done
    }

    /// Whether nobody holds a lock any more as this attempt.
    async fn locks_are_gone(&self, task: &StoredTask) -> Result<bool, Error> {
        let Some(execution) = &task.review.execution else { return Ok(true) };
        let holder = holder_id(&task.review.task_id, execution.attempt);
        for grant in &execution.grants {
            let Ok(lock) = grant.lock.parse() else { continue };
            let away = |error: ade_store::Unavailable| {
                Error::Record(ade_store::RecordError::Unavailable(error.to_string()))
            };
            let view = self.locks.show(lock).await.map_err(away)?;
            if view.holders.iter().any(|held| held.holder.holder_id() == holder) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn settle(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        locks: &Locks,
    ) -> Result<(), Error> {
        let task_id = task.review.task_id.as_str();
        let stash = self.stash_of(task).await?;
        let grants = locks.grants();
        let begin = Begin { worker: self.name.clone(), grants, lease_until: self.lease_until() };
        let (attempt, follows) = self.reviews.recover(task_id, &begin, true).await?;
        if follows != Follows::RollBack {
            return Ok(());
        }
        let kept = self.keep(task_id, attempt, locks);
        let begun = Begun { task, attempt, locks, executor };
        let output = self.only_followed()?;
        let run = ade_executors::Run { attempt: changed_by(task), ..begun.run(output, &kept) };
        match executor.settle(&run, &stash).await {
            Ok(settled) => self.settled(&begun, &run, &stash, settled, &kept).await,
            // The lease of this attempt ends, and it is tried again.
            Err(failure) => {
                tracing::warn!(task_id, error = %self.secrets.hide(&failure.message), "cannot find out what a worker left");
                Ok(())
            }
        }
    }

    /// Says how it ended by what was found.
    async fn settled(
        &self,
        begun: &Begun<'_>,
        run: &ade_executors::Run,
        stash: &[u8],
        settled: Settled,
        kept: &Kept,
    ) -> Result<(), Error> {
        let review = &begun.task.review;
        let (task_id, attempt) = (review.task_id.as_str(), begun.attempt);
        let before = review.execution.as_ref();
        let undoing = before.is_some_and(|execution| execution.phase == Phase::RollingBack);
        let automatic = review.config.rollback_strategy == RollbackStrategy::Automatic;
        let end = |code, error: &str, left| Failed { code, error: error.to_owned(), left, again: false };
        let silence = Said::default();
        let lost = before.map(|execution| execution.worker.clone()).unwrap_or_default();
        match settled {
            // All of it was committed as one: that is what was approved.
            Settled::Everything if review.config.executor == "sql" && !undoing => {
                let output =
                    Said { text: Some(format!("{lost} was gone when this was found out")), key: None };
                self.tell(kept, || self.reviews.complete(task_id, attempt, &output)).await
            }
            Settled::Nothing if !undoing => {
                let error = format!("nothing was heard of {lost} any more, and nothing was changed");
                let failed = end(FailureCode::WorkerLost, &error, Left::Nothing);
                self.tell(kept, || self.reviews.fail(task_id, attempt, &failed, &silence)).await.map(drop)
            }
            Settled::Everything if !undoing && !automatic => {
                let error = format!(
                    "OUTCOME_UNKNOWN: nothing was heard of {lost} any more; all of it was done, and nobody said so"
                );
                let failed = end(FailureCode::OutcomeUnknown, &error, Left::Unknown);
                self.tell(kept, || self.reviews.fail(task_id, attempt, &failed, &silence)).await.map(drop)
            }
            _ => self.change_back(begun, run, stash, kept).await,
        }
    }
}
