//! The rows of tasks, approval requests, audit entries and events.

use ade_domain::Keys;
use ade_domain::approval::Approval;
use ade_domain::audit::{AuditBody, NotCanonical};
use ade_domain::event::Event;
use ade_domain::keys::KeyPurpose;
use ade_domain::task::{Phase, TaskState};

use super::batch::TableRow;
use super::sql::{Arg, json, replace_nul_escapes, uuid};
use super::tasks::StoredTask;
use super::work::WorkKind;
use super::{Comment, DatabaseError, LogLine, Result};

/// A task without its labels and approval requests.
pub fn task(stored: &StoredTask) -> Result<TableRow> {
    let task = &stored.task;
    let closed_at = task.entered_at.get(&task.state).copied().filter(|_| task.state.is_final());
    let finished_at = closed_at.filter(|_| matches!(task.state, TaskState::Completed | TaskState::Failed));
    let work = WorkKind::of(stored);
    let running = task.execution.as_ref().filter(|execution| execution.phase != Phase::Ended);
    let approval_expires_at = task.approval_ends_at.filter(|_| task.state == TaskState::Approved);
    let columns = [
        ("task_id", uuid(&task.task_id)),
        ("state", task.state.as_str().into()),
        ("type", task.config.task_type.as_str().into()),
        ("author_id", task.author_id.as_str().into()),
        ("revision", task.revision.into()),
        ("approval_expires_at", Arg::Time(approval_expires_at)),
        ("finished_at", Arg::Time(finished_at)),
        ("body", json(stored)?),
        ("work_kind", Arg::Text(work.map(|work| work.to_string()))),
        ("work_queue", Arg::Text(work.map(|_| task.config.work_queue()))),
        ("work_priority", Arg::Int(work.map(|work| work.priority(task)))),
        ("ready_at", Arg::Time(work.map(|work| work.ready_at(task)))),
        ("attempt", task.execution.as_ref().map_or(0, |execution| execution.attempt).into()),
        ("lease_until", Arg::Time(running.map(|execution| execution.lease_until))),
        ("closed_at", Arg::Time(closed_at)),
    ];
    Ok(TableRow::new("tasks", columns))
}

#[must_use]
pub fn label(task_id: &str, kind: &str, label: &str) -> TableRow {
    let columns = [("kind", kind.into()), ("label", label.into()), ("task_id", uuid(task_id))];
    TableRow::new("task_labels", columns)
}

pub fn approval(approval: &Approval) -> Result<TableRow> {
    let columns = [
        ("approval_id", uuid(&approval.approval_id)),
        ("task_id", uuid(&approval.task_id)),
        ("reviewer_id", approval.reviewer_id.as_str().into()),
        ("status", approval.status.as_str().into()),
        ("score", u64::from(approval.score).into()),
        ("created_at", approval.created_at.into()),
        ("due_at", Arg::Time(approval.escalates_at())),
        ("raise_at", Arg::Time(approval.raises_at())),
        ("responded_at", Arg::Time(approval.responded_at)),
        ("revision", approval.revision.into()),
        ("body", json(approval)?),
    ];
    Ok(TableRow::new("approvals", columns))
}

pub(super) fn comment(comment: &Comment) -> Result<TableRow> {
    let (comment_id, task_id) = (uuid(&comment.comment_id), uuid(&comment.task_id));
    let columns = [("comment_id", comment_id), ("task_id", task_id), ("body", json(comment)?)];
    Ok(TableRow::new("comments", columns))
}

pub(super) fn log_line(task_id: &str, line: &LogLine) -> TableRow {
    let columns = [
        ("task_id", uuid(task_id)),
        ("number", line.number.into()),
        ("attempt", line.attempt.into()),
        ("at", line.at.into()),
        ("text", line.text.as_str().into()),
    ];
    TableRow::new("task_logs", columns)
}

/// What identifies an audit entry on PostgreSQL; the time selects the partition.
#[must_use]
pub fn audit_key(body: &AuditBody) -> [(&'static str, Arg); 2] {
    [("entry_id", uuid(&body.entry_id)), ("at", body.at.into())]
}

/// An audit entry with the MAC of its writer, without its number and hashes. Its text is the canonical form of its body, which is
/// authenticated and hashed. A NUL is stored as the replacement character.
pub fn audit_entry(body: &AuditBody, keys: &Keys) -> Result<TableRow> {
    let corrupt = |error: NotCanonical| DatabaseError::Corrupt(error.to_string());
    let mut text = body.canonical_form().map_err(corrupt)?;
    if text.contains("\\u0000") {
        // A replaced character in a key may change the order of keys.
        let unreadable = |error: serde_json::Error| DatabaseError::Corrupt(error.to_string());
        let stored: AuditBody = serde_json::from_str(&replace_nul_escapes(text)).map_err(unreadable)?;
        text = stored.canonical_form().map_err(corrupt)?;
    }
    let mac = keys.mac(KeyPurpose::AuditEntry, text.as_bytes());
    let [entry_id, at] = audit_key(body);
    // What is about a task is found by the task.
    let object = body.task_id.is_none().then(|| body.object_id.clone());
    let columns = [
        entry_id,
        at,
        ("actor", Arg::Text(body.who.user_id().map(ToString::to_string))),
        ("action", body.action.as_str().into()),
        ("task_id", Arg::Uuid(body.task_id.clone())),
        ("object_id", Arg::Text(object)),
        ("body", text.into()),
        ("mac", mac.into()),
    ];
    Ok(TableRow::new("audit", columns))
}

/// An event; its number is that of its audit entry.
pub fn event(event: &Event) -> Result<TableRow> {
    Ok(TableRow::new("events", [("event_id", uuid(&event.event_id)), ("body", json(event)?)]))
}
