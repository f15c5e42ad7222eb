//! Restoring archived rows that are not in the database. Never overwrites a row, and never restores an older copy of a task that was
//! archived again later.

use ade_domain::Moment;

use super::remove::{CountChanges, approval_count_key, change_counts, lock_newest_archive, task_count_key};
use super::{Archive, ArchiveKind, ArchivedTask, put_archive};
use crate::database::batch::insert_all;
use crate::database::commit::insert_labels;
use crate::database::sql::{SqlConnection, optional_json, uuid};
use crate::database::{Operation, Result, rows};

const IF_MISSING: &str = " ON CONFLICT DO NOTHING";

pub(super) struct RestoreArchive {
    pub(super) archive: Archive,
    pub(super) items: Vec<ArchivedTask>,
    pub(super) keep_until: Moment,
}

impl Operation for RestoreArchive {
    /// How many tasks were changed.
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64> {
        let (mut restored, mut changes) = (0, CountChanges::new());
        for item in &self.items {
            let is_restored = match self.archive.kind {
                ArchiveKind::Tasks => self.restore_task(connection, item, &mut changes).await?,
                ArchiveKind::Approvals => self.restore_approvals(connection, item, &mut changes).await?,
            };
            restored += u64::from(is_restored);
        }
        change_counts(connection, &changes).await?;
        connection.execute_each(&[put_archive(&self.archive)?]).await?;
        Ok(restored)
    }
}

impl RestoreArchive {
    /// Keeps a task from being archived again. Returns whether its approval requests are archived, and their summary; `None` if
    /// the task is not in the database.
    async fn keep(
        &self,
        connection: &mut SqlConnection<'_>,
        task_id: &str,
    ) -> Result<Option<(bool, Option<String>)>> {
        let sql = "UPDATE tasks SET keep_until = $2 WHERE task_id = $1 \
                   RETURNING approvals_archived, archived_approvals";
        let row = connection.query_first(sql, &[uuid(task_id), self.keep_until.into()]).await?;
        row.map(|row| row.pair()).transpose()
    }

    async fn restore_task(
        &self,
        connection: &mut SqlConnection<'_>,
        item: &ArchivedTask,
        changes: &mut CountChanges,
    ) -> Result<bool> {
        let task_id = item.task.task_id.as_str();
        let newest = lock_newest_archive(connection, task_id).await?;
        if newest.is_some_and(|newest| newest != self.archive.archive_id) {
            return Ok(false);
        }
        // It is history: no worker, job or lease acts on it.
        let mut history = item.task.clone();
        history.restored = true;
        let mut row = rows::task(&history)?;
        row.columns.extend([
            ("restored", true.into()),
            ("approvals_archived", item.approvals_archived.into()),
            ("archived_approvals", optional_json(item.archived_approvals.as_ref())?),
            ("keep_until", self.keep_until.into()),
        ]);
        if connection.execute_each(&[row.insert(IF_MISSING)]).await? == 0 {
            self.keep(connection, task_id).await?;
            return Ok(false);
        }
        let sql = "UPDATE archived_tasks SET is_archived = 0 WHERE task_id = $1 AND is_archived = 1";
        if connection.execute(sql, &[uuid(task_id)]).await? > 0 {
            for key in item.approvals.iter().map(approval_count_key).chain([task_count_key(item)]) {
                *changes.entry(key).or_default() -= 1;
            }
        }
        let mut whole = item.task.clone();
        whole.approvals.clone_from(&item.approvals);
        whole.archived_approvals.clone_from(&item.archived_approvals);
        let labels = whole.labels();
        let current = labels.iter().map(|(kind, label)| (*kind, label.as_str()));
        let archived = item.labels.iter().map(|(kind, label)| (kind.as_str(), label.as_str()));
        let mut statements = insert_labels(task_id, current.chain(archived));
        let comments = item.comments.iter().map(rows::comment).collect::<Result<_>>()?;
        statements.extend(insert_all(comments, IF_MISSING));
        let logs = item.logs.iter().map(|line| rows::log_line(task_id, line)).collect();
        statements.extend(insert_all(logs, IF_MISSING));
        let approvals = item.approvals.iter().map(rows::approval).collect::<Result<_>>()?;
        statements.extend(insert_all(approvals, IF_MISSING));
        connection.execute_each(&statements).await?;
        Ok(true)
    }

    /// Restores the approval requests of a task that is in the database, as far as they are missing.
    async fn restore_approvals(
        &self,
        connection: &mut SqlConnection<'_>,
        item: &ArchivedTask,
        changes: &mut CountChanges,
    ) -> Result<bool> {
        let task_id = item.task.task_id.as_str();
        let Some((mut is_restored, summary)) = self.keep(connection, task_id).await? else {
            return Ok(false);
        };
        for approval in &item.approvals {
            let insert = rows::approval(approval)?.insert(IF_MISSING);
            if connection.execute_each(&[insert]).await? > 0 {
                is_restored = true;
                if summary.is_some() {
                    *changes.entry(approval_count_key(approval)).or_default() -= 1;
                }
            }
        }
        let reviewers = item.approvals.iter().map(|approval| ("person", approval.reviewer_id.as_str()));
        connection.execute_each(&insert_labels(task_id, reviewers)).await?;
        if is_restored {
            let sql = "UPDATE tasks SET approvals_archived = 0, archived_approvals = NULL WHERE task_id = $1";
            connection.execute(sql, &[uuid(task_id)]).await?;
        }
        Ok(is_restored)
    }
}
