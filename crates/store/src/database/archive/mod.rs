//! Archives: approvals of closed tasks, and whole closed tasks, are moved to blobs when they are old, and can be restored.
//!
//! The caller writes the copy first and removes the rows afterwards; only rows that have not changed since they were copied are removed.
//! Restoring never overwrites rows. Audit entries and events are never archived.

mod remove;
mod restore;

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::task::{ArchivedApprovals, Digest};
use serde::{Deserialize, Serialize};

use super::batch::{Statement, TableRow};
use super::sql::{Row, Select, json, uuid};
use super::work::LogLine;
use super::{Comment, Commit, Database, Result, StoredTask, TaskPosition, position_args};

use remove::RemoveArchived;
pub use remove::TaskRemoval;
use restore::RestoreArchive;

/// Task ids of one statement.
const MAX_IDS: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ArchiveKind {
    /// The approval requests of closed tasks.
    Approvals,
    /// Whole tasks with their approval requests, comments and logs.
    Tasks,
}

impl ArchiveKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An archive: a blob, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    pub archive_id: String,
    pub kind: ArchiveKind,
    /// The key of the blob.
    pub key: String,
    /// How many tasks it was made for. The blob may have further lines, of tasks that had changed and were not removed.
    pub items: u64,
    /// The size of the blob.
    pub bytes: u64,
    /// The hash of the blob. The audit entry of the archive names it too.
    pub digest: Digest,
    /// The MAC of [`content`](Self::content).
    pub mac: String,
    pub created_at: Moment,
    /// When the oldest task in it was closed.
    pub from: Moment,
    /// When the newest task in it was closed.
    pub to: Moment,
    pub restored_at: Option<Moment>,
}

impl Archive {
    /// What its MAC covers.
    #[must_use]
    pub fn content(&self) -> String {
        let Self { archive_id, kind, key, digest, created_at, .. } = self;
        format!("{archive_id} {} {key} {digest} {}", kind.as_str(), created_at.micros())
    }
}

/// One line of an archive: a task with its rows in other tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArchivedTask {
    /// Only informative in an archive of approvals.
    pub task: StoredTask,
    pub approvals: Vec<Approval>,
    pub comments: Vec<Comment>,
    pub logs: Vec<LogLine>,
    /// Kind and value; see the table `task_labels`.
    pub labels: Vec<(String, String)>,
    /// Whether the approval requests are in another archive.
    pub approvals_archived: bool,
    /// The summary of the archived approval requests.
    pub archived_approvals: Option<ArchivedApprovals>,
}

/// How many tasks of an archive were not restored, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SkippedTasks {
    /// Archived again later: another archive has the current version.
    pub outdated: u64,
    /// Archived themselves: their approval requests can be restored once the tasks are.
    pub still_archived: u64,
}

fn put_archive(archive: &Archive) -> Result<Statement> {
    let row =
        TableRow::new("archives", [("archive_id", uuid(&archive.archive_id)), ("body", json(archive)?)]);
    Ok(row.insert(" ON CONFLICT (archive_id) DO UPDATE SET body = excluded.body"))
}

impl Database {
    /// Tasks that were closed before `before` and that, or whose approval requests, can be archived: the oldest first, after the last
    /// one of the page before. Tasks with work or a running attempt, and restored tasks that are still to be kept, are left out.
    pub async fn archivable_tasks(
        &self,
        kind: ArchiveKind,
        before: Moment,
        now: Moment,
        after: Option<&TaskPosition>,
        limit: u32,
    ) -> Result<Vec<TaskPosition>> {
        let of_kind = match kind {
            ArchiveKind::Tasks => "",
            ArchiveKind::Approvals => " AND approvals_archived = 0",
        };
        // `closed_at >= $3` is redundant, but tells an index where to begin.
        let sql = format!(
            "SELECT micros(closed_at), task_id::text FROM tasks WHERE closed_at < $1{of_kind} \
             AND lease_until IS NULL AND work_kind IS NULL AND (keep_until IS NULL OR keep_until <= $2) \
             AND closed_at >= $3 AND (closed_at > $3 OR task_id > $4) \
             ORDER BY closed_at, task_id"
        );
        let [from, id] = position_args(after);
        let args = [before.into(), now.into(), from, id];
        self.fetch_page(&sql, &args, limit, Row::pair).await
    }

