//! The alert about an audit log that is not intact: an error in the log, a metric, an audit entry with its event, and a degraded server.

use ade_domain::audit::Trigger;

use super::checkpoints::AuditLogError;
use crate::Context;
use crate::alerts::LogCheck;
use crate::events::AuditedAction;

/// Raises or clears the alert after a check. Checks that could not be made change nothing.
pub(crate) async fn report_check(context: &Context, check: LogCheck, result: Result<(), &AuditLogError>) {
    let reason = match result {
        Ok(()) => return context.alerts.clear_mismatch(check),
        Err(error @ (AuditLogError::Broken(_) | AuditLogError::InvalidSignature)) => error.to_string(),
        Err(_) => return,
    };
    if !context.alerts.set_mismatch(check, reason.clone()) {
        return;
    }
    tracing::error!(reason, "the audit log contradicts its hash chain or a checkpoint: it was tampered with");
    let action =
        AuditedAction { reason: Some(&reason), ..AuditedAction::new("audit.mismatch", &context.instance) };
    let by = match check {
        LogCheck::Full => context.service("audit", Trigger::Command("audit.verify".to_owned())),
        LogCheck::SinceCheckpoint => context.service("checkpoints", Trigger::Job("checkpoint".to_owned())),
    };
    let commit = action.commit_as(by, Vec::new(), context.now());
    if let Err(error) = context.database.commit(commit).await {
        tracing::error!(%error, "cannot audit that the audit log was tampered with");
    }
}
