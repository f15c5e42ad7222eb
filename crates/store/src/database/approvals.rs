//! Approval requests: by task, by reviewer, overdue, due for a higher priority, and those of inactive users. Every list is bounded.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::people::UserId;
use ade_domain::risk::RiskLevel;
use ade_domain::task::{Lineage, Task};
use serde::Deserialize;

use super::sql::{Arg, Row, Select, uuid};
use super::{Database, Result};

#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    pub reviewer: Option<UserId>,
    /// Only requests of tasks that this person takes part in.
    pub visible_to: Option<UserId>,
    pub status: Option<ApprovalStatus>,
    /// Score and id of the last request of the page before.
    pub after: Option<(u32, String)>,
}

/// What a list of approval requests shows of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSummary {
    pub description: String,
    pub author_name: String,
    /// The agent that proposed it.
    pub agent_id: Option<String>,
    /// Score and level.
    pub risk: Option<(u8, RiskLevel)>,
}

impl TaskSummary {
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self {
            description: task.config.description.clone(),
            author_name: task.metadata.author_name.clone(),
            agent_id: task.metadata.lineage.agent_id.clone(),
            risk: task.risk.as_ref().map(|risk| (risk.score, risk.level)),
        }
    }
}

impl Database {
    /// Approval requests, the highest score first.
    pub async fn approvals(&self, filter: &ApprovalFilter, limit: u32) -> Result<Vec<Approval>> {
        let mut select = Select::new("SELECT body FROM approvals");
        select.and_if("reviewer_id = ?", filter.reviewer.as_ref().map(UserId::as_str));
        let visible = "task_id IN (SELECT task_id FROM task_labels WHERE kind = 'person' AND label = ?)";
        select.and_if(visible, filter.visible_to.as_ref().map(UserId::as_str));
        select.and_if("status = ?", filter.status.map(|status| status.as_str()));
        if let Some((score, id)) = &filter.after {
            let score = Arg::from(u64::from(*score));
            // The first condition is redundant, but tells an index where to begin.
            let condition = "score <= ? AND (score < ? OR approval_id > ?)";
            select.and(condition, [score.clone(), score, uuid(id)]);
        }
        select.sql.push_str(" ORDER BY score DESC, approval_id");
        self.fetch_page(&select.sql, &select.args, limit, Row::body).await
    }

    /// The approval requests of some tasks, by id.
    pub async fn approvals_of_tasks(&self, task_ids: &[&str]) -> Result<Vec<Approval>> {
        let mut select = Select::new("SELECT body FROM approvals");
        select.and_in("task_id", task_ids.iter().map(|id| uuid(id)));
        select.sql.push_str(" ORDER BY approval_id");
        self.fetch_all(&select.sql, &select.args, Row::body).await
    }

    /// Summaries of some tasks, by task id. Their previews, which can be long, are not read.
    pub async fn task_summaries(&self, task_ids: &[&str]) -> Result<BTreeMap<String, TaskSummary>> {
        #[derive(Deserialize)]
        struct StoredMetadata {
            author_name: String,
            lineage: Lineage,
        }
        #[derive(Deserialize)]
        struct StoredRisk {
            score: u8,
            level: RiskLevel,
        }
        let mut select = Select::new(
            "SELECT task_id::text, body::jsonb->'config'->>'description', body::jsonb->>'metadata', \
             body::jsonb->>'risk' FROM tasks",
        );
        select.and_in("task_id", task_ids.iter().map(|id| uuid(id)));
        let read = |row: &Row| {
            let (StoredMetadata { author_name, lineage }, risk) =
                (row.json(2)?, row.json::<Option<StoredRisk>>(3)?);
            let risk = risk.map(|risk| (risk.score, risk.level));
            let summary =
                TaskSummary { description: row.get(1)?, author_name, agent_id: lineage.agent_id, risk };
            Ok((row.get(0)?, summary))
        };
        self.fetch_all(&select.sql, &select.args, read).await
    }

    /// Whether more than `limit` approval requests are pending. Counts no further than that.
    pub async fn has_more_pending_than(&self, limit: u64) -> Result<bool> {
        let counted = limit.saturating_add(1).min(i64::MAX.unsigned_abs());
        let sql = format!(
            "SELECT count(*)::bigint FROM (SELECT 1 FROM approvals WHERE status = 'PENDING' LIMIT {counted}) AS pending"
        );
        Ok(self.fetch_number(&sql, &[]).await? > limit)
    }

    /// Pending approval requests that are past their due time, the longest overdue first: ids of request and task.
    pub async fn overdue_approvals(&self, now: Moment, limit: u32) -> Result<Vec<(String, String)>> {
        let sql = "SELECT approval_id::text, task_id::text FROM approvals \
                   WHERE status = 'PENDING' AND due_at <= $1 ORDER BY due_at";
        self.fetch_page(sql, &[now.into()], limit, Row::pair).await
    }

    /// Pending approval requests whose priority is to be raised, because another quarter of their time has passed: ids of request
    /// and task.
    pub async fn approvals_to_raise(&self, now: Moment, limit: u32) -> Result<Vec<(String, String)>> {
        let sql =
            "SELECT approval_id::text, task_id::text FROM approvals WHERE raise_at <= $1 ORDER BY raise_at";
        self.fetch_page(sql, &[now.into()], limit, Row::pair).await
    }

    /// Everybody whom somebody waits for.
    pub async fn reviewers_with_open_requests(&self) -> Result<Vec<UserId>> {
        // From one reviewer to the next through the index: there are far more requests than reviewers.
        let sql = "WITH RECURSIVE known (id) AS (SELECT min(reviewer_id) FROM approvals \
                   UNION ALL SELECT (SELECT min(reviewer_id) FROM approvals WHERE reviewer_id > known.id) FROM known \
                   WHERE known.id IS NOT NULL) \
                   SELECT id FROM known WHERE EXISTS (SELECT 1 FROM approvals WHERE reviewer_id = id AND status = 'PENDING') \
                   OR EXISTS (SELECT 1 FROM approvals WHERE reviewer_id = id AND status = 'CHANGES_REQUESTED') ORDER BY id";
        self.fetch_all(sql, &[], |row: &Row| Ok(UserId::new(row.get::<String>(0)?))).await
    }

    /// Tasks that wait for a decision of one of these reviewers, and that reviewer.
    pub async fn open_requests_of(&self, reviewers: &[UserId], limit: u32) -> Result<Vec<(String, UserId)>> {
        let places: Vec<String> = (1..=reviewers.len()).map(|number| format!("${number}")).collect();
        let sql = format!(
            "SELECT DISTINCT task_id::text, reviewer_id FROM approvals \
             WHERE status IN ('PENDING', 'CHANGES_REQUESTED') AND reviewer_id IN ({})",
            places.join(", ")
        );
        let args: Vec<_> = reviewers.iter().map(|reviewer| reviewer.as_str().into()).collect();
        let task_and_user = |row: &Row| {
            let (task_id, user_id) = row.pair::<_, String>()?;
            Ok((task_id, UserId::new(user_id)))
        };
        self.fetch_page(&sql, &args, limit, task_and_user).await
    }
}
