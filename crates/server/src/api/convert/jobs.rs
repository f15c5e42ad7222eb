//! Conversions of background jobs and archives.

use ade_app::RestoreResult;
use ade_app::jobs::JobStatus;
use ade_client::wire;
use ade_store::database::{Archive, ArchiveKind};

use super::{Convert, convert_structs, convert_values};

convert_values! {
    ArchiveKind => String: |kind| kind.as_str().to_owned();
}

convert_structs! {
    Archive => wire::Archive { archive_id, kind, key, items, bytes, digest, created_at, from, to, restored_at } without { mac };
}

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
        description: job.description.to_owned(),
        interval_seconds: job.interval_ms / 1_000,
        status: status.to_owned(),
        due_at: row.as_ref().map(|row| row.due_at.convert()),
        running_by,
        started_at: outcome.started_at.convert(),
        ended_at: outcome.ended_at.convert(),
        by: outcome.by,
        processed: outcome.processed,
        runs: outcome.runs,
        failures: outcome.failures,
        error: outcome.error,
    }
}

pub(crate) fn restore_result(restored: &RestoreResult) -> wire::RestoreResult {
    wire::RestoreResult {
        archive: restored.archive.clone().convert(),
        restored: restored.items,
        outdated: restored.left_out.outdated,
        still_archived: restored.left_out.still_archived,
    }
}
