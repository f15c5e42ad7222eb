//! Reassigns the approval requests of users who leave, in the transaction in which they leave, so that no task waits for them.
//! What is too much for one transaction, or was requested meanwhile, is reassigned by a job.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::delegation::{DelegationContext, resolve};
use ade_domain::people::UserId;
use ade_domain::task::{Refusal, Task};
use ade_store::database::{ApprovalFilter, Commit};

use super::rules_cache::RulesSnapshot;
use super::{Target, TaskService};
use crate::{Result, new_id};

/// Tasks whose requests are reassigned in one transaction.
pub const MAX_REASSIGNED_TASKS: usize = 500;

impl RulesSnapshot {
    /// Reassigns the requests of a leaver to the delegate, else to the manager, else to administrators.
    pub(super) fn reassign(&self, leaver: &UserId, task: &mut Task, now: Moment) -> Result<(), Refusal> {
        let (people, delegations, risk) = (&self.people, self.delegations.as_slice(), task.risk_score());
        let context = DelegationContext { people, delegations, config: &task.config, risk, now };
        let delegate = resolve(leaver, &context).reviewer;
        let delegate = Some(&delegate).filter(|who| *who != leaver);
        task.reassign_leaver(leaver, delegate, people, &mut new_id, now)
    }
}

impl TaskService {
    /// Adds the reassignment of a leaver's open requests to a commit, for at most [`MAX_REASSIGNED_TASKS`] tasks. Each is guarded
    /// by its revision: after a conflict, start again with a new commit.
    pub async fn reassign_approvals_of(&self, commit: &mut Commit, leaver: &UserId) -> Result<()> {
        let mut task_ids = BTreeSet::new();
        for status in [ApprovalStatus::Pending, ApprovalStatus::ChangesRequested] {
            let limit = u32::try_from(MAX_REASSIGNED_TASKS - task_ids.len()).unwrap_or(0);
            let filter = ApprovalFilter { reviewer: Some(leaver.clone()), status: Some(status), after: None };
            let open = self.context.database.approvals(&filter, limit).await?;
            task_ids.extend(open.into_iter().map(|approval| approval.task_id));
        }
        if task_ids.is_empty() {
            return Ok(());
        }
        let rules = self.rules().await?;
        for task_id in task_ids {
            let mut task = self.load(Target::Internal(&task_id)).await?;
            let (revision, now) = (task.revision, self.context.now());
            rules.reassign(leaver, &mut task, now)?;
            if !task.transitions.is_empty() {
                self.add_task(commit, Some(revision), &mut task, None, now).await?;
            }
        }
        Ok(())
    }
}
