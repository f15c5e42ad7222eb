//! One task, from its claim to its end.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::task::{Begin, Follows, Refusal};
use ade_domain::task::{Failed, FailureCode, Left, Output as Said, Preview};
use ade_executors::{Changed, Executor, Failure, Halt, Output, Parameters, Run};
use ade_store::database::{StoredTask, WorkKind};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Worker;
use super::hold::{Kept, Locks, PATIENCE_MS, take};
use crate::Error;
use crate::tasks::hidden;

/// How long a preview may take.
pub(crate) const PREVIEW_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a stash.
pub(super) const MOST_STASHED: u64 = 64 * 1_048_576;
/// How long the end of a run may be written again and again while the record is away.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// What a run is about, once it has begun.
pub(super) struct Begun<'a> {
    pub(super) task: &'a StoredTask,
    pub(super) attempt: u64,
    pub(super) locks: &'a Locks,
    pub(super) executor: &'a Arc<dyn Executor>,
}

impl Worker {
    pub(super) async fn one(&self, task_id: &str) -> Result<(), Error> {
        let task = self.reviews.look(task_id).await?;
        let place = task.config.place();
        let Some(executor) = self.executors.at(&place) else { return Ok(()) };
        match WorkKind::of(&task) {
            Some(WorkKind::Preview) => {
                let made = preview_of(executor, &task.config.parameters).await;
                let preview = made.unwrap_or_else(|failure| Preview::failed(failure.message));
                let preview = hidden(preview, &self.secrets);
                self.reviews.put_preview(task_id, &task, &preview).await
            }
            Some(WorkKind::Apply) => self.apply(task, executor).await,
            Some(WorkKind::RollBack) => self.undo(&task, executor).await,
            None => Ok(()),
        }
    }

    async fn apply(&self, task: StoredTask, executor: &Arc<dyn Executor>) -> Result<(), Error> {
        let (task_id, attempt) = (task.task_id.as_str(), task.next_attempt());
        let config = &task.config;
        let taken =
            take(&self.locks, &self.name, task_id, attempt, config, self.lease_ms, PATIENCE_MS).await?;
        let Some((locks, since)) = taken else {
            self.put_off(task_id).await;
            return Ok(());
        };
        let done = self.apply_held(&task, executor, &locks, since).await;
        locks.release(&self.locks).await;
        done
    }

    async fn apply_held(
        &self,
        task: &StoredTask,
        executor: &Arc<dyn Executor>,
        locks: &Locks,
        since: Instant,
    ) -> Result<(), Error> {
        // Waiting for locks takes a while. What became another meanwhile cannot be begun, and is tried again as it is then.
        let (task_id, review) = (task.task_id.as_str(), &task.task);
        if !is_exact(task) {
            tracing::error!(task_id, "what is stored is not what was approved; it is not carried out");
            return self.reviews.spoiled(task_id, review.revision, &self.name).await;
        }
        if !self.reviews.is_valid(task) {
            // The loop over what is due sends it back into review.
            self.put_off(task_id).await;
            return Ok(());
        }
        let looking = preview_of(executor, &review.config.parameters);
        let Some((again, since)) = self.while_held(locks, since, looking).await else {
            tracing::warn!(task_id, "its locks were lost before it began; trying again");
            self.put_off(task_id).await;
            return Ok(());
        };
        if let Ok(now) = &again
            && (now.fingerprint.map(|fingerprint| fingerprint.to_string()) != review.fingerprint
                // What goes wrong on the way may hide a change: whoever approved must have seen it.
                || (now.went_wrong() && !task.preview.went_wrong()))
        {
            let shown = hidden(now.clone(), &self.secrets);
            return self.reviews.go_stale(task_id, review.revision, &shown).await;
        }
        let begin =
            Begin { worker: self.name.clone(), grants: locks.grants(), lease_until: self.lease_until() };
        let task = &self.reviews.begin(task.clone(), begin).await?;
        let attempt = review.next_attempt();
        let kept = self.keep(task_id, attempt, locks, since);
        let begun = Begun { task, attempt, locks, executor };
        let output = self.output(task_id, attempt);
        let run = begun.run(output.clone(), &kept);
        let outcome = match again {
            Err(failure) => Err(Ended { failure, stash: Vec::new() }),
            Ok(_) => self.carry_out(&begun, &run, &kept).await,
        };
        self.end(&begun, &run, outcome, &kept).await
    }

