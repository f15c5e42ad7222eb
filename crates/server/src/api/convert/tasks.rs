//! Conversions of tasks, their risk, lock preview, comments and statistics.

use ade_app::TaskView;
use ade_client::wire;
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

pub(crate) fn task(view: TaskView) -> wire::Task {
    let TaskView { task, requirements, requests_archive, claimed_by, allowed } = view;
    let risk = risk(&task);
    wire::Task {
        task_id: task.task_id,
        state: task.state,
        revision: task.revision,
        digest: task.digest.to_string(),
        config: task.config,
        metadata: wire::TaskMetadata {
            author_id: task.author_id.to_string(),
            author_name: task.metadata.author_name,
            team: task.metadata.team,
            ticket_ref: task.metadata.ticket_ref,
            tags: task.metadata.tags,
            lineage: task.metadata.lineage,
            since: task.entered_at.iter().map(|(state, at)| (state.to_string(), (*at).into())).collect(),
        },
        risk,
        preview: task.preview,
        lock_preview: task.lock_preview.iter().map(lock_preview).collect(),
        requirements,
        required_count: task.required_count,
        requests_archive,
        policies: task.considered_policies,
        passed_by: task.skipped,
        auto_approved: task.auto_approved,
        override_asked: task.override_request.map(|request| wire::PendingOverride {
            by: request.by.to_string(),
            reason: request.reason,
            incident_ticket: request.incident_ticket,
            at: request.at.into(),
        }),
        reopened: task
            .reopened
            .map(|reopened| wire::Reopened { why: reopened.reason, at: reopened.at.into() }),
        forced: task.forced,
        allowed: allowed.iter().map(ToString::to_string).collect(),
        claimed_by,
        execution: task.execution.as_ref().map(execution),
        predecessor: task.predecessor,
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
