//! Lists of tasks and approval requests, restricted to what the caller can see.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_store::database::{ApprovalFilter, StoredTask, TaskFilter, TaskSummary};
use uuid::Uuid;

use super::TaskService;
use super::commands::approval_not_found;
use crate::{Caller, Error, ObjectKind, Result};

/// Whose approval requests to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ApprovalOwner {
    /// All that the caller can see: those of the caller, and those of tasks that the caller can see.
    #[default]
    Visible,
    /// Those of the caller.
    Caller,
    User(UserId),
    Anyone,
}

fn valid_cursor(id: &str) -> Result<&str> {
    let is_id = Uuid::parse_str(id).is_ok();
    if is_id { Ok(id) } else { Err(Error::invalid("cursor", "must be the next_cursor of a previous page")) }
}

impl TaskService {
    /// The tasks that the caller can see, newest first, starting before `before`. `filter.visible_to` is ignored. A task and its
    /// requests are read one after the other, so they may differ by one change.
    pub async fn tasks(
        &self,
        filter: TaskFilter,
        before: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<StoredTask>> {
        caller.require_scope(Scope::Read)?;
        let before = before.map(valid_cursor).transpose()?;
        let visible_to = caller.user_id().filter(|_| !caller.can_see_all()).cloned();
        let filter = TaskFilter { visible_to, authored_only: caller.agent_id.is_some(), ..filter };
        let mut tasks = self.context.database.tasks(&filter, before, limit).await?;
        let ids: Vec<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
        let mut approvals: BTreeMap<String, Vec<Approval>> = BTreeMap::new();
        for approval in self.context.database.approvals_of_tasks(&ids).await? {
            approvals.entry(approval.task_id.clone()).or_default().push(approval);
        }
        for task in &mut tasks {
            task.approvals = approvals.remove(&task.task_id).unwrap_or_default();
        }
        Ok(tasks)
    }

    /// Approval requests, highest score first, starting behind `after` (score and id). Only administrators and auditors can list
    /// those of others.
    pub async fn approvals(
        &self,
        whose: &ApprovalOwner,
        status: Option<ApprovalStatus>,
        after: Option<(u32, String)>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<Approval>> {
        caller.require_scope(Scope::Read)?;
        let mut visible_to = None;
        // Agents review nothing, and do not see what their sponsors review.
        let reviewer = match (whose, caller.user_id().filter(|_| caller.agent_id.is_none())) {
            (ApprovalOwner::Visible, own) => {
                visible_to = own.filter(|_| !caller.can_see_all()).cloned();
                if caller.agent_id.is_some() {
                    return Ok(Vec::new());
                }
                None
            }
            (ApprovalOwner::Caller, None) => return Ok(Vec::new()),
            (ApprovalOwner::Caller, Some(own)) => Some(own.clone()),
            (ApprovalOwner::User(who), own) if own == Some(who) || caller.can_see_all() => Some(who.clone()),
            (ApprovalOwner::Anyone, _) if caller.can_see_all() => None,
            _ => return Err(Refusal::Forbidden.into()),
        };
        if let Some((_, id)) = &after {
            valid_cursor(id)?;
        }
        Ok(self
            .context
            .database
            .approvals(&ApprovalFilter { reviewer, visible_to, status, after }, limit)
            .await?)
    }

    /// Fails if the task exists and the caller may not see it. The id in the name of a lock may also be that of no task.
    pub async fn require_visible_if_exists(&self, task_id: &str, caller: &Caller) -> Result<()> {
        if caller.can_see_all() || Uuid::parse_str(task_id).is_err() {
            return Ok(());
        }
        match self.context.database.task(task_id).await? {
            None => Ok(()),
            found => {
                self.visible(found, Some(caller)).await?.map(drop).ok_or(Error::NotFound(ObjectKind::Task))
            }
        }
    }

    /// Summaries of the tasks of these requests, by task id. The caller must be allowed to see the requests.
    pub async fn summaries(&self, approvals: &[Approval]) -> Result<BTreeMap<String, TaskSummary>> {
        let ids: BTreeSet<&str> = approvals.iter().map(|approval| approval.task_id.as_str()).collect();
        Ok(self.context.database.task_summaries(&ids.into_iter().collect::<Vec<_>>()).await?)
    }

    /// An approval request with its task.
    pub async fn approval(&self, approval_id: &str, caller: &Caller) -> Result<(StoredTask, Approval)> {
        caller.require_scope(Scope::Read)?;
        let task_id = self.task_id_of(approval_id).await?;
        let task = self.visible_task(&task_id, Some(caller)).await.map_err(approval_not_found)?;
        let found = task.approvals.iter().find(|approval| approval.approval_id == approval_id).cloned();
        found.map(|approval| (task, approval)).ok_or(Error::NotFound(ObjectKind::Approval))
    }
}