    /// Saves what is needed to undo it, says so, and begins.
    /// How the task is now.
    async fn carry_out(&self, begun: &Begun<'_>, run: &Run, kept: &Kept) -> Result<StoredTask, Ended> {
        if begun.executor.changes_nothing() {
            return Ok(begun.task.clone());
        }
        let nothing = |failure| Ended { failure, stash: Vec::new() };
        let (executor, task_id) = (begun.executor, begun.task.task_id.as_str());
        let stash = executor.stash(run).await.map_err(nothing)?;
        let task = match self.say_started(begun, kept, &stash).await {
            Ok(task) => task,
            Err(failure) => {
                // Nothing comes of what was kept.
                executor.forget(task_id, begun.attempt).await;
                return Err(nothing(failure));
            }
        };
        if kept.is_lost() {
            // Whoever was stopped since then begins nothing; if nobody has taken over yet, it is said that nothing was changed.
            return Err(nothing(halted(Halt::Lost, None)));
        }
        let timeout = Duration::from_secs(begun.task.config.timeout_seconds.into());
        kept.within(timeout);
        let applied = self.while_followed(begun, &run.output, executor.apply(run, &stash)).await;
        applied.map(|()| task).map_err(|failure| Ended { failure, stash })
    }

    /// Keeps what is needed to undo it, and says that from now on something may be changed.
    async fn say_started(&self, begun: &Begun<'_>, kept: &Kept, stash: &[u8]) -> Result<StoredTask, Failure> {
        let task_id = begun.task.task_id.as_str();
        let key = self.save_stash(task_id, begun.attempt, stash).await?;
        let halt = kept.halted.now().or_else(|| kept.is_lost().then_some(Halt::Lost));
        if let Some(halt) = halt {
            return Err(halted(halt, None));
        }
        self.reviews.started(task_id, begun.attempt, key).await.map_err(|error| {
            let stopped = matches!(error, Error::Refused(Refusal::Stopped));
            Failure { halted: stopped.then_some(Halt::Stopped), ..Failure::not_now(error.to_string()) }
        })
    }

