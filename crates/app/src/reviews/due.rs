//! What becomes due without anybody asking: requests that nobody answered, approvals that grew old, people who left, entries
//! without numbers. Any number of processes may do this: each step happens once, because it is guarded by what was seen.

use ade_domain::people::UserId;

use super::{Reviews, new_id};
use crate::Error;

/// How much is worked off at once.
const BATCH: u32 = 100;
/// How long a sequencer that is not heard of keeps its lease.
const LEASE_MS: u64 = 10_000;

impl Reviews {
    /// Works off what is due; how much happened.
    ///
    /// # Errors
    /// The record is away.
    pub async fn work_off(&self) -> Result<usize, Error> {
        let mut happened = 0;
        for (approval_id, task_id) in self.record.overdue(self.clock.now(), BATCH).await? {
            let done = self.change(&task_id, None, |task, facts, now| {
                let mut ids = new_id;
                task.review.escalate(&approval_id, &facts.people, &mut ids, now)?;
                Ok(())
            });
            happened += usize::from(Self::done(done.await)?);
        }
        for task_id in self.record.expired(self.clock.now(), BATCH).await? {
            let (due_after_ms, valid_for_ms) = (self.rules.due_after_ms, self.rules.valid_for_ms);
            let done = self.change(&task_id, None, |task, facts, now| {
                let approved_at = task.review.since.get(&ade_domain::task::State::Approved);
                let is_over = approved_at.is_some_and(|at| at.plus_ms(valid_for_ms) <= now);
                if task.review.state != ade_domain::task::State::Approved || !is_over {
                    return Ok(());
                }
                let (config, mut ids) = (task.review.config.clone(), new_id);
                let plan = facts.plan(&task.review, &config, &task.preview, due_after_ms, &mut ids, now);
                Ok(task.review.expire(plan, now)?)
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

    /// Moves the open requests of somebody who left, task by task.
    ///
    /// # Errors
    /// The record is away.
    pub async fn replace(&self, leaver: &UserId) -> Result<(), Error> {
        loop {
            let filter = ade_store::record::ApprovalFilter {
                reviewer: Some(leaver.clone()),
                status: Some(ade_domain::review::RequestStatus::Pending),
                after: None,
            };
            let open = self.record.approvals(&filter, BATCH).await?;
            let before = open.len();
            let mut moved = 0;
            for approval in open {
                let task = self
                    .change(&approval.task_id, None, |task, facts, now| {
                        let stands_in = facts.stands_in(leaver, &task.review, now);
                        let mut ids = new_id;
                        Ok(task.review.replace(leaver, stands_in.as_ref(), &facts.people, &mut ids, now)?)
                    })
                    .await?;
                let is_open =
                    |one: &ade_domain::review::Approval| one.reviewer_id == *leaver && one.is_open();
                moved += usize::from(!task.review.approvals.iter().any(is_open));
            }
            // Where nobody is left to take over, a request stays until it is due.
            if before < BATCH as usize || moved == 0 {
                return Ok(());
            }
        }
    }

    /// Gives numbers to what has none, unless another process does; how many.
    ///
    /// # Errors
    /// The record is away.
    pub async fn number(&self, holder: &str) -> Result<u64, Error> {
        Ok(self.record.number(holder, self.clock.now(), LEASE_MS, BATCH).await?)
    }
}
