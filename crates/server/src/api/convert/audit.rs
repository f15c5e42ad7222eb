//! Conversions of audit entries and daily statistics.

use ade_client::wire;
use ade_domain::audit::{AuditBody, Principal, ReviewedContent, ServiceActor};
use ade_store::DatabaseError;
use ade_store::database::{AuditRow, DailyStats};

use super::{Convert, convert_structs};

convert_structs! {
    ReviewedContent => wire::ReviewedContent { fingerprint, preview, scope, requirements };
}

impl Convert<wire::DailyOutcomes> for DailyStats {
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a review are far below 2^52")]
    fn convert(self) -> wire::DailyOutcomes {
        let Self { day, completed, failed, rejected, cancelled, reviewed, approved, backlog, .. } = self;
        let median_decision_seconds = self.median_decision_micros.map(|micros| micros as f64 / 1e6);
        wire::DailyOutcomes {
            day,
            completed,
            failed,
            rejected,
            cancelled,
            reviewed,
            approved,
            median_decision_seconds,
            backlog,
        }
    }
}

fn actor(who: Principal) -> wire::AuditActor {
    let nobody = wire::AuditActor {
        user_id: None,
        agent_id: None,
        session_id: None,
        token_id: None,
        ip: None,
        user_agent: None,
        service: None,
        instance: None,
        trigger: None,
    };
    match who {
        Principal::Caller(caller) => wire::AuditActor {
            user_id: caller.user_id.convert(),
            agent_id: caller.agent_id,
            session_id: caller.session_id,
            token_id: caller.token_id,
            ip: caller.ip,
            user_agent: caller.user_agent,
            service: caller.service,
            ..nobody
        },
        Principal::Service(ServiceActor { service, instance, trigger }) => wire::AuditActor {
            service: Some(service),
            instance: Some(instance),
            trigger: Some(trigger.to_string()),
            ..nobody
        },
    }
}

/// Fails for an unreadable entry: it must not be shown as if it were intact. Verification reports it.
pub(crate) fn audit_entry(row: &AuditRow) -> Result<wire::AuditEntry, DatabaseError> {
    let entry = row.entry().map_err(|broken| DatabaseError::Corrupt(broken.to_string()))?;
    Ok(wire::AuditEntry {
        number: Some(entry.number),
        previous_hash: Some(entry.previous_hash.to_string()),
        entry_hash: Some(entry.entry_hash.to_string()),
        ..unnumbered_audit_entry(entry.body)
    })
}

/// An entry that has no number and no hash yet.
pub(crate) fn unnumbered_audit_entry(body: AuditBody) -> wire::AuditEntry {
    wire::AuditEntry {
        number: None,
        entry_id: body.entry_id,
        at: body.at.convert(),
        who: actor(body.who),
        action: body.action,
        object_type: body.object_type,
        object_id: body.object_id,
        task_id: body.task_id,
        from: body.from.convert(),
        to: body.to.convert(),
        revision: body.revision,
        digest: body.digest.convert(),
        reviewed: body.reviewed.convert(),
        reason: body.reason,
        ticket: body.ticket,
        details: body.details,
        previous_hash: None,
        entry_hash: None,
    }
}
