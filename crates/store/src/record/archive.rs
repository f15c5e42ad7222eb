//! What leaves the record when it is old, and comes back when somebody wants it: requests of tasks that ended, and whole tasks.
//!
//! Whoever archives keeps a copy first and deletes afterwards, only what is still as it was copied. What comes back does not
//! replace what is there. Audit entries and events never leave.

use ade_domain::Moment;
use ade_domain::review::Approval;
use serde::{Deserialize, Serialize};

use super::commit::{approval_columns, task_columns};
use super::sql::{Arg, Link, json};
use super::work::LogLine;
use super::{Comment, Record, RecordError, StoredTask, Work};

/// What an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveKind {
    /// Requests of tasks that ended.
    Approvals,
    /// Whole tasks, with what was said about them.
    Tasks,
}

/// An archive: a blob, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// What it is known by.
    pub archive_id: String,
    /// What it holds.
    pub kind: ArchiveKind,
    /// Where.
    pub key: String,
    /// How many lines.
    pub items: u64,
    /// Bytes of the blob.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Moment,
    /// When the oldest task in it ended.
    pub from: Moment,
    /// When the youngest did.
    pub to: Moment,
    /// When it was last brought back.
    #[serde(default)]
    pub restored_at: Option<Moment>,
}

/// A line of an archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Archived {
    /// The task; only its requests count in an archive of requests.
    pub task: StoredTask,
    /// Who was asked.
    pub approvals: Vec<Approval>,
    /// What was said about it.
    #[serde(default)]
    pub comments: Vec<Comment>,
    /// What was said while it was carried out.
    #[serde(default)]
    pub logs: Vec<LogLine>,
}

/// What changes the record.
#[derive(Debug, Clone)]
pub(super) enum Archiving {
    /// Takes out what was copied, and says where the copy is.
    Out { archive: Archive, items: Vec<(String, u64)> },
    /// Brings back what is not there.
    Back { archive: Archive, items: Vec<Archived> },
    /// Counts a day.
    Day { day: String, from: Moment, to: Moment },
}

impl Archiving {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, RecordError> {
        match self {
            Self::Out { archive, items } => {
                let mut many = 0;
                for (task_id, revision) in items {
                    many += take_out(link, archive.kind, task_id, *revision).await?;
                }
                put(link, archive).await?;
                Ok(many)
            }
            Self::Back { archive, items } => {
                let mut many = 0;
                for item in items {
                    many += bring_back(link, archive.kind, item).await?;
                }
                put(link, archive).await?;
                Ok(many)
            }
            Self::Day { day, from, to } => count_day(link, day, *from, *to).await,
        }
    }
}

async fn put(link: &mut Link<'_>, archive: &Archive) -> Result<(), RecordError> {
    let args = [archive.archive_id.as_str().into(), json(archive)?];
    let sql = "INSERT INTO archives (archive_id, body) VALUES ($1::uuid, $2::jsonb) \
               ON CONFLICT (archive_id) DO UPDATE SET body = excluded.body";
    link.run(sql, &args).await.map(drop)
}

async fn take_out(
    link: &mut Link<'_>,
    kind: ArchiveKind,
    task_id: &str,
    revision: u64,
) -> Result<u64, RecordError> {
    let args = [task_id.into(), revision.into()];
    if kind == ArchiveKind::Tasks {
        let sql = "DELETE FROM tasks WHERE task_id = $1::uuid AND revision = $2 AND closed_at IS NOT NULL";
        return link.run(sql, &args).await;
    }
    let sql = "UPDATE tasks SET requests_archived = 1 \
               WHERE task_id = $1::uuid AND revision = $2 AND closed_at IS NOT NULL AND requests_archived = 0";
    if link.run(sql, &args).await? == 0 {
        return Ok(0);
    }
    link.run("DELETE FROM approvals WHERE task_id = $1::uuid", &[task_id.into()]).await?;
    Ok(1)
}

async fn bring_back(link: &mut Link<'_>, kind: ArchiveKind, item: &Archived) -> Result<u64, RecordError> {
    let task_id = item.task.review.task_id.as_str();
    if kind == ArchiveKind::Approvals {
        let sql = "UPDATE tasks SET requests_archived = 0 WHERE task_id = $1::uuid AND requests_archived = 1";
        if link.run(sql, &[task_id.into()]).await? == 0 {
            return Ok(0);
        }
        put_approvals(link, &item.approvals).await?;
        return Ok(1);
    }
    let args = task_columns(&item.task, None)?;
    let sql = "INSERT INTO tasks (task_id, state, type, author_id, revision, approval_ends_at, ended_at, body, \
               work, place, rank, ready_at, attempt, lease_until, closed_at) \
               VALUES ($1::uuid, $2, $3, $4, $5, moment($6), moment($7), $8::jsonb, $9, $10, $11, moment($12), \
               $13, moment($14), moment($15)) ON CONFLICT DO NOTHING";
    if link.run(sql, &args).await? == 0 {
        return Ok(0);
    }
    let mut with_requests = item.task.clone();
    with_requests.review.approvals = item.approvals.clone();
    for (kind, mark) in with_requests.marks() {
        let args = [kind.into(), mark.into(), task_id.into()];
        let sql =
            "INSERT INTO task_marks (kind, mark, task_id) VALUES ($1, $2, $3::uuid) ON CONFLICT DO NOTHING";
        link.run(sql, &args).await?;
    }
    put_approvals(link, &item.approvals).await?;
    for comment in &item.comments {
        let args = [comment.comment_id.as_str().into(), task_id.into(), json(comment)?];
        let sql = "INSERT INTO comments (comment_id, task_id, body) VALUES ($1::uuid, $2::uuid, $3::jsonb) \
                   ON CONFLICT DO NOTHING";
        link.run(sql, &args).await?;
    }
    for line in &item.logs {
        let args: [Arg; 5] = [
            task_id.into(),
            line.number.into(),
            line.attempt.into(),
            line.at.into(),
            line.text.as_str().into(),
        ];
        let sql = "INSERT INTO task_logs (task_id, number, attempt, at, text) \
                   VALUES ($1::uuid, $2, $3, moment($4), $5) ON CONFLICT DO NOTHING";
        link.run(sql, &args).await?;
    }
    Ok(1)
}

