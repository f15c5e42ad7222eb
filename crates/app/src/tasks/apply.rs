//! What workers do to tasks: begin, say how far they are, end; and what administrators do to tasks that are carried out.
//!
//! Every write names its attempt. One that is not the present one is refused, and changes nothing.

use ade_domain::Moment;
use ade_domain::task::{Begin, Follows, Refusal};
use ade_domain::task::{ExecutionResult, Failed, Output, Phase, Preview, PreviewStatus, State, TaskCommand};
use ade_store::database::{Commit, StoredTask};

use super::facts::Seen;
use super::{About, MOST_ATTEMPTS, TaskService, new_id};
use crate::{Caller, Error, Outcome};

/// What an administrator wants of a task that is, or was, carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// It is to end.
    Stop,
    /// What it left is to be undone.
    RollBack,
}

impl TaskService {
    /// A task as it is, for whoever carries it out.
    pub(crate) async fn look(&self, task_id: &str) -> Result<StoredTask, Error> {
        self.load(About::due(task_id)).await
    }

    /// A worker holds all locks: the task as it is with the attempt that begins. What was checked before is what is begun, while
    /// its approval is good; what became another since then is refused by the commit.
    pub(crate) async fn begin(&self, mut task: StoredTask, begin: Begin) -> Result<StoredTask, Error> {
        let (task_id, seen, now) = (task.task_id.clone(), task.revision, self.clock.now());
        if !self.is_valid(&task) {
            return Err(Error::Overtaken);
        }
        task.begin(begin, now)?;
        self.finish(About::due(&task_id), seen, task, now).await?.ok_or(Error::Overtaken)
    }

    /// What is stored is not what was approved: that is the end of it.
    pub(crate) async fn spoiled(&self, task_id: &str, seen: u64, by: &str) -> Result<(), Error> {
        let task = self.change(About::due(task_id), |task, now| {
            if task.revision != seen {
                return Err(Error::Overtaken);
            }
            Ok(task.spoiled(by, now)?)
        });
        task.await.map(drop)
    }

    /// The same for an agent that asked for work: it begins at once. What it is answered is kept with it.
    pub(crate) async fn begin_pulled(
        &self,
        task_id: &str,
        seen: u64,
        begin: &Begin,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        let mut task = self.load(About::due(task_id)).await?;
        let now = self.clock.now();
        if task.revision != seen || !self.is_valid(&task) {
            return Err(Error::Overtaken);
        }
        let attempt = task.begin(begin.clone(), now)?;
        task.started(attempt, None, now)?;
        let mut commit = Commit::default();
        self.add(&mut commit, Some(seen), &mut task, Some(caller), now).await?;
        if let Some(keep) = &caller.keep {
            keep.add(&mut commit, Outcome::Claim(&task), now);
        }
        if self.commit(commit).await? { Ok(task) } else { Err(Error::Overtaken) }
    }

    /// The same for changing back what somebody wants undone.
    pub(crate) async fn begin_roll_back(&self, task_id: &str, begin: &Begin) -> Result<u64, Error> {
        let task = self.change(About::due(task_id), |task, now| {
            task.begin_roll_back(begin.clone(), now)?;
            Ok(())
        });
        Ok(attempt(&task.await?))
    }

    /// From now on something may be changed.
    pub(crate) async fn started(
        &self,
        task_id: &str,
        attempt: u64,
        stash_key: Option<String>,
    ) -> Result<StoredTask, Error> {
        self.change(About::due(task_id), |task, now| Ok(task.started(attempt, stash_key.clone(), now)?)).await
    }

    /// It is done. `known` is how the task probably is.
    pub(crate) async fn complete(
        &self,
        known: &StoredTask,
        attempt: u64,
        output: &Output,
    ) -> Result<(), Error> {
        self.change_known(About::due(&known.task_id), known.clone(), |task, now| {
            Ok(task.complete(attempt, output.clone(), now)?)
        })
        .await
        .map(drop)
    }

    /// It failed; what follows.
    pub(crate) async fn fail(
        &self,
        task_id: &str,
        attempt: u64,
        failed: &Failed,
        output: &Output,
    ) -> Result<Follows, Error> {
        let task = self
            .change(About::due(task_id), |task, now| {
                task.fail(attempt, failed.clone(), output.clone(), now)?;
                Ok(())
            })
            .await?;
        Ok(follows(&task))
    }

    /// An agent says how it ended, and whether it held its locks until then.
    pub(crate) async fn report(
        &self,
        task_id: &str,
        attempt: u64,
        said: &(ExecutionResult, Option<String>),
        held: bool,
        output: &Output,
    ) -> Result<StoredTask, Error> {
        self.change(About::due(task_id), |task, now| {
            Ok(task.report(attempt, said.clone(), held, output.clone(), now)?)
        })
        .await
    }

