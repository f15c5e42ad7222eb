//! Rows in the amounts in which projections are made of them: many tasks with their approval requests, and sessions.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::people::UserId;

use super::people::session;
use super::sql::{Row, Select, uuid};
use super::tasks::StoredTask;
use super::{Database, Result, Session};

const SELECT_SESSION: &str =
    "SELECT body, micros(last_active), micros(expires_at), micros(password_at) FROM sessions";

impl Database {
    /// Those of these tasks that exist, with their approval requests. Tasks and requests are read one after the other: the requests may be
    /// of a later revision.
    pub async fn tasks_with_approvals(&self, task_ids: &[&str]) -> Result<Vec<StoredTask>> {
        if task_ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut select =
            Select::new("SELECT body, archived_approvals, restored, micros(lease_until) FROM tasks");
        select.and_in("task_id", task_ids.iter().map(|id| uuid(id)));
        let task = |row: &Row| {
            let mut task: StoredTask = row.json(0)?;
            task.archived_approvals = row.json(1)?;
            task.restored = row.get(2)?;
            if let (Some(execution), Some(lease_until)) = (&mut task.execution, row.get(3)?) {
                execution.lease_until = lease_until;
            }
            Ok(task)
        };
        let rows = self.scan(&select.sql, &select.args).await?;
        let mut tasks = rows.iter().map(task).collect::<Result<Vec<StoredTask>>>()?;
        let mut approvals: BTreeMap<String, Vec<Approval>> = BTreeMap::new();
        for approval in self.approvals_of_tasks(task_ids).await? {
            approvals.entry(approval.task_id.clone()).or_default().push(approval);
        }
        for task in &mut tasks {
            task.approvals = approvals.remove(&task.task_id).unwrap_or_default();
        }
        Ok(tasks)
    }

    /// Ids of tasks after an id, in order.
    pub async fn task_ids(&self, after: Option<&str>, limit: u32) -> Result<Vec<String>> {
        let mut select = Select::new("SELECT task_id::text FROM tasks");
        select.and_if("task_id > ?", after.map(uuid));
        select.sql.push_str(" ORDER BY task_id");
        self.fetch_page(&select.sql, &select.args, limit, |row| row.get(0)).await
    }

    /// The tasks that were archived in an archive, or restored from it.
    pub async fn tasks_of_archive(&self, archive_id: &str) -> Result<Vec<String>> {
        let sql = "SELECT task_id::text FROM archived_tasks WHERE archive_id = $1";
        self.scan(sql, &[uuid(archive_id)]).await?.iter().map(|row| row.get(0)).collect()
    }

    pub async fn sessions_of(&self, user: &UserId) -> Result<Vec<Session>> {
        let sql = format!("{SELECT_SESSION} WHERE user_id = $1 ORDER BY session_hash");
        self.fetch_all(&sql, &[user.as_str().into()], session).await
    }

    /// Sessions that were used at `since` or later, in the order of their last use.
    pub async fn sessions_used_since(&self, since: Moment, limit: u32) -> Result<Vec<Session>> {
        let sql = format!("{SELECT_SESSION} WHERE last_active >= $1 ORDER BY last_active");
        self.fetch_page(&sql, &[since.into()], limit, session).await
    }
}
