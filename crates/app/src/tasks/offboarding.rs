//! Reassigns the approval requests of users who leave or lose a role, in the transaction in which they do, so that no task
//! waits for them.
//! What is too much for one transaction, or was requested meanwhile, is reassigned by a job.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::delegation::{DelegationContext, resolve};
use ade_domain::audit::Trigger;
use ade_domain::people::{People, User, UserId};
use ade_domain::task::{Refusal, ReviewSubject, Task, TaskState};
use ade_store::database::{ApprovalFilter, Commit, TaskFilter};

use super::TaskService;
use super::rules_cache::RulesSnapshot;
use crate::{Result, new_id};

/// Tasks whose requests are reassigned in one transaction.
pub const MAX_REASSIGNED_TASKS: usize = 500;

impl RulesSnapshot {
    /// Reassigns the requests of somebody who left or lost a role to the delegate, else to the manager, else to administrators.
    pub(super) fn reassign(
        &self,
        leaver: &UserId,
        people: &People,
        task: &mut Task,
        now: Moment,
    ) -> Result<(), Refusal> {
        let (delegations, risk) = (self.delegations.as_slice(), task.risk_score());
        let subject = ReviewSubject::new(&task.config, &task.scope);
        let context = DelegationContext { people, delegations, subject: &subject, risk, now };
        let delegate = resolve(leaver, &context).reviewer;
        let delegate = Some(&delegate).filter(|who| *who != leaver);
        task.reassign_unqualified(leaver, delegate, people, &mut new_id, now)
    }
}

impl TaskService {
    /// Adds the reassignment of open requests to a commit in which their reviewer leaves or loses a role, for at most
    /// [`MAX_REASSIGNED_TASKS`] tasks. Decisions of the reviewer that are not counted yet lapse. Each task is guarded by its
    /// revision: after a conflict, start again with a new commit. `after` is the user as the commit leaves it.
    pub async fn reassign_approvals_of(&self, commit: &mut Commit, after: &User) -> Result<()> {
        let leaver = &after.user_id;
        let mut task_ids = BTreeSet::new();
        for status in [ApprovalStatus::Pending, ApprovalStatus::ChangesRequested] {
            let limit = u32::try_from(MAX_REASSIGNED_TASKS - task_ids.len()).unwrap_or(0);
            let filter = ApprovalFilter {
                reviewer: Some(leaver.clone()),
                status: Some(status),
                ..ApprovalFilter::default()
            };
            let open = self.context.database.approvals(&filter, limit).await?;
            task_ids.extend(open.into_iter().map(|approval| approval.task_id));
        }
        // Tasks in review on which the user has decided already.
        let limit = u32::try_from(MAX_REASSIGNED_TASKS.saturating_sub(task_ids.len())).unwrap_or(0);
        let filter = TaskFilter {
            state: Some(TaskState::Reviewing),
            visible_to: Some(leaver.clone()),
            ..TaskFilter::default()
        };
        let in_review = self.context.database.tasks(&filter, None, limit).await?;
        task_ids.extend(in_review.into_iter().map(|task| task.task_id.clone()));
        if task_ids.is_empty() {
            return Ok(());
        }
        let rules = self.rules().await?;
        let people = rules.people.with(after.clone());
        for task_id in task_ids {
            let mut task = self.get(&task_id).await?;
            let (revision, now) = (task.revision, self.context.now());
            rules.reassign(leaver, &people, &mut task, now)?;
            if !task.transitions.is_empty() {
                let by = self.context.service("accounts", Trigger::Command("user.update".to_owned()));
                self.add_task(commit, Some(revision), &mut task, by, now).await?;
            }
        }
        Ok(())
    }
}
