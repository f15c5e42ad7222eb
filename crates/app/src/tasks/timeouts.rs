//! Work that becomes due by time: overdue approval requests, expired approvals, requests of users who left, and a backlog.
//! Any number of processes may do it: each step happens once, because its commit checks the revision.

use ade_domain::task::TaskState;
use ade_store::database::StoredTask;

use super::{Target, TaskService};
use crate::retry::retry_on_conflict;
use crate::{Error, Result, new_id};

const BATCH_SIZE: u32 = 100;
/// Rounds of one run; the rest is for the next run.
const MAX_ROUNDS: usize = 100;

impl TaskService {
    /// Processes everything that is due; returns the number of changes.
    pub async fn process_timeouts(&self) -> Result<usize> {
        let mut changes = 0;
        for _ in 0..MAX_ROUNDS {
            let round = self.process_round().await?;
            changes += round;
            if round < BATCH_SIZE as usize {
                break;
            }
        }
        Ok(changes)
    }

    /// Processes one batch of each kind. Fewer changes than a batch mean that nothing is left that can be processed.
    async fn process_round(&self) -> Result<usize> {
        let mut changes = self.reassign_deactivated().await?;
        changes += self.escalate_overdue().await?;
        for task_id in
            self.context.database.tasks_with_expired_approval(self.context.now(), BATCH_SIZE).await?
        {
            let state = self.expire(&task_id).await.map(|task| task.state);
            let has_expired = matches!(state, Ok(state) if state != TaskState::Approved);
            changes += usize::from(Self::is_changed(state)? && has_expired);
        }
        Ok(changes + self.raise_waiting().await?)
    }

    async fn escalate_overdue(&self) -> Result<usize> {
        let overdue = self.context.database.overdue_approvals(self.context.now(), BATCH_SIZE).await?;
        if overdue.is_empty() {
            return Ok(0);
        }
        let (rules, mut changes) = (self.rules().await?, 0);
        for (approval_id, task_id) in overdue {
            let escalated = self
                .change(&task_id, |task, now| task.escalate(&approval_id, &rules.people, &mut new_id, now));
            changes += usize::from(Self::is_changed(escalated.await)?);
        }
        Ok(changes)
    }

    /// Reassigns open requests of users who left.
    async fn reassign_deactivated(&self) -> Result<usize> {
        let left_behind = self.context.database.approvals_of_inactive_users(BATCH_SIZE).await?;
        if left_behind.is_empty() {
            return Ok(0);
        }
        let (rules, mut changes) = (self.rules().await?, 0);
        for (task_id, leaver) in left_behind {
            let open = |task: &StoredTask| {
                let approvals = task.approvals.iter();
                approvals.filter(|approval| approval.reviewer_id == leaver && approval.is_open()).count()
            };
            let reassigned = self.change(&task_id, |task, now| rules.reassign(&leaver, task, now)).await;
            let still_open = reassigned.map(|(task, ())| open(&task));
            // If nobody can take over, a request stays until it is overdue.
            let is_reassigned = matches!(still_open, Ok(0));
            changes += usize::from(Self::is_changed(still_open)? && is_reassigned);
        }
        Ok(changes)
    }

    /// Sends a task back into review whose approval has expired.
    async fn expire(&self, task_id: &str) -> Result<StoredTask> {
        let target = Target::Internal(task_id);
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            let now = self.context.now();
            if task.state != TaskState::Approved || !task.is_approval_expired(now) {
                return Ok(Some(task));
            }
            let (revision, mut ids) = (task.revision, new_id);
            let planner = self.planner(&task.config.task_type).await?;
            let plan = planner.plan_best_effort(&task, false, &mut ids, now);
            task.expire(plan, now)?;
            self.commit_task(target, revision, task, now).await
        })
        .await
    }

    /// In a backlog, raises the priority of requests that have waited for long.
    async fn raise_waiting(&self) -> Result<usize> {
        let threshold = self.settings().await?.approval_backlog_threshold;
        if !self.context.database.has_more_pending_than(threshold).await? {
            return Ok(0);
        }
        let mut changes = 0;
        for (approval_id, task_id) in
            self.context.database.approvals_to_raise(self.context.now(), BATCH_SIZE).await?
        {
            let raised = self.change(&task_id, |task, now| task.raise_priority(&approval_id, now));
            changes += usize::from(Self::is_changed(raised.await)?);
        }
        Ok(changes)
    }

    /// A task that refuses its change must not stop the processing of the others.
    fn is_changed<T>(result: Result<T>) -> Result<bool> {
        match result {
            Ok(_) => Ok(true),
            Err(error @ Error::Database(_)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "cannot process a task that is due");
                Ok(false)
            }
        }
    }
}
