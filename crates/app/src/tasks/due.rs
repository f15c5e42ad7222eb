//! What becomes due without anybody asking: requests that nobody answered, approvals that grew old, people who left, a backlog,
//! entries without numbers. Any number of processes may do this: each step happens once, because it is guarded by what was seen.

use ade_domain::task::State;
use ade_store::database::StoredTask;

use super::leave::Others;
use super::{About, MOST_ATTEMPTS, TaskService, new_id};
use crate::Error;

/// How much is worked off at once.
const BATCH: u32 = 100;
/// How often in one go; what is left is for the next.
const ROUNDS: usize = 100;
/// How long a sequencer that is not heard of keeps its lease.
const LEASE_MS: u64 = 10_000;

impl TaskService {
    /// Works off what is due, all of it; how much happened.
    pub async fn work_off(&self) -> Result<usize, Error> {
        let mut happened = 0;
        for _ in 0..ROUNDS {
            let some = self.work_off_some().await?;
            happened += some;
            if some < BATCH as usize {
                break;
            }
        }
        Ok(happened)
    }

    /// Some of each kind. Less than so much of one kind: there was no more, or it cannot be worked off.
    async fn work_off_some(&self) -> Result<usize, Error> {
        let mut happened = self.move_on().await?;
        happened += self.escalate().await?;
        for task_id in self.record.expired(self.clock.now(), BATCH).await? {
            let done = self.expire(&task_id).await.map(|task| task.state);
            let expired = matches!(done, Ok(state) if state != State::Approved);
            happened += usize::from(Self::done(done)? && expired);
        }
        Ok(happened + self.raise().await?)
    }

    /// Asks others where people did not answer in time.
    async fn escalate(&self) -> Result<usize, Error> {
        let overdue = self.record.overdue(self.clock.now(), BATCH).await?;
        if overdue.is_empty() {
            return Ok(0);
        }
        let (people, mut happened) = (self.record.people().await?, 0);
        for (approval_id, task_id) in overdue {
            let done = self.change(About::due(&task_id), |task, now| {
                task.escalate(&approval_id, &people, &mut new_id, now)?;
                Ok(())
            });
            happened += usize::from(Self::done(done.await)?);
        }
        Ok(happened)
    }

    /// Moves what people were asked who left.
    async fn move_on(&self) -> Result<usize, Error> {
        let left_behind = self.record.left_behind(BATCH).await?;
        if left_behind.is_empty() {
            return Ok(0);
        }
        let (others, mut happened) = (Others::load(&self.record).await?, 0);
        for (task_id, leaver) in left_behind {
            let open = |task: &StoredTask| {
                let approvals = task.approvals.iter();
                approvals.filter(|one| one.reviewer_id == leaver && one.is_open()).count()
            };
            let done = self
                .change(About::due(&task_id), |task, now| others.replace(&leaver, &mut task.task, now))
                .await
                .map(|task| open(&task));
            // Where nobody is left to take over, a request stays until it is due.
            let moved = matches!(done, Ok(0));
            happened += usize::from(Self::done(done)? && moved);
        }
        Ok(happened)
    }

    /// Asks anew about what was approved too long ago.
    async fn expire(&self, task_id: &str) -> Result<StoredTask, Error> {
        let about = About::due(task_id);
        for _ in 0..MOST_ATTEMPTS {
            let mut task = self.load(about).await?;
            let now = self.clock.now();
            let is_over = task.approval_ends_at.is_some_and(|ends_at| ends_at <= now);
            if task.state != State::Approved || !is_over {
                return Ok(task);
            }
            let (seen, mut ids) = (task.revision, new_id);
            let facts = self.facts(&task.config.task_type).await?;
            let plan = facts.plan_anyway(&task.task, &task.preview, false, &mut ids, now);
            task.expire(plan, now)?;
            if let Some(task) = self.finish(about, seen, task, now).await? {
                return Ok(task);
            }
        }
        Err(Error::Overtaken)
    }

    /// In a backlog, what waits for long becomes more urgent.
    async fn raise(&self) -> Result<usize, Error> {
        let threshold = self.settings().await?.approval_backlog_threshold;
        if !self.record.more_pending_than(threshold).await? {
            return Ok(0);
        }
        let mut happened = 0;
        for (approval_id, task_id) in self.record.to_be_raised(self.clock.now(), BATCH).await? {
            let done = self.change(About::due(&task_id), |task, now| {
                task.raise(&approval_id, now)?;
                Ok(())
            });
            happened += usize::from(Self::done(done.await)?);
        }
        Ok(happened)
    }

    /// What one task refuses does not keep the others from being worked off.
    fn done<T>(outcome: Result<T, Error>) -> Result<bool, Error> {
        match outcome {
            Ok(_) => Ok(true),
            Err(Error::Record(error)) => Err(Error::Record(error)),
            Err(error) => {
                tracing::warn!(%error, "something that is due cannot be worked off");
                Ok(false)
            }
        }
    }

    /// Gives numbers to what has none, unless another process does; how many.
    pub async fn number(&self, holder: &str) -> Result<u64, Error> {
        Ok(self.record.number(holder, self.clock.now(), LEASE_MS, BATCH).await?)
    }
}
