//! What reviews are worked off by: settings and flags in one read, the requests of many tasks, a backlog, requests that wait for
//! people who left. Every list is bounded.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::people::UserId;

use super::rules::{DocumentKind, StoredDocument};
use super::sql::Arg;
use super::{Database, DatabaseError};

/// A list of ids as SQL has it, and its arguments.
fn listed(ids: &[&str]) -> (String, Vec<Arg>) {
    let places: Vec<String> = (1..=ids.len()).map(|number| format!("${number}::uuid")).collect();
    (places.join(", "), ids.iter().map(|id| (*id).into()).collect())
}

impl Database {
    /// Every setting and every flag that somebody has set.
    pub async fn settings(&self) -> Result<Vec<StoredDocument>, DatabaseError> {
        let kinds = [DocumentKind::Setting, DocumentKind::Feature];
        let args = kinds.map(|kind| kind.word().into());
        self.read(async |link| {
            let sql = "SELECT kind, document_id, revision, body::text FROM documents WHERE kind IN ($1, $2) \
                       ORDER BY kind, document_id";
            let mut found = Vec::new();
            for row in link.rows(sql, &args).await? {
                let word = row.text(0)?;
                let kind =
                    kinds.into_iter().find(|kind| kind.word() == word).unwrap_or(DocumentKind::Setting);
                let (id, revision) = (row.text(1)?.to_owned(), row.number(2)?);
                found.push(StoredDocument { kind, id, revision, body: row.json(3)? });
            }
            Ok(found)
        })
        .await
    }

    /// One policy, delegation, registered resource, setting or flag.
    pub async fn thing(&self, kind: DocumentKind, id: &str) -> Result<Option<StoredDocument>, DatabaseError> {
        let args = [kind.word().into(), id.into()];
        self.read(async |link| {
            let sql = "SELECT revision, body::text FROM documents WHERE kind = $1 AND document_id = $2";
            let rows = link.rows(sql, &args).await?;
            let thing = |row: &super::sql::Row| {
                Ok(StoredDocument { kind, id: id.to_owned(), revision: row.number(0)?, body: row.json(1)? })
            };
            rows.first().map(thing).transpose()
        })
        .await
    }

    /// The requests of some tasks, in the order of their ids.
    pub async fn requests_of(&self, task_ids: &[&str]) -> Result<Vec<Approval>, DatabaseError> {
        if task_ids.is_empty() {
            return Ok(Vec::new());
        }
        let (places, args) = listed(task_ids);
        let sql =
            format!("SELECT body::text FROM approvals WHERE task_id IN ({places}) ORDER BY approval_id");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(|row| row.json(0)).collect()).await
    }

    /// What some tasks are about: the description of each.
    pub async fn descriptions(&self, task_ids: &[&str]) -> Result<BTreeMap<String, String>, DatabaseError> {
        if task_ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (places, args) = listed(task_ids);
        let sql = format!(
            "SELECT task_id::text, body->'config'->>'description' FROM tasks WHERE task_id IN ({places})"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &args).await?;
            rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).collect()
        })
        .await
    }

    /// Whether more than so many requests wait for an answer.
    pub async fn more_pending_than(&self, most: u64) -> Result<bool, DatabaseError> {
        let sql = format!(
            "SELECT count(*)::bigint FROM \
             (SELECT 1 FROM approvals WHERE status = 'PENDING' LIMIT {}) AS pending",
            most.saturating_add(1).min(i64::MAX.unsigned_abs())
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[]).await?;
            Ok(rows.first().map_or(Ok(0), |row| row.number(0))? > most)
        })
        .await
    }

    /// Requests that wait for an answer and passed another quarter of their time since they were last raised: each with its
    /// task. Those that are as urgent as can be are left out.
    pub async fn to_be_raised(
        &self,
        now: Moment,
        limit: u32,
    ) -> Result<Vec<(String, String)>, DatabaseError> {
        let sql = format!(
            "SELECT approval_id::text, task_id::text FROM approvals \
             WHERE status = 'PENDING' AND body->>'priority' <> 'URGENT' \
             AND coalesce((body->>'raised')::bigint, 0) < 3 \
             AND 4 * ($1 - (body->>'created_at')::bigint) >= \
                 (coalesce((body->>'raised')::bigint, 0) + 1) * (micros(due_at) - (body->>'created_at')::bigint) \
             ORDER BY score DESC, approval_id LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[now.into()]).await?;
            rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).collect()
        })
        .await
    }

    /// Tasks in which an answer is waited for of somebody who left, and of whom.
    pub async fn left_behind(&self, limit: u32) -> Result<Vec<(String, UserId)>, DatabaseError> {
        let sql = format!(
            "SELECT DISTINCT a.task_id::text, a.reviewer_id FROM users u \
             JOIN approvals a ON a.reviewer_id = u.user_id \
             WHERE u.active = 0 AND a.status IN ('PENDING', 'CHANGES_REQUESTED') LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[]).await?;
            rows.iter().map(|row| Ok((row.text(0)?.to_owned(), UserId::new(row.text(1)?)))).collect()
        })
        .await
    }
}
