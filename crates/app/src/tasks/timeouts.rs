//! Work that becomes due by time: overdue approval requests, expired approvals, requests of users who left, and a backlog.
//! Any number of processes may do it: each step happens once, because its commit checks the revision.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use ade_domain::Moment;
use ade_domain::audit::{Principal, Trigger};
use ade_domain::people::{ADMIN, REVIEWER, User};
use ade_domain::risk::RiskLevel;
use ade_domain::task::{Task, TaskState};
use ade_store::database::{StoredTask, TaskFilter};

use super::planner::ApprovalPlanner;
use super::{Target, TaskService};
use crate::events::wake_ups::APPROVAL_TIMEOUT_QUEUE;
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
        Ok(changes + self.relieve_backlog().await?)
    }

    /// The job that does this.
    fn timeout_job(&self) -> Principal {
        self.context.service("jobs", Trigger::Job(APPROVAL_TIMEOUT_QUEUE.to_owned()))
    }

    async fn escalate_overdue(&self) -> Result<usize> {
        let overdue = self.context.database.overdue_approvals(self.context.now(), BATCH_SIZE).await?;
        if overdue.is_empty() {
            return Ok(0);
        }
        let (rules, by, mut changes) = (self.rules().await?, self.timeout_job(), 0);
        for (approval_id, task_id) in overdue {
            let escalated = self.change(&task_id, &by, |task, now| {
                task.escalate(&approval_id, &rules.people, &mut new_id, now)
            });
            changes += usize::from(Self::is_changed(escalated.await)?);
        }
        Ok(changes)
    }

    /// Reassigns open requests of users who left, or who lost the last role for which anybody is asked.
    async fn reassign_deactivated(&self) -> Result<usize> {
        let (rules, by, mut changes) = (self.rules().await?, self.timeout_job(), 0);
        let required =
            rules.policies.iter().chain([&rules.default_policy]).flat_map(|policy| &policy.required_roles);
        let asked: BTreeSet<&str> = required.map(String::as_str).chain([REVIEWER, ADMIN]).collect();
        let may_review =
            |user: &User| user.active && user.roles.iter().any(|role| asked.contains(role.as_str()));
        let mut leavers = self.context.database.reviewers_with_open_requests().await?;
        leavers.retain(|reviewer| !rules.people.get(reviewer).is_some_and(may_review));
        if leavers.is_empty() {
            return Ok(0);
        }
        for (task_id, leaver) in self.context.database.open_requests_of(&leavers, BATCH_SIZE).await? {
            let open = |task: &StoredTask| {
                let approvals = task.approvals.iter();
                approvals.filter(|approval| approval.reviewer_id == leaver && approval.is_open()).count()
            };
            let reassign = |task: &mut StoredTask, now| rules.reassign(&leaver, &rules.people, task, now);
            let reassigned = self.change(&task_id, &by, reassign).await;
            let still_open = reassigned.map(|(task, ())| open(&task));
            // If nobody can take over, a request stays until it is overdue.
            let is_reassigned = matches!(still_open, Ok(0));
            changes += usize::from(Self::is_changed(still_open)? && is_reassigned);
        }
        Ok(changes)
    }

    /// Sends a task back into review whose approval has expired.
    async fn expire(&self, task_id: &str) -> Result<StoredTask> {
        let by = self.timeout_job();
        let target = Target::Internal(task_id, &by);
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            let now = self.context.now();
            if task.state != TaskState::Approved || !task.is_approval_expired(now) {
                return Ok(Some(task));
            }
            let (revision, mut ids) = (task.revision, new_id);
            let planner = self.review_planner(&task.config).await?;
            let plan = planner.plan_best_effort(&task, false, &mut ids, now);
            task.expire(plan, now)?;
            self.commit_task(target, revision, task, now).await
        })
        .await
    }

    /// In a backlog, approves what policies approve automatically by now, and raises the priority of requests that have waited
    /// for long.
    async fn relieve_backlog(&self) -> Result<usize> {
        let settings = self.settings().await?;
        if !self.context.database.has_more_pending_than(settings.approval_backlog_threshold).await? {
            return Ok(0);
        }
        let (by, mut changes) = (self.timeout_job(), 0);
        if settings.auto_approve_low_risk {
            // On the heap: this future is large.
            changes += Box::pin(self.reconsider_waiting()).await?;
        }
        for (approval_id, task_id) in
            self.context.database.approvals_to_raise(self.context.now(), BATCH_SIZE).await?
        {
            let raised = self.change(&task_id, &by, |task, now| task.raise_priority(&approval_id, now));
            changes += usize::from(Self::is_changed(raised.await)?);
        }
        Ok(changes)
    }

    /// Approves waiting tasks of level LOW whose policies would approve them automatically now, under the same conditions as at
    /// submission.
    async fn reconsider_waiting(&self) -> Result<usize> {
        let filter = TaskFilter { state: Some(TaskState::Reviewing), ..TaskFilter::default() };
        let (by, mut changes) = (self.timeout_job(), 0);
        // The next batch of each round, so that those in front do not keep others from being reconsidered.
        let cursor = self.reconsidered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let batch = self.context.database.tasks(&filter, cursor.as_deref(), BATCH_SIZE).await?;
        let is_last = batch.len() < BATCH_SIZE as usize;
        let next = batch.last().filter(|_| !is_last).map(|task| task.task_id.clone());
        *self.reconsidered.lock().unwrap_or_else(PoisonError::into_inner) = next;
        for waiting in batch {
            let target = Target::Internal(&waiting.task_id, &by);
            let approved = retry_on_conflict(async || {
                let mut task = self.load(target).await?;
                let planner = self.review_planner(&task.config).await?;
                let (revision, now) = (task.revision, self.context.now());
                if !approve_waiting(&planner, &mut task, now)? {
                    return Ok(Some(false));
                }
                Ok(self.commit_task(target, revision, task, now).await?.map(|_| true))
            });
            let approved = approved.await;
            changes += usize::from(matches!(approved, Ok(true)));
            Self::is_changed(approved)?;
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

/// Approves a task of level LOW if its policies would approve it automatically now.
fn approve_waiting(planner: &ApprovalPlanner, task: &mut Task, now: Moment) -> Result<bool> {
    let mut ids = new_id;
    let plan = planner.plan(task, &mut ids, now);
    Ok(plan.risk.level == RiskLevel::Low && task.approve_waiting(plan, now)?)
}
