//! Workers that are gone: what they left is found out, undone or told, once nobody can be at it any more.
//!
//! Only when the locks of an attempt are gone and its lease has passed; the attempt grows first. Where effects have no fence,
//! nobody knows what happened, and the task says so; nothing is ever carried out again that may have been begun.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use ade_domain::Moment;
use ade_domain::task::{Begin, Follows};
use ade_domain::task::{Failed, FailureCode, Left, Output as Said, Phase, RollbackStrategy, State};
use ade_executors::{Executor, Fence, Halt, Settled};
use ade_store::database::StoredTask;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::hold::{Kept, Locks, holder_id, take};
use super::one::Begun;
use super::undo::changed_by;
use super::{RECOVER_EVERY, Worker};
use crate::Error;

/// Tasks that are read at once.
const MOST: u32 = 50;
/// Tasks that are settled at once.
const MOST_UNDER_WAY: usize = 50;
/// Executors whose effects have a fence: only a worker with their place finds out what was left.
const FENCED: [&str; 3] = ["files", "sql", "noop"];
/// How long whoever recovers waits for locks that others have taken meanwhile. What was left half is worse for them than that it
/// is changed back under their eyes: then the fence alone has to do.
const PATIENCE_MS: u64 = 1_000;
/// How long after the end of a lease what was saved may still be missing without being gone: a shared folder shows a new file
/// elsewhere later than where it was made.
const SAVED_MAY_BE_LATE_MS: u64 = 120_000;
/// Tasks that are remembered as told of.
const MOST_TOLD: usize = 1_000;

/// How long after an administrator stopped a task it is still tried to find out what its worker left, which is gone.
const GIVEN_UP_AFTER_MS: u64 = 60_000;

/// How long after the end of its lease somebody is waited for who could go on changing back what a failed task left. That is not the
/// end of it: an administrator may ask for it again once there is somebody.
const UNDOING_WAITS_MS: u64 = 600_000;

/// What is being settled here, so that nothing is tried twice at the same time; and what the log was told of already.
#[derive(Debug, Clone, Default)]
struct UnderWay {
    now: Arc<Mutex<BTreeSet<String>>>,
    told: Arc<Mutex<BTreeSet<String>>>,
}

/// One of them, until it is dropped.
struct One(UnderWay, String);

impl UnderWay {
    fn begin(&self, task_id: &str) -> Option<One> {
        let mut all = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (all.len() < MOST_UNDER_WAY && all.insert(task_id.to_owned()))
            .then(|| One(self.clone(), task_id.to_owned()))
    }

