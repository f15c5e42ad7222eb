//! Bringing back: what an archive has and the record has not. Never over what is here, and never an older copy of what was
//! taken out once more.

use ade_domain::Moment;
use ade_domain::approval::Approval;

use super::out::{Changes, count, count_of_request, count_of_task, known};
use super::{Archive, ArchiveKind, Archived, put};
use crate::database::DatabaseError;
use crate::database::commit::{approval_columns, task_columns};
use crate::database::sql::{Arg, Link, json};

/// Brings back what is not here, to stay for a while; how many tasks that concerned.
pub(super) async fn bring_back(
    link: &mut Link<'_>,
    archive: &Archive,
    items: &[Archived],
    stays_until: Moment,
) -> Result<u64, DatabaseError> {
    let (mut many, mut changes) = (0, Changes::new());
    for item in items {
        let came = match archive.kind {
            ArchiveKind::Tasks => task(link, &archive.archive_id, item, stays_until, &mut changes).await?,
            ArchiveKind::Approvals => requests(link, item, stays_until, &mut changes).await?,
        };
        many += u64::from(came);
    }
    count(link, &changes).await?;
    put(link, archive).await?;
    Ok(many)
}

/// It stays here, if it is here.
async fn stay(link: &mut Link<'_>, task_id: &str, until: Moment) -> Result<bool, DatabaseError> {
    let args = [task_id.into(), until.into()];
    Ok(link.run("UPDATE tasks SET keep_until = moment($2) WHERE task_id = $1::uuid", &args).await? > 0)
}

async fn task(
    link: &mut Link<'_>,
    archive_id: &str,
    item: &Archived,
    stays_until: Moment,
    changes: &mut Changes,
) -> Result<bool, DatabaseError> {
    let task_id = item.task.task_id.as_str();
    // One that nobody knows was taken out before this was written down.
    if known(link, task_id).await?.is_some_and(|newest| newest != archive_id) {
        return Ok(false);
    }
    let mut args = task_columns(&item.task)?;
    let remembered = item.remembered.as_ref().map(json).transpose()?;
    args.push(u64::from(item.approvals_archived).into());
    args.push(remembered.unwrap_or(Arg::MaybeText(None)));
    args.push(stays_until.into());
    let sql = "INSERT INTO tasks (task_id, state, type, author_id, revision, approval_expires_at, finished_at, body, \
               work_kind, work_queue, work_priority, ready_at, attempt, lease_until, closed_at, approvals_archived, archived_approvals, keep_until) \
               VALUES ($1::uuid, $2, $3, $4, $5, moment($6), moment($7), $8::jsonb, $9, $10, $11, moment($12), \
               $13, moment($14), moment($15), $16, $17::jsonb, moment($18)) ON CONFLICT DO NOTHING";
    if link.run(sql, &args).await? == 0 {
        stay(link, task_id, stays_until).await?;
        return Ok(false);
    }
    let sql = "UPDATE archived_tasks SET is_archived = 0 WHERE task_id = $1::uuid AND is_archived = 1";
    if link.run(sql, &[task_id.into()]).await? > 0 {
        for counted in item.approvals.iter().map(count_of_request).chain([count_of_task(item)]) {
            *changes.entry(counted).or_default() -= 1;
        }
    }
    let mut whole = item.task.clone();
    whole.approvals.clone_from(&item.approvals);
    whole.remembered.clone_from(&item.remembered);
    for (kind, mark) in whole.marks() {
        put_mark(link, task_id, kind, &mark).await?;
    }
    for (kind, mark) in &item.marks {
        put_mark(link, task_id, kind, mark).await?;
    }
    for approval in &item.approvals {
        put_approval(link, approval).await?;
    }
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
    Ok(true)
}

/// The requests of a task that is here: those that are not, whatever the task says about them.
async fn requests(
    link: &mut Link<'_>,
    item: &Archived,
    stays_until: Moment,
    changes: &mut Changes,
) -> Result<bool, DatabaseError> {
    let task_id = item.task.task_id.as_str();
    if !stay(link, task_id, stays_until).await? {
        return Ok(false);
    }
    let sql = "SELECT approvals_archived, archived_approvals::text FROM tasks WHERE task_id = $1::uuid";
    let rows = link.rows(sql, &[task_id.into()]).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let (mut came, is_counted) = (row.number(0)? > 0, row.maybe_text(1)?.is_some());
    for approval in &item.approvals {
        if put_approval(link, approval).await? {
            came = true;
            if is_counted {
                *changes.entry(count_of_request(approval)).or_default() -= 1;
            }
        }
        put_mark(link, task_id, "person", approval.reviewer_id.as_str()).await?;
    }
    if came {
        let sql =
            "UPDATE tasks SET approvals_archived = 0, archived_approvals = NULL WHERE task_id = $1::uuid";
        link.run(sql, &[task_id.into()]).await?;
    }
    Ok(came)
}

async fn put_mark(link: &mut Link<'_>, task_id: &str, kind: &str, mark: &str) -> Result<(), DatabaseError> {
    let args = [kind.into(), mark.into(), task_id.into()];
    let sql =
        "INSERT INTO task_labels (kind, label, task_id) VALUES ($1, $2, $3::uuid) ON CONFLICT DO NOTHING";
    link.run(sql, &args).await.map(drop)
}

async fn put_approval(link: &mut Link<'_>, approval: &Approval) -> Result<bool, DatabaseError> {
    let sql = "INSERT INTO approvals \
               (approval_id, task_id, reviewer_id, status, score, created_at, due_at, responded_at, revision, body) \
               VALUES ($1::uuid, $2::uuid, $3, $4, $5, moment($6), moment($7), moment($8), $9, $10::jsonb) \
               ON CONFLICT DO NOTHING";
    Ok(link.run(sql, &approval_columns(approval)?).await? > 0)
}
