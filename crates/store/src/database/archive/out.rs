//! Taking out: what was copied into an archive leaves the record, in one transaction with everything that is still to be known
//! about it. Never what has changed since it was copied.

use std::collections::BTreeMap;

use ade_domain::approval::Approval;
use ade_domain::task::ArchivedApprovals;

use super::{Archive, ArchiveKind, Archived, put};
use crate::database::DatabaseError;
use crate::database::blob_rows::{needed, unneeded};
use crate::database::sql::{Arg, Link, json};

/// A task that is about to leave, itself or its requests: as it was copied, and what is written once it has left.
#[derive(Debug, Clone)]
pub struct Leaving {
    task_id: String,
    revision: u64,
    approvals_archived: bool,
    remembered: Option<ArchivedApprovals>,
    counted: Vec<Counted>,
    unneeded: Vec<String>,
}

/// What something is counted under: the kind, whose, and in which state.
pub(super) type Counted = (&'static str, String, &'static str);

/// Numbers of what is away that change.
pub(super) type Changes = BTreeMap<Counted, i64>;

pub(super) fn count_of_task(item: &Archived) -> Counted {
    let review = &item.task.task;
    ("task", review.author_id.to_string(), review.state.word())
}

pub(super) fn count_of_request(approval: &Approval) -> Counted {
    ("approval", approval.reviewer_id.to_string(), approval.status.word())
}

impl Leaving {
    /// What is to be taken out once it is in an archive.
    #[must_use]
    pub fn of(kind: ArchiveKind, archive_id: &str, item: &Archived) -> Self {
        let review = &item.task.task;
        let mut counted: Vec<Counted> = item.approvals.iter().map(count_of_request).collect();
        let (mut remembered, mut unneeded) = (None, Vec::new());
        match kind {
            ArchiveKind::Approvals => {
                let mut review = review.clone();
                review.approvals.clone_from(&item.approvals);
                remembered = Some(review.remember(archive_id));
            }
            ArchiveKind::Tasks => {
                counted.push(count_of_task(item));
                if review.execution.is_some() {
                    // What it takes to undo it goes with it, and its output has gone into the archive.
                    unneeded = ["stash", "output"].map(|kind| format!("{kind}/{}", review.task_id)).into();
                }
            }
        }
        Self {
            task_id: review.task_id.clone(),
            revision: review.revision,
            approvals_archived: item.approvals_archived,
            remembered,
            counted,
            unneeded,
        }
    }
}

/// Takes out what is still as it was copied, and tells of the archive if that is anything; how many.
pub(super) async fn take_out(
    link: &mut Link<'_>,
    archive: &Archive,
    items: &[Leaving],
) -> Result<u64, DatabaseError> {
    let (mut many, mut changes) = (0, Changes::new());
    for item in items {
        if leave(link, archive, item).await? {
            many += 1;
            for counted in &item.counted {
                *changes.entry(counted.clone()).or_default() += 1;
            }
        }
    }
    if many > 0 {
        needed(link, &archive.key).await?;
        count(link, &changes).await?;
        put(link, &Archive { items: many, ..archive.clone() }).await?;
    }
    Ok(many)
}

async fn leave(link: &mut Link<'_>, archive: &Archive, item: &Leaving) -> Result<bool, DatabaseError> {
    let (id, revision) = (item.task_id.as_str(), item.revision);
    if archive.kind == ArchiveKind::Approvals {
        let remembered = item.remembered.as_ref().map(json).transpose()?;
        let args = [id.into(), revision.into(), remembered.unwrap_or(Arg::MaybeText(None))];
        let sql = "UPDATE tasks SET approvals_archived = 1, archived_approvals = $3::jsonb WHERE task_id = $1::uuid \
                   AND revision = $2 AND closed_at IS NOT NULL AND approvals_archived = 0";
        if link.run(sql, &args).await? == 0 {
            return Ok(false);
        }
        link.run("DELETE FROM approvals WHERE task_id = $1::uuid", &[id.into()]).await?;
        return Ok(true);
    }
    known(link, id).await?;
    let args = [id.into(), revision.into(), u64::from(item.approvals_archived).into()];
    let sql = "DELETE FROM tasks WHERE task_id = $1::uuid AND revision = $2 AND approvals_archived = $3 \
               AND closed_at IS NOT NULL AND lease_until IS NULL AND work_kind IS NULL";
    if link.run(sql, &args).await? == 0 {
        return Ok(false);
    }
    let args = [id.into(), revision.into(), archive.archive_id.as_str().into()];
    let sql = "INSERT INTO archived_tasks (task_id, revision, archive_id, is_archived) \
               VALUES ($1::uuid, $2, $3::uuid, 1) ON CONFLICT (task_id) DO UPDATE SET \
               revision = excluded.revision, archive_id = excluded.archive_id, is_archived = 1";
    link.run(sql, &args).await?;
    for within in &item.unneeded {
        unneeded(link, within, archive.created_at).await?;
    }
    Ok(true)
}

/// The archive that a task was taken out into at last, if ever. Nobody takes it out or brings it back meanwhile: whoever does
/// either comes here first.
pub(super) async fn known(link: &mut Link<'_>, task_id: &str) -> Result<Option<String>, DatabaseError> {
    let args = [task_id.into()];
    link.run("UPDATE archived_tasks SET is_archived = is_archived WHERE task_id = $1::uuid", &args).await?;
    let sql = "SELECT archive_id::text FROM archived_tasks WHERE task_id = $1::uuid";
    let rows = link.rows(sql, &args).await?;
    rows.first().map(|row| row.text(0).map(str::to_owned)).transpose()
}

/// In order, so that two at once never wait for each other.
pub(super) async fn count(link: &mut Link<'_>, changes: &Changes) -> Result<(), DatabaseError> {
    for ((kind, user_id, state), many) in changes {
        let args = [(*kind).into(), user_id.as_str().into(), (*state).into(), Arg::Int(*many)];
        let sql = "INSERT INTO archived_counts (kind, user_id, state, count) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (kind, user_id, state) DO UPDATE SET count = archived_counts.count + excluded.count";
        link.run(sql, &args).await?;
    }
    Ok(())
}
