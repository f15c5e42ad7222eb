//! Tasks and requests as people list them: what they may see, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_store::database::{ApprovalFilter, StoredTask, TaskFilter};
use uuid::Uuid;

use super::TaskService;
use super::use_cases::of_request;
use crate::{Caller, Error};

/// Whose requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Whose {
    /// The caller's.
    #[default]
    Own,
    /// Somebody's.
    Of(UserId),
    /// Everybody's.
    Anybody,
}

fn cursor(id: &str) -> Result<&str, Error> {
    let is_id = Uuid::parse_str(id).is_ok();
    if is_id { Ok(id) } else { Err(Error::invalid("/cursor", "must be one that a list gave")) }
}

impl TaskService {
    /// The tasks that the caller may see, the newest first, from the first one before `before`. Whom the filter says they
    /// are visible to does not count. A task and its requests are read one after the other: they may differ by a change.
    pub async fn tasks(
        &self,
        filter: TaskFilter,
        before: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<StoredTask>, Error> {
        caller.require(Scope::Read)?;
        let before = before.map(cursor).transpose()?;
        let own = caller.user.as_ref().map(|user| user.user_id.clone());
        let filter = TaskFilter { visible_to: own.filter(|_| !caller.sees_all()), ..filter };
        let mut tasks = self.record.tasks(&filter, before, limit).await?;
        let ids: Vec<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
        let mut requests: BTreeMap<String, Vec<Approval>> = BTreeMap::new();
        for approval in self.record.requests_of(&ids).await? {
            requests.entry(approval.task_id.clone()).or_default().push(approval);
        }
        for task in &mut tasks {
            task.approvals = requests.remove(&task.task_id).unwrap_or_default();
        }
        Ok(tasks)
    }

    /// Requests, the highest score first, from the first one behind `after`: its score and id. Those of others are listed for
    /// administrators and auditors alone.
    pub async fn approvals(
        &self,
        whose: &Whose,
        status: Option<ApprovalStatus>,
        after: Option<(u32, String)>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<Approval>, Error> {
        caller.require(Scope::Read)?;
        let own = caller.user.as_ref().map(|user| &user.user_id);
        let reviewer = match (whose, own) {
            (Whose::Own, None) => return Ok(Vec::new()),
            (Whose::Own, Some(own)) => Some(own.clone()),
            (Whose::Of(who), own) if own == Some(who) || caller.sees_all() => Some(who.clone()),
            (Whose::Anybody, _) if caller.sees_all() => None,
            _ => return Err(Refusal::Forbidden.into()),
        };
        if let Some((_, id)) = &after {
            cursor(id)?;
        }
        Ok(self.record.approvals(&ApprovalFilter { reviewer, status, after }, limit).await?)
    }

    /// What the tasks are about of requests that the caller was given, by their ids.
    pub async fn descriptions(&self, of: &[Approval]) -> Result<BTreeMap<String, String>, Error> {
        let ids: BTreeSet<&str> = of.iter().map(|one| one.task_id.as_str()).collect();
        Ok(self.record.descriptions(&ids.into_iter().collect::<Vec<_>>()).await?)
    }

    /// One request, with its task.
    pub async fn approval(
        &self,
        approval_id: &str,
        caller: &Caller,
    ) -> Result<(StoredTask, Approval), Error> {
        caller.require(Scope::Read)?;
        let task_id = self.task_of(approval_id).await?;
        let task = self.visible(&task_id, Some(caller)).await.map_err(of_request)?;
        let found = task.approvals.iter().find(|one| one.approval_id == approval_id).cloned();
        found.map(|approval| (task, approval)).ok_or(Error::NotFound("approval"))
    }
}
