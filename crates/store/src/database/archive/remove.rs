//! Removing archived rows: in one transaction with everything that must stay known about them, and never rows that have changed since
//! they were copied.

use std::collections::BTreeMap;

use ade_domain::approval::Approval;
use ade_domain::task::{ArchivedApprovals, Task};

use super::{Archive, ArchiveKind, ArchivedTask, put_archive};
use crate::database::blob_references::{mark_in_use, mark_orphaned};
use crate::database::commit::PreparedCommit;
use crate::database::sql::{Arg, SqlConnection, optional_json, uuid};
use crate::database::work::delete_claim;
use crate::database::{Operation, Result};

/// A task that is to be removed, itself or its approval requests: the version that was copied, and what remains of it.
#[derive(Debug, Clone)]
pub struct TaskRemoval {
    task_id: String,
    revision: u64,
    approvals_archived: bool,
    summary: Option<ArchivedApprovals>,
    counted: Vec<CountKey>,
    orphaned_blobs: Vec<String>,
}

/// Kind, user and state of `archived_counts`.
pub(super) type CountKey = (&'static str, String, &'static str);

pub(super) type CountChanges = BTreeMap<CountKey, i64>;

pub(super) fn task_count_key(item: &ArchivedTask) -> CountKey {
    ("task", item.task.author_id.to_string(), item.task.state.as_str())
}

pub(super) fn approval_count_key(approval: &Approval) -> CountKey {
    ("approval", approval.reviewer_id.to_string(), approval.status.as_str())
}

impl TaskRemoval {
    #[must_use]
    pub fn new(kind: ArchiveKind, archive_id: &str, item: &ArchivedTask) -> Self {
        let task = &item.task.task;
        let mut counted: Vec<CountKey> = item.approvals.iter().map(approval_count_key).collect();
        let summary = (kind == ArchiveKind::Approvals).then(|| {
            let whole = Task { approvals: item.approvals.clone(), ..task.clone() };
            whole.summarize_approvals(archive_id)
        });
        let mut orphaned_blobs = Vec::new();
        if kind == ArchiveKind::Tasks {
            counted.push(task_count_key(item));
            if task.execution.is_some() {
                // A task is not rolled back after it was archived, and the archive has its output.
                orphaned_blobs
                    .extend(["rollback_data", "output"].map(|kind| format!("{kind}/{}", task.task_id)));
            }
        }
        Self {
            task_id: task.task_id.clone(),
            revision: task.revision,
            approvals_archived: item.approvals_archived,
            summary,
            counted,
            orphaned_blobs,
        }
    }
}

pub(super) struct RemoveArchived {
    pub(super) archive: Archive,
    pub(super) items: Vec<TaskRemoval>,
    pub(super) audited: PreparedCommit,
}

impl Operation for RemoveArchived {
    /// How many tasks, or tasks with their approval requests, were removed.
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64> {
        let (mut removed, mut changes) = (0, CountChanges::new());
        for item in &self.items {
            let is_removed = match self.archive.kind {
                ArchiveKind::Approvals => remove_approvals(connection, item).await?,
                ArchiveKind::Tasks => remove_task(connection, &self.archive, item).await?,
            };
            if is_removed {
                removed += 1;
                for key in &item.counted {
                    *changes.entry(key.clone()).or_default() += 1;
                }
            }
        }
        if removed > 0 {
            mark_in_use(connection, &self.archive.key).await?;
            change_counts(connection, &changes).await?;
            let archive = put_archive(&Archive { items: removed, ..self.archive.clone() })?;
            connection.execute_each(&[archive]).await?;
            self.audited.apply(connection).await?;
        }
        Ok(removed)
    }
}

async fn remove_approvals(connection: &mut SqlConnection<'_>, item: &TaskRemoval) -> Result<bool> {
    let task_id = || uuid(&item.task_id);
    let args = [task_id(), item.revision.into(), optional_json(item.summary.as_ref())?];
    let sql = "UPDATE tasks SET approvals_archived = 1, archived_approvals = $3 WHERE task_id = $1 \
               AND revision = $2 AND closed_at IS NOT NULL AND approvals_archived = 0";
    if connection.execute(sql, &args).await? == 0 {
        return Ok(false);
    }
    connection.execute("DELETE FROM approvals WHERE task_id = $1", &[task_id()]).await?;
    Ok(true)
}

async fn remove_task(
    connection: &mut SqlConnection<'_>,
    archive: &Archive,
    item: &TaskRemoval,
) -> Result<bool> {
    let task_id = || uuid(&item.task_id);
    lock_newest_archive(connection, &item.task_id).await?;
    let args = [task_id(), item.revision.into(), item.approvals_archived.into()];
    let sql = "DELETE FROM tasks WHERE task_id = $1 AND revision = $2 AND approvals_archived = $3 \
               AND closed_at IS NOT NULL AND lease_until IS NULL AND work_kind IS NULL";
    if connection.execute(sql, &args).await? == 0 {
        return Ok(false);
    }
    connection.execute_each(&[delete_claim(&item.task_id)]).await?;
    let args = [task_id(), item.revision.into(), uuid(&archive.archive_id)];
    let sql = "INSERT INTO archived_tasks (task_id, revision, archive_id, is_archived) \
               VALUES ($1, $2, $3, 1) ON CONFLICT (task_id) DO UPDATE SET \
               revision = excluded.revision, archive_id = excluded.archive_id, is_archived = 1";
    connection.execute(sql, &args).await?;
    for key_prefix in &item.orphaned_blobs {
        connection.execute_each(&[mark_orphaned(key_prefix, archive.created_at)]).await?;
    }
    Ok(true)
}

/// The id of the archive that a task was last moved to, if there is one. Locks it until the end of the transaction against others who
/// archive or restore the same task.
pub(super) async fn lock_newest_archive(
    connection: &mut SqlConnection<'_>,
    task_id: &str,
) -> Result<Option<String>> {
    let lock =
        "UPDATE archived_tasks SET is_archived = is_archived WHERE task_id = $1 RETURNING archive_id::text";
    connection.query_first(lock, &[uuid(task_id)]).await?.map(|row| row.get(0)).transpose()
}

/// In a fixed order, so that concurrent transactions never deadlock.
pub(super) async fn change_counts(connection: &mut SqlConnection<'_>, changes: &CountChanges) -> Result<()> {
    for ((kind, user_id, state), change) in changes {
        let args = [(*kind).into(), user_id.as_str().into(), (*state).into(), Arg::Int(Some(*change))];
        let sql = "INSERT INTO archived_counts (kind, user_id, state, count) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (kind, user_id, state) DO UPDATE SET count = archived_counts.count + excluded.count";
        connection.execute(sql, &args).await?;
    }
    Ok(())
}
