//! Evidence: before a worker applies or rolls back a task, or an agent gets it, the audit log must prove that this is what was approved.
//!
//! Somebody who can write to the database, but does not have the secret, can change rows and cannot write audit entries.

use ade_domain::audit::{AuditBody, Principal};
use ade_domain::task::UnprovenApproval;
use ade_store::database::StoredTask;

use crate::{Context, Result, TaskService};

/// What the audit log says about a stored task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Evidence {
    Proven,
    Unproven(UnprovenApproval),
    /// This process cannot tell: the others have a newer secret.
    Unknown,
}

/// Verifies a task against its authentic audit entries, by the rules of `verify`.
pub(super) async fn verify_evidence(
    context: &Context,
    task: &StoredTask,
    verify: impl FnOnce(&StoredTask, &[AuditBody]) -> Result<(), UnprovenApproval>,
) -> Result<Evidence> {
    let entries = context.database.task_entries(&task.task_id).await?;
    let Err(reason) = verify(task, &entries.authentic) else { return Ok(Evidence::Proven) };
    if entries.has_unknown_keys && context.database.superseded_by().await?.is_some() {
        tracing::error!(
            task_id = task.task_id,
            "cannot verify the approval of a task: the secret was replaced; restart this process with the new one"
        );
        return Ok(Evidence::Unknown);
    }
    context.alerts.add_unproven();
    tracing::error!(
        task_id = task.task_id,
        %reason,
        "the audit log does not prove that this task was approved as it is stored; it is not executed"
    );
    Ok(Evidence::Unproven(reason))
}

/// Verifies that a task may be applied as it is stored. If it may not, it fails with a code that says so.
pub(super) async fn may_apply(
    context: &Context,
    tasks: &TaskService,
    task: &StoredTask,
    worker: &str,
    by: &Principal,
) -> Result<bool> {
    match verify_evidence(context, task, |task, entries| task.verify_approval(entries)).await? {
        Evidence::Proven => Ok(true),
        Evidence::Unknown => Ok(false),
        Evidence::Unproven(reason) => {
            tasks.fail_unproven(&task.task_id, task.revision, worker, &reason, by).await?;
            Ok(false)
        }
    }
}