    /// What was changed was changed back, or could not be.
    pub(crate) async fn rolled_back(
        &self,
        task_id: &str,
        attempt: u64,
        outcome: &Result<(), String>,
    ) -> Result<(), Error> {
        self.change(About::due(task_id), |task, now| Ok(task.rolled_back(attempt, outcome.clone(), now)?))
            .await
            .map(drop)
    }

    /// Takes over from a worker that is gone; the attempt from now on, and what follows.
    pub(crate) async fn recover(
        &self,
        task_id: &str,
        begin: &Begin,
        can_settle: bool,
    ) -> Result<(u64, Follows), Error> {
        let task = self
            .change(About::due(task_id), |task, now| {
                task.recover(begin.clone(), can_settle, now)?;
                Ok(())
            })
            .await?;
        let is_open = task.execution.as_ref().is_some_and(|one| one.phase != Phase::Ended);
        Ok((attempt(&task), if is_open { Follows::RollBack } else { follows(&task) }))
    }

    /// What whoever recovers has found is changed back from now on.
    pub(crate) async fn change_back(&self, task_id: &str, attempt: u64) -> Result<(), Error> {
        self.change(About::due(task_id), |task, _| Ok(task.change_back(attempt)?)).await.map(drop)
    }

    /// What would be changed is not what was approved: it goes back into review with what would be changed now.
    pub(crate) async fn go_stale(&self, task_id: &str, seen: u64, preview: &Preview) -> Result<(), Error> {
        let about = About::due(task_id);
        let mut task = self.load(about).await?;
        if task.revision != seen {
            return Ok(());
        }
        let facts = self.facts(&task.config.task_type).await?;
        let (now, mut ids) = (self.clock.now(), new_id);
        let plan = facts.plan_anyway(&task.task, preview, true, &mut ids, now);
        task.go_stale(plan, now)?;
        task.preview = preview.clone();
        // Whoever was faster has changed it, and it will be looked at again.
        self.finish(about, seen, task, now).await.map(drop)
    }

    /// The preview that a worker was asked for. One of something else than what is proposed now is dropped.
    pub(crate) async fn put_preview(
        &self,
        task_id: &str,
        of: &StoredTask,
        preview: &Preview,
    ) -> Result<(), Error> {
        let about = About::due(task_id);
        for _ in 0..MOST_ATTEMPTS {
            let mut task = self.load(about).await?;
            let same = task.digest == of.digest;
            if !same || task.preview.status != PreviewStatus::Pending {
                return Ok(());
            }
            let seen = task.revision;
            let facts = self.facts(&task.config.task_type).await?;
            let (now, mut ids) = (self.clock.now(), new_id);
            if task.state == State::Draft {
                let risk = facts.risk(&task.config, preview);
                let alone = facts.approves_alone(&task.task, Seen::of(risk.score, preview), now);
                task.assess(risk, alone, now);
                task.previewed();
            } else {
                let plan = facts.plan_anyway(&task.task, preview, false, &mut ids, now);
                task.go_stale(plan, now)?;
            }
            task.preview = preview.clone();
            if self.finish(about, seen, task, now).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Overtaken)
    }

    /// An administrator stops a task that is carried out, or wants undone what it left.
    pub async fn command(
        &self,
        task_id: &str,
        command: Command,
        reason: Option<&str>,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require_for(match command {
            Command::Stop => TaskCommand::Stop,
            Command::RollBack => TaskCommand::RollBack,
        })?;
        let actor = caller.actor();
        self.change(About::task(task_id, caller), |task, now: Moment| match command {
            Command::Stop => Ok(task.ask_stop(reason, &actor, now)?),
            Command::RollBack => Ok(task.ask_roll_back(reason, &actor, now)?),
        })
        .await
    }

    /// Whether an approval is still good.
    pub(crate) fn is_valid(&self, task: &StoredTask) -> bool {
        task.approval_ends_at.is_none_or(|ends_at| ends_at > self.clock.now())
    }
}

fn attempt(task: &StoredTask) -> u64 {
    task.execution.as_ref().map_or(0, |execution| execution.attempt)
}

/// What follows from how a task stands after an attempt failed.
fn follows(task: &StoredTask) -> Follows {
    let phase = task.execution.as_ref().map(|execution| execution.phase);
    match (task.state, phase) {
        (State::Approved, _) => Follows::Again,
        (_, Some(Phase::RollingBack)) => Follows::RollBack,
        _ => Follows::Over,
    }
}

/// Whether a write was refused because another attempt took its place, or somebody wants it to end.
pub(crate) const fn is_over(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused(Refusal::NotPresent { .. } | Refusal::NotLost | Refusal::InvalidTransition(_))
    )
}
