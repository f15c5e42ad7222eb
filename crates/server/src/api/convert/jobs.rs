//! Conversions of background jobs and archives.

use ade_app::RestoreResult;
use ade_app::jobs::JobStatus;
use ade_client::wire;
use ade_store::database::Archive;

pub(crate) fn job(status: &JobStatus) -> wire::Job {
    let JobStatus { job, row } = status;
    let outcome = row.as_ref().map(|row| row.outcome.clone()).unwrap_or_default();
    let running_by = row.as_ref().and_then(|row| row.holder.clone());
    let status = match row {
        None => "never",
        Some(_) if outcome.failures > 0 => "failing",
        Some(_) if running_by.is_some() => "running",
        Some(_) => "ok",
    };
    wire::Job {
        name: job.name.to_owned(),
        about: job.description.to_owned(),
        every_seconds: job.interval_ms / 1_000,
        status: status.to_owned(),
        due_at: row.as_ref().map(|row| row.due_at.into()),
        running_by,
        started_at: outcome.started_at.map(Into::into),
        ended_at: outcome.ended_at.map(Into::into),
        by: outcome.by,
        done: outcome.processed,
        runs: outcome.runs,
        failures: outcome.failures,
        error: outcome.error,
    }
}

pub(crate) fn archive(archive: &Archive) -> wire::Archive {
    wire::Archive {
        archive_id: archive.archive_id.clone(),
        kind: archive.kind.as_str().to_owned(),
        key: archive.key.clone(),
        items: archive.items,
        bytes: archive.bytes,
        created_at: archive.created_at.into(),
        from: archive.from.into(),
        to: archive.to.into(),
        restored_at: archive.restored_at.map(Into::into),
    }
}

pub(crate) fn restore_result(restored: &RestoreResult) -> wire::RestoreResult {
    wire::RestoreResult {
        archive: archive(&restored.archive),
        restored: restored.items,
        outdated: restored.left_out.outdated,
        away: restored.left_out.still_archived,
    }
}
