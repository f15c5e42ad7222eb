//! Conversions of tasks, their risk, lock preview, comments and statistics.

use ade_app::Caller;
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::task::{LockPreview, Task, TaskState};
use ade_store::database::{Comment, StoredTask};

use super::execution;

pub(crate) fn risk(task: &Task) -> Option<wire::Risk> {
    let risk = task.risk.as_ref()?;
    Some(wire::Risk {
        score: risk.score,
        level: risk.level,
        factors: risk.factors.clone(),
        auto_approvable: task.auto_approvable,
        assessed_at: task.assessed_at.unwrap_or_default().into(),
        assessed_by: risk.assessed_by.clone(),
    })
}

/// The commands in `allowed` depend on the reader and the time.
pub(crate) fn task(stored: &StoredTask, reader: &Caller, now: Moment) -> wire::Task {
    let (task, metadata) = (&stored.task, &stored.metadata);
    wire::Task {
        task_id: task.task_id.clone(),
        state: task.state,
        revision: task.revision,
        digest: task.digest.to_string(),
        config: task.config.clone(),
        metadata: wire::TaskMetadata {
            author_id: task.author_id.to_string(),
            author_name: metadata.author_name.clone(),
            team: metadata.team.clone(),
            ticket_ref: metadata.ticket_ref.clone(),
            tags: metadata.tags.clone(),
            lineage: metadata.lineage.clone(),
            since: task.entered_at.iter().map(|(state, at)| (state.to_string(), (*at).into())).collect(),
        },
        risk: risk(task),
        preview: stored.preview.clone(),
        lock_preview: stored.lock_preview.iter().map(lock_preview).collect(),
        requirements: task.progress(),
        required_count: task.required_count,
        requests_archive: task.archived_approvals.as_ref().map(|archived| archived.archive_id.clone()),
        policies: task.considered_policies.clone(),
        passed_by: task.skipped.clone(),
        auto_approved: task.auto_approved.clone(),
        override_asked: task.override_request.as_ref().map(|request| wire::PendingOverride {
            by: request.by.to_string(),
            reason: request.reason.clone(),
            incident_ticket: request.incident_ticket.clone(),
            at: request.at.into(),
        }),
        reopened: task
            .reopened
            .as_ref()
            .map(|reopened| wire::Reopened { why: reopened.reason.clone(), at: reopened.at.into() }),
        forced: task.forced,
        allowed: reader.allowed_commands(stored, now).iter().map(ToString::to_string).collect(),
        claimed_by: stored.claimed_by().map(str::to_owned),
        execution: task.execution.as_ref().map(execution),
        predecessor: stored.predecessor.clone(),
    }
}

pub(crate) fn lock_preview(lock: &LockPreview) -> wire::LockPreview {
    wire::LockPreview {
        lock: lock.lock.clone(),
        mode: lock.mode.into(),
        holders: lock.holders.clone(),
        queue_length: usize::try_from(lock.queue_length).unwrap_or(usize::MAX),
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        expected_wait_seconds: lock.expected_wait_seconds as f64,
        unavailable: lock.unavailable,
    }
}

pub(crate) fn task_stats(stored: &StoredTask, comments: usize) -> wire::TaskStats {
    let task = &stored.task;
    let since = |state: TaskState| task.entered_at.get(&state).copied();
    let decided = [TaskState::Approved, TaskState::Rejected].into_iter().filter_map(since).min();
    let took_ms = since(TaskState::Submitted).zip(decided).map(|(from, to)| to.ms_since(from));
    wire::TaskStats {
        task_id: task.task_id.clone(),
        #[expect(clippy::cast_precision_loss, reason = "the milliseconds of a review fit")]
        decided_after_seconds: took_ms.map(|ms| ms as f64 / 1_000.0),
        asked: task.approvals_requested(),
        answered: task.approvals_decided(),
        escalations: task.approvals_escalated() as u64,
        comments,
    }
}

pub(crate) fn comment(comment: &Comment) -> wire::Comment {
    wire::Comment {
        comment_id: comment.comment_id.clone(),
        task_id: comment.task_id.clone(),
        author_id: comment.author_id.to_string(),
        text: comment.text.clone(),
        created_at: comment.created_at.into(),
    }
}