async fn put_approvals(link: &mut Link<'_>, approvals: &[Approval]) -> Result<(), RecordError> {
    for approval in approvals {
        let sql = "INSERT INTO approvals \
                   (approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body) \
                   VALUES ($1::uuid, $2::uuid, $3, $4, $5, moment($6), moment($7), moment($8), $9, $10::jsonb) \
                   ON CONFLICT DO NOTHING";
        link.run(sql, &approval_columns(approval)?).await?;
    }
    Ok(())
}

async fn count_day(link: &mut Link<'_>, day: &str, from: Moment, to: Moment) -> Result<u64, RecordError> {
    let span = [from.into(), to.into()];
    let mut counted = serde_json::Map::new();
    for (name, sql) in [
        (
            "completed",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'COMPLETED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "failed",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'FAILED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "rejected",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'REJECTED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "cancelled",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'CANCELLED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
    ] {
        let rows = link.rows(sql, &span).await?;
        let many = rows.first().map_or(Ok(0), |row| row.number(0))?;
        counted.insert(name.to_owned(), many.into());
    }
    let sql = "INSERT INTO days (day, body) VALUES ($1, $2::jsonb) ON CONFLICT DO NOTHING";
    link.run(sql, &[day.into(), json(&counted)?]).await
}

impl Record {
    /// Tasks that ended before `before` and whose requests, or they themselves, are not archived yet: the oldest first.
    ///
    /// # Errors
    /// The record is away.
    pub async fn to_be_archived(
        &self,
        kind: ArchiveKind,
        before: Moment,
        limit: u32,
    ) -> Result<Vec<Archived>, RecordError> {
        let more = match kind {
            ArchiveKind::Tasks => "",
            ArchiveKind::Approvals => " AND requests_archived = 0",
        };
        let sql = format!(
            "SELECT task_id::text FROM tasks WHERE closed_at < moment($1){more} AND lease_until IS NULL \
             ORDER BY closed_at, task_id LIMIT {limit}"
        );
        let ids: Vec<String> = self
            .read(async |link| {
                let rows = link.rows(&sql, &[before.into()]).await?;
                rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
            })
            .await?;
        let mut found = Vec::new();
        for id in ids {
            let Some(mut task) = self.task(&id).await? else { continue };
            let approvals = std::mem::take(&mut task.review.approvals);
            let (comments, logs) = match kind {
                ArchiveKind::Approvals => (Vec::new(), Vec::new()),
                ArchiveKind::Tasks => (self.comments(&id).await?, self.said(&id, 0, u32::MAX).await?),
            };
            found.push(Archived { task, approvals, comments, logs });
        }
        Ok(found)
    }

    /// Takes out what was copied, as far as it is still as it was copied; how many.
    ///
    /// # Errors
    /// The record is away.
    pub async fn take_out(&self, archive: Archive, items: &[Archived]) -> Result<u64, RecordError> {
        let items =
            items.iter().map(|item| (item.task.review.task_id.clone(), item.task.review.revision)).collect();
        self.work(Work::Archive(Archiving::Out { archive, items })).await
    }

    /// Brings back what is not there; how many.
    ///
    /// # Errors
    /// The record is away.
    pub async fn bring_back(&self, archive: Archive, items: Vec<Archived>) -> Result<u64, RecordError> {
        self.work(Work::Archive(Archiving::Back { archive, items })).await
    }

    /// Counts what happened on a day, once; whether nobody had.
    ///
    /// # Errors
    /// The record is away.
    pub async fn count_day(&self, day: &str, from: Moment, to: Moment) -> Result<bool, RecordError> {
        let day = day.to_owned();
        Ok(self.work(Work::Archive(Archiving::Day { day, from, to })).await? > 0)
    }

    /// Archives, the newest first; from the first one before `before`.
    ///
    /// # Errors
    /// The record is away.
    pub async fn archives(&self, before: Option<&str>, limit: u32) -> Result<Vec<Archive>, RecordError> {
        let (sql, args): (String, Vec<Arg>) = match before {
            None => (
                format!("SELECT body::text FROM archives ORDER BY archive_id DESC LIMIT {limit}"),
                Vec::new(),
            ),
            Some(before) => (
                format!(
                    "SELECT body::text FROM archives WHERE archive_id < $1::uuid ORDER BY archive_id DESC LIMIT {limit}"
                ),
                vec![before.into()],
            ),
        };
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(|row| row.json(0)).collect()).await
    }

    /// One archive.
    ///
    /// # Errors
    /// The record is away.
    pub async fn archive(&self, archive_id: &str) -> Result<Option<Archive>, RecordError> {
        self.read(async |link| {
            let sql = "SELECT body::text FROM archives WHERE archive_id = $1::uuid";
            link.rows(sql, &[archive_id.into()]).await?.first().map(|row| row.json(0)).transpose()
        })
        .await
    }
}
