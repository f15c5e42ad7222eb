//! Conversions of audit entries and daily statistics.

use ade_client::wire;
use ade_domain::audit::AuditActor;
use ade_store::DatabaseError;
use ade_store::database::{AuditRow, DailyStats};

use super::{Convert, convert_structs};

convert_structs! {
    AuditActor => wire::AuditActor { user_id, agent_id, session_id, token_id, ip, user_agent, service };
    DailyStats => wire::DailyOutcomes { day, completed, failed, rejected, cancelled };
}

/// Fails for an unreadable entry: it must not be shown as if it were intact. Verification reports it.
pub(crate) fn audit_entry(row: &AuditRow) -> Result<wire::AuditEntry, DatabaseError> {
    let entry = row.entry().map_err(|broken| DatabaseError::Corrupt(broken.to_string()))?;
    let body = entry.body;
    Ok(wire::AuditEntry {
        number: entry.number,
        entry_id: body.entry_id,
        at: body.at.convert(),
        who: body.who.convert(),
        action: body.action,
        object_type: body.object_type,
        object_id: body.object_id,
        task_id: body.task_id,
        from: body.from.convert(),
        to: body.to.convert(),
        revision: body.revision,
        digest: body.digest.convert(),
        reason: body.reason,
        ticket: body.ticket,
        details: body.details,
        previous_hash: entry.previous_hash.to_string(),
        entry_hash: entry.entry_hash.to_string(),
    })
}