    /// Whether nobody was told about this attempt before.
    fn is_news(&self, task_id: &str, attempt: u64) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        told.insert(format!("{task_id} {attempt}"))
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Worker {
    pub(super) async fn recover_all(self, mut stopped: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(RECOVER_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (under_way, mut running, mut fails) = (UnderWay::default(), JoinSet::new(), false);
        let mut silence = self.reviews.silence();
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                _ = tick.tick() => {}
                _ = silence.changed() => {}
            }
            while running.try_join_next().is_some() {}
            match self.recover_some(&under_way, &mut running).await {
                Ok(()) => fails = false,
                Err(error) => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!(%error, "cannot look for workers that are gone; trying again");
                    }
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Begins to settle whatever is not heard of any more. Nothing is waited for here: one that takes long holds up no other.
    async fn recover_some(&self, under_way: &UnderWay, running: &mut JoinSet<()>) -> Result<(), Error> {
        let (now, mut last) = (self.now(), None);
        loop {
            // All pages: those that nobody here can settle do not hide the others.
            let page = self.record.silent(now, last.as_ref(), MOST).await?;
            for (_, task_id) in &page {
                let Some(one) = under_way.begin(task_id) else { continue };
                let worker = self.clone();
                running.spawn(async move {
                    if let Err(error) = worker.recover(&one).await {
                        tracing::debug!(task_id = one.1, %error, "a task whose worker is gone cannot be settled now");
                    }
                });
            }
            if page.len() < MOST as usize {
                return Ok(());
            }
            last = page.into_iter().next_back();
        }
    }

    async fn recover(&self, one: &One) -> Result<(), Error> {
        let One(under_way, task_id) = one;
        let task = self.reviews.look(task_id).await?;
        let Some(execution) = &task.execution else { return Ok(()) };
        if !self.locks_are_gone(&task).await? {
            return Ok(());
        }
        let (config, attempt) = (&task.config, task.next_attempt());
        let here = self.executors.at(&config.place());
        let fenced = FENCED.contains(&config.executor.as_str());
        if execution.phase == Phase::Prepared || !fenced {
            self.give_up(&task).await?;
            if let Some(executor) = here {
                executor.forget(task_id, execution.attempt).await;
            }
            return Ok(());
        }
        // Whoever has its place finds out.
        let stopped_at = execution.stop.as_ref().map(|stop| stop.at);
        let is_given_up = is_given_up(stopped_at, execution.lease_until, self.now())
            || nobody_undoes(task.state, execution.lease_until, self.now());
        let Some(executor) = here.filter(|executor| executor.fence() == Fence::Fenced) else {
            if is_given_up {
                tracing::error!(
                    task_id,
                    "nobody is left who could find out what was left, or change it back; it is not waited for any longer"
                );
                self.give_up(&task).await?;
            }
            return Ok(());
        };
        let found = self.stash_of(&task).await;
        let Ok(Some(stash)) = found else {
            let is_late = execution.lease_until.plus_ms(SAVED_MAY_BE_LATE_MS) > self.now();
            if !is_given_up && (is_late || found.is_err()) {
                if under_way.is_news(task_id, execution.attempt) {
                    let error = found.err().map(|error| error.to_string());
                    tracing::warn!(
                        task_id,
                        error,
                        "what was kept to undo it is not here yet; it is looked for again, here and elsewhere"
                    );
                }
                return Ok(());
            }
            tracing::error!(task_id, "what was kept to undo it is gone: nobody can tell what was left");
            self.give_up(&task).await?;
            executor.forget(task_id, changed_by(&task)).await;
            return Ok(());
        };
        let taken =
            take(&self.locks, &self.name, task_id, attempt, config, self.lease_ms, PATIENCE_MS).await?;
        let none = || Some((Locks::none(&self.name, task_id, attempt)?, Instant::now()));
        let Some((locks, since)) = taken.or_else(none) else { return Ok(()) };
        let done = self.settle(&task, executor, &stash, &locks, since).await;
        locks.release(&self.locks).await;
        done
    }

    /// Nothing was begun, or nobody can find out what was.
    async fn give_up(&self, task: &StoredTask) -> Result<(), Error> {
        let begin = Begin { worker: self.name.clone(), grants: Vec::new(), lease_until: self.now() };
        self.reviews.recover(&task.task_id, &begin, false).await.map(drop)
    }

    /// Whether nobody holds a lock any more as this attempt.
    async fn locks_are_gone(&self, task: &StoredTask) -> Result<bool, Error> {
        let Some(execution) = &task.execution else { return Ok(true) };
        let holder = holder_id(&task.task_id, execution.attempt);
        for grant in &execution.grants {
            let Ok(lock) = grant.lock.parse() else { continue };
            let away = |error: ade_store::CoordinationError| {
                Error::Record(ade_store::DatabaseError::Unavailable(error.to_string()))
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
        stash: &[u8],
        locks: &Locks,
        since: Instant,
    ) -> Result<(), Error> {
        let task_id = task.task_id.as_str();
        let grants = locks.grants();
        let since = if grants.is_empty() { Instant::now() } else { since };
        let begin = Begin { worker: self.name.clone(), grants, lease_until: self.lease_until() };
        let (attempt, follows) = self.reviews.recover(task_id, &begin, true).await?;
        if follows != Follows::RollBack {
            return Ok(());
        }
        let kept = self.keep(task_id, attempt, locks, since);
        let begun = Begun { task, attempt, locks, executor };
        let output = self.only_followed();
        // That somebody wants it to end does not end this: it has ended. That the lease is lost does.
        let (_halt, halted) = kept.halted.another();
        let run = ade_executors::Run { attempt: changed_by(task), halted, ..begun.run(output, &kept) };
        let mut told = false;
        loop {
            let failure = match executor.settle(&run, stash).await {
                Ok(settled) => return self.settled(&begun, &run, stash, settled, &kept).await,
                Err(failure) => failure,
            };
            if !std::mem::replace(&mut told, true) {
                let error = self.secrets.hide(&failure.message);
                tracing::warn!(task_id, error, "cannot find out what a worker left");
            }
            if kept.is_lost() {
                // The lease of this attempt ends, and it is tried again.
                return Ok(());
            }
            if !failure.again || self.is_given_up(task_id, &kept).await? {
                let error =
                    format!("OUTCOME_UNKNOWN: what a worker left cannot be found out: {}", failure.message);
                executor.forget(task_id, run.attempt).await;
                return self.never_found_out(&begun, self.secrets.hide(&error), &kept).await;
            }
            // Somebody is in the way, perhaps that very worker: as soon as it is gone, it is settled.
            tokio::time::sleep(RECOVER_EVERY).await;
        }
    }

    /// Whether an administrator does not want to wait any longer until it is found out what was left.
    async fn is_given_up(&self, task_id: &str, kept: &Kept) -> Result<bool, Error> {
        if kept.halted.now() != Some(Halt::Stopped) {
            return Ok(false);
        }
        let task = self.reviews.look(task_id).await?;
        let stop = task.execution.as_ref().and_then(|execution| execution.stop.as_ref());
        // Whoever asks has taken over, when the lease of the one before had ended.
        Ok(stop.is_some_and(|stop| is_given_up(Some(stop.at), stop.at, self.now())))
    }

    /// Says that nobody will know what was left. A task that has failed already is over; what was to be undone is not.
    async fn never_found_out(&self, begun: &Begun<'_>, error: String, kept: &Kept) -> Result<(), Error> {
        let (task_id, attempt) = (begun.task.task_id.as_str(), begun.attempt);
        if is_undoing(begun.task) {
            let failed = Err(error);
            return self.tell(kept, || self.reviews.rolled_back(task_id, attempt, &failed)).await;
        }
        let failed = Failed { code: FailureCode::OutcomeUnknown, error, left: Left::Unknown, again: false };
        let silence = Said::default();
        self.tell(kept, || self.reviews.fail(task_id, attempt, &failed, &silence)).await.map(drop)
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
        let review = &begun.task.task;
        let (task_id, attempt) = (review.task_id.as_str(), begun.attempt);
        let (before, undoing) = (review.execution.as_ref(), is_undoing(begun.task));
        let automatic = review.config.rollback_strategy == RollbackStrategy::Automatic;
        let end = |code, error: &str, left| Failed { code, error: error.to_owned(), left, again: false };
        let silence = Said::default();
        let lost = before.map(|execution| execution.worker.clone()).unwrap_or_default();
        match settled {
            // All of it was committed as one: that is what was approved.
            Settled::Everything if review.config.executor == "sql" && !undoing => {
                let output =
                    Said { text: Some(format!("{lost} was gone when this was found out")), key: None };
                let complete = async || {
                    let task = self.reviews.look(task_id).await?;
                    self.reviews.complete(&task, attempt, &output).await
                };
                self.tell(kept, complete).await
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
                begun.executor.forget(task_id, run.attempt).await;
                self.tell(kept, || self.reviews.fail(task_id, attempt, &failed, &silence)).await.map(drop)
            }
            _ => {
                self.tell(kept, || self.reviews.change_back(task_id, attempt)).await?;
                self.change_back(begun, run, stash, kept).await
            }
        }
    }
}

/// Whether an administrator stopped it so long ago, and its lease ended so long ago, that nobody will find out what was left:
/// whoever could has not done so.
fn is_given_up(stopped_at: Option<Moment>, lease_until: Moment, now: Moment) -> bool {
    stopped_at.is_some_and(|at| at.max(lease_until).plus_ms(GIVEN_UP_AFTER_MS) <= now)
}

/// Whether a failed task, which cannot be stopped any more, has waited long enough for somebody who goes on changing it back.
fn nobody_undoes(state: State, lease_until: Moment, now: Moment) -> bool {
    state == State::Failed && lease_until.plus_ms(UNDOING_WAITS_MS) <= now
}

/// Whether what was changed was being changed back when its worker was lost.
fn is_undoing(task: &StoredTask) -> bool {
    task.execution.as_ref().is_some_and(|execution| execution.phase == Phase::RollingBack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_task_does_not_wait_for_ever_to_be_undone() {
        let lease_until = Moment::from_micros(1_000);
        let last = lease_until.plus_ms(UNDOING_WAITS_MS);
        assert!(nobody_undoes(State::Failed, lease_until, last));
        assert!(!nobody_undoes(State::Failed, lease_until, lease_until.plus_ms(UNDOING_WAITS_MS - 1)));
        assert!(!nobody_undoes(State::Applying, lease_until, last), "that one waits to be stopped");
    }

    #[test]
    fn nobody_is_waited_for_longer_than_a_minute_after_both() {
        let (early, late) = (Moment::from_micros(1_000), Moment::from_micros(5_000_000));
        let after = |moment: Moment, ms: u64| moment.plus_ms(ms);
        for (stopped_at, lease_until) in [(early, late), (late, early), (late, late)] {
            assert!(!is_given_up(Some(stopped_at), lease_until, after(late, GIVEN_UP_AFTER_MS - 1)));
            assert!(is_given_up(Some(stopped_at), lease_until, after(late, GIVEN_UP_AFTER_MS)));
        }
        assert!(!is_given_up(None, early, after(late, 10 * GIVEN_UP_AFTER_MS)), "nobody wanted it to end");
    }
}