    /// Passes on what a run says while it runs, for whoever follows.
    pub(super) async fn while_followed<T>(
        &self,
        begun: &Begun<'_>,
        output: &Output,
        work: impl Future<Output = T>,
    ) -> T {
        let task_id = begun.task.task_id.as_str();
        let mut tick = tokio::time::interval(Duration::from_millis(250));
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = tick.tick() => {}
            }
            let passing = self.pass_on(task_id, begun.attempt, output);
            tokio::pin!(passing);
            tokio::select! {
                biased;
                done = &mut work => {
                    // What was taken out to be passed on would be lost if nobody waited for it.
                    passing.await;
                    return done;
                }
                () = &mut passing => {}
            }
        }
    }

    pub(super) async fn pass_on(&self, task_id: &str, attempt: u64, output: &Output) {
        let new = output.take_new();
        if new.is_empty() {
            return;
        }
        // Whoever follows misses something; all of it is in the output.
        if let Err(error) = self.record.say(task_id, attempt, self.now(), &new, None).await {
            tracing::debug!(task_id, %error, "what a task says cannot be passed on");
        }
    }

    async fn end(
        &self,
        begun: &Begun<'_>,
        run: &Run,
        outcome: Result<StoredTask, Ended>,
        kept: &Kept,
    ) -> Result<(), Error> {
        let task_id = begun.task.task_id.as_str();
        let output = self.finish_output(task_id, begun.attempt, &run.output).await;
        let Ended { failure, stash } = match outcome {
            Ok(task) => {
                return self.tell(kept, || self.reviews.complete(&task, begun.attempt, &output)).await;
            }
            Err(ended) => ended,
        };
        let failed = self.failed(begun, &failure);
        match self.tell(kept, || self.reviews.fail(task_id, begun.attempt, &failed, &output)).await? {
            Follows::RollBack => self.change_back(begun, run, &stash, kept).await,
            Follows::Over | Follows::Again => Ok(()),
        }
    }

    /// What the record is told about a failure.
    fn failed(&self, begun: &Begun<'_>, failure: &Failure) -> Failed {
        let code = match failure.halted {
            Some(Halt::TimedOut) => FailureCode::TimedOut,
            Some(Halt::Stopped) => FailureCode::Stopped,
            Some(Halt::Lost) => FailureCode::LocksLost,
            None => FailureCode::ExecutionFailed,
        };
        let undoable = begun.executor.can_roll_back(&begun.task.config.parameters);
        let left = match failure.changed {
            Changed::Nothing => Left::Nothing,
            Changed::Undone => Left::Undone,
            Changed::Something if undoable => Left::Something,
            Changed::Something => Left::Stays,
            Changed::Unknown => Left::Unknown,
        };
        Failed { code, error: self.secrets.hide(&failure.message), left, again: failure.again }
    }

    /// Says how it ended, again and again while the record is away, as long as the attempt is the present one.
    pub(super) async fn tell<T, F: Future<Output = Result<T, Error>>>(
        &self,
        kept: &Kept,
        say: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            match say().await {
                Err(Error::Record(error)) if kept.halted.now() != Some(Halt::Lost) => {
                    tracing::warn!(%error, "the end of a task cannot be written; trying again");
                    tokio::time::sleep(TELL_EVERY).await;
                }
                said => return said,
            }
        }
    }

    async fn save_stash(&self, task_id: &str, attempt: u64, stash: &[u8]) -> Result<Option<String>, Failure> {
        if stash.is_empty() {
            return Ok(None);
        }
        if stash.len() as u64 > MOST_STASHED {
            return Err(Failure::refused("what would be needed to undo it is too big to be kept"));
        }
        let (blobs, key, bytes) = (self.blobs.clone(), stash_key(task_id, attempt), stash.to_vec());
        let put = spawn_blocking(move || blobs.put(&key, &bytes).map(|()| key)).await;
        let unkept =
            |error: String| Failure::not_now(format!("what is needed to undo it cannot be kept: {error}"));
        put.map_err(|error| unkept(error.to_string()))?.map(Some).map_err(|error| unkept(error.to_string()))
    }

    pub(super) fn output(&self, task_id: &str, attempt: u64) -> Output {
        let file = self.blobs.unfinished(&format!("output-{task_id}-{attempt}"));
        Output::new(self.secrets.clone(), Some(&file))
    }

    /// For changing back, whose words are in the log alone: there is nothing to be kept, and no file that would be left over.
    pub(super) fn only_followed(&self) -> Output {
        Output::new(self.secrets.clone(), None)
    }

    pub(super) async fn finish_output(&self, task_id: &str, attempt: u64, output: &Output) -> Said {
        let finished = output.finish();
        self.pass_on(task_id, attempt, output).await;
        let (text, bytes, file) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::warn!(task_id, %error, "what a task said was not kept whole");
                return Said { text: Some(format!("(not kept: {error})")), key: None };
            }
        };
        let text = Some(text).filter(|text| !text.is_empty());
        let Some(file) = file else { return Said { text, key: None } };
        tracing::debug!(task_id, bytes, "what a task said is kept as a blob");
        let (blobs, key) = (self.blobs.clone(), format!("output/{task_id}/{attempt}"));
        let kept = spawn_blocking(move || blobs.keep(&file, &key).map(|()| key)).await;
        match kept.map_err(|error| error.to_string()).and_then(|kept| kept.map_err(|error| error.to_string()))
        {
            Ok(key) => Said { text, key: Some(key) },
            Err(error) => {
                tracing::warn!(task_id, %error, "what a task said was not kept whole");
                Said { text, key: None }
            }
        }
    }
}

/// How a run ended that was not done, and what is needed to undo it.
pub(super) struct Ended {
    failure: Failure,
    stash: Vec<u8>,
}

impl Begun<'_> {
    pub(super) fn run(&self, output: Output, kept: &Kept) -> Run {
        Run {
            task_id: self.task.task_id.clone(),
            attempt: self.attempt,
            parameters: self.task.config.parameters.clone(),
            approved: self.task.fingerprint.clone(),
            tokens: self.locks.tokens(),
            output,
            halted: kept.halted.clone(),
        }
    }
}

pub(super) fn stash_key(task_id: &str, attempt: u64) -> String {
    format!("stash/{task_id}/{attempt}")
}

/// Whether what is stored is what was approved.
pub(super) fn is_exact(task: &StoredTask) -> bool {
    task.config.digest().ok() == Some(task.digest)
}

fn halted(halt: Halt, after: Option<Duration>) -> Failure {
    Failure { halted: Some(halt), again: halt == Halt::Lost, ..Failure::refused(halt.message(after)) }
}

/// What would change now.
pub(crate) async fn preview_of(
    executor: &Arc<dyn Executor>,
    parameters: &Parameters,
) -> Result<Preview, Failure> {
    let made = tokio::time::timeout(PREVIEW_WITHIN, executor.preview(parameters)).await;
    made.unwrap_or_else(|_| {
        Err(Failure::not_now(format!("finding out took longer than {} s", PREVIEW_WITHIN.as_secs())))
    })
}