    /// Loads a task as it is written to an archive.
    pub async fn load_for_archive(&self, kind: ArchiveKind, task_id: &str) -> Result<Option<ArchivedTask>> {
        let args = [uuid(task_id)];
        // Before the task itself: the removal compares it, and so notices approval requests that are archived or restored meanwhile.
        let sql = "SELECT approvals_archived FROM tasks WHERE task_id = $1";
        let approvals_archived = self.fetch_number(sql, &args).await? > 0;
        let sql = "SELECT kind, label FROM task_labels WHERE task_id = $1 ORDER BY kind, label";
        let labels = self.fetch_all(sql, &args, Row::pair).await?;
        let Some(mut task) = self.task(task_id).await? else { return Ok(None) };
        let approvals = std::mem::take(&mut task.approvals);
        let archived_approvals = task.archived_approvals.clone();
        let (mut comments, mut logs) = (Vec::new(), Vec::new());
        if kind == ArchiveKind::Tasks {
            comments = self.comments(task_id).await?;
            logs = self.task_log(task_id, 0, u32::MAX).await?;
        }
        Ok(Some(ArchivedTask {
            task,
            approvals,
            comments,
            logs,
            labels,
            approvals_archived,
            archived_approvals,
        }))
    }

    /// Removes tasks that were copied to an [announced](Self::announce_blob) blob, as far as they have not changed since. Returns how
    /// many. Unless that is 0, the archive is stored, and `audited` is committed with it.
    pub async fn remove_archived(
        &self,
        archive: Archive,
        items: Vec<TaskRemoval>,
        audited: Commit,
    ) -> Result<u64> {
        let audited = self.prepare(&audited)?;
        let removed = self.execute(RemoveArchived { archive, items, audited }).await;
        self.notify_appended();
        removed
    }

    /// Restores what is not in the database, and keeps it from being archived again before `keep_until`. Returns how many tasks were
    /// changed.
    pub async fn restore_archive(
        &self,
        archive: Archive,
        items: Vec<ArchivedTask>,
        keep_until: Moment,
    ) -> Result<u64> {
        self.execute(RestoreArchive { archive, items, keep_until }).await
    }

    /// Why some tasks of an archive were not restored.
    pub async fn skipped_on_restore(&self, archive: &Archive, task_ids: &[String]) -> Result<SkippedTasks> {
        let mut count = 0;
        for ids in task_ids.chunks(MAX_IDS) {
            let mut select = Select::new("SELECT count(*)::bigint FROM archived_tasks");
            match archive.kind {
                ArchiveKind::Tasks => select.and("archive_id <> ?", [uuid(&archive.archive_id)]),
                ArchiveKind::Approvals => select.and("is_archived = 1", []),
            }
            select.and_in("task_id", ids.iter().map(|id| uuid(id)));
            count += self.fetch_number(&select.sql, &select.args).await?;
        }
        Ok(match archive.kind {
            ArchiveKind::Tasks => SkippedTasks { outdated: count, still_archived: 0 },
            ArchiveKind::Approvals => SkippedTasks { outdated: 0, still_archived: count },
        })
    }

    /// Archives, the newest first; only those before the id `before`.
    pub async fn archives(&self, before: Option<&str>, limit: u32) -> Result<Vec<Archive>> {
        let mut select = Select::new("SELECT body FROM archives");
        select.and_if("archive_id < ?", before.map(uuid));
        select.sql.push_str(" ORDER BY archive_id DESC");
        self.fetch_page(&select.sql, &select.args, limit, Row::body).await
    }

    pub async fn archive(&self, archive_id: &str) -> Result<Option<Archive>> {
        let sql = "SELECT body FROM archives WHERE archive_id = $1";
        self.fetch_first(sql, &[uuid(archive_id)], Row::body).await
    }
}
