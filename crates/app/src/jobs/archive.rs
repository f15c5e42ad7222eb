//! Archives: approval requests and tasks that ended long ago move from the database into compressed NDJSON files, and an
//! administrator can restore them.
//!
//! The file is written and synced before anything is deleted, and nothing is deleted that changed meanwhile. Blobs that are no
//! longer needed (rollback data of archived tasks, leftovers of crashes) are removed later.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::audit::Trigger;
use ade_domain::keys::{KeyPurpose, MacCheck};
use ade_domain::people::ADMIN;
use ade_domain::permission::Scope;
use ade_domain::task::Digest;
use ade_store::database::{Archive, ArchiveKind, ArchivedTask, Commit, StoredTask, TaskRemoval};
use ade_store::{BlobError, Blobs};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, json};
use tokio::time::Instant;

use super::{DAY_MS, Jobs, days_before};
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{Caller, Context, Error, ObjectKind, Outcome, RestoreResult, Result, new_id};

/// Each kind, with the days after the end of a task when it is archived.
const KINDS: [(ArchiveKind, u64); 2] = [(ArchiveKind::Tasks, 90), (ArchiveKind::Approvals, 30)];
/// Days before restored items are archived again.
const RESTORED_DAYS: u64 = 30;
/// Days before an unneeded blob is removed. No execution takes longer than one day.
const BLOB_GRACE_DAYS: u64 = 2;
/// Tasks of one archive.
const MAX_ITEMS: u32 = 200;
/// Uncompressed bytes of one archive; it ends with the task that exceeds them.
const MAX_BYTES: usize = 16 * 1_048_576;
/// After this time a round starts nothing new. It must be far below the timeout of a job.
const ROUND_TIMEOUT: Duration = Duration::from_secs(40);
const BLOB_BATCH_SIZE: u32 = 500;
/// Limits of an archive that is read back, compressed and uncompressed.
const MAX_PACKED_BYTES: u64 = 512 * 1_048_576;
const MAX_UNPACKED_BYTES: u64 = 4 * MAX_PACKED_BYTES;
/// Key prefix of the outputs of archived tasks.
const OUTPUT_PREFIX: &str = "archive/output/";

/// The action of the audit entry of a new archive, and where its details name the hash.
const ARCHIVED: &str = "archive.create";
const DIGEST: &str = "digest";

/// Creates archives for the job, and restores them for administrators.
#[derive(Debug, Clone)]
pub struct ArchiveService {
    pub context: Context,
}

struct Round {
    deadline: Instant,
    archived: u64,
    /// The first failure; the round goes on with other tasks.
    failed: Option<Error>,
}

impl Round {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl ArchiveService {
    /// Archives what is old enough, for one round; returns the number of tasks.
    pub async fn archive_old(&self) -> Result<u64> {
        let mut round = Round { deadline: Instant::now() + ROUND_TIMEOUT, archived: 0, failed: None };
        for (kind, days) in KINDS {
            self.archive_kind(kind, days, &mut round).await?;
        }
        self.remove_unneeded_blobs(round.deadline).await?;
        round.failed.map_or(Ok(round.archived), Err)
    }

    /// Archives one closed task before its time.
    pub async fn archive_task(&self, task: &StoredTask) -> Result<()> {
        let closed_at = task.entered_at.get(&task.state).copied().unwrap_or_else(|| self.context.now());
        let mut round = Round { deadline: Instant::now() + ROUND_TIMEOUT, archived: 0, failed: None };
        self.write_archive(ArchiveKind::Tasks, &[(closed_at, task.task_id.clone())], &mut round).await?;
        match round.failed {
            Some(error) => Err(error),
            None if round.archived == 0 => Err(Error::Conflict),
            None => Ok(()),
        }
    }

    /// Whether there is enough left for another round at once.
    pub async fn is_behind(&self) -> Result<bool> {
        let now = self.context.now();
        for (kind, days) in KINDS {
            let (database, before) = (&self.context.database, days_before(now, days));
            let page = database.archivable_tasks(kind, before, now, None, MAX_ITEMS).await?;
            if page.len() == MAX_ITEMS as usize {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn archive_kind(&self, kind: ArchiveKind, days: u64, round: &mut Round) -> Result<()> {
        let now = self.context.now();
        let (before, mut after) = (days_before(now, days), None);
        while !round.is_over() {
            let page =
                self.context.database.archivable_tasks(kind, before, now, after.as_ref(), MAX_ITEMS).await?;
            let mut rest = page.as_slice();
            while !rest.is_empty() && !round.is_over() {
                rest = self.write_archive(kind, rest, round).await?;
            }
            if page.len() < MAX_ITEMS as usize {
                break;
            }
            after = page.into_iter().next_back();
        }
        Ok(())
    }

    /// Writes one archive of the first tasks; returns the rest.
    async fn write_archive<'a>(
        &self,
        kind: ArchiveKind,
        tasks: &'a [(Moment, String)],
        round: &mut Round,
    ) -> Result<&'a [(Moment, String)]> {
        let (archive_id, created_at) = (new_id(), self.context.now());
        let (mut lines, mut leaving, mut rest) = (Vec::new(), Vec::new(), tasks);
        while let Some(((_, task_id), others)) = rest.split_first()
            && lines.len() < MAX_BYTES
            && (leaving.is_empty() || !round.is_over())
        {
            rest = others;
            match self.append_line(kind, task_id, &mut lines).await {
                Ok(Some(item)) => leaving.push(TaskRemoval::new(kind, &archive_id, &item)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(task_id, %error, "cannot archive a task; retrying");
                    round.failed.get_or_insert(error);
                }
            }
        }
        if leaving.is_empty() {
            return Ok(rest);
        }
        let (day, word) = (created_at.timestamp().strftime("%Y-%m-%d"), kind.as_str());
        let key = format!("archive/{word}/{day}/{archive_id}.ndjson.gz");
        self.context.database.announce_blob(&key, created_at).await?;
        let blob_key = key.clone();
        let write = move |blobs: &Blobs| {
            let bytes = pack(&lines)?;
            blobs.put(&blob_key, &bytes)?;
            Ok((bytes.len() as u64, Digest::of_bytes(&bytes)))
        };
        let (bytes, digest) = self.context.with_blobs("cannot write an archive", write).await?;
        let ended_at = |task: Option<&(Moment, String)>| task.map_or(created_at, |(at, _)| *at);
        let archived = tasks.len() - rest.len();
        let last = archived.checked_sub(1).and_then(|last| tasks.get(last));
        let (from, to) = (ended_at(tasks.first()), ended_at(last));
        let items = leaving.len() as u64;
        let (mac, restored_at) = (String::new(), None);
        let mut archive =
            Archive { archive_id, kind, key, items, bytes, digest, mac, created_at, from, to, restored_at };
        let database = &self.context.database;
        archive.mac = database.keys().mac(KeyPurpose::Archive, archive.content().as_bytes());
        let audited = self.audit_creation(&archive);
        round.archived += database.remove_archived(archive, leaving, audited).await?;
        Ok(rest)
    }

    /// The audit entry of a new archive names its hash.
    fn audit_creation(&self, archive: &Archive) -> Commit {
        let details = Map::from_iter([
            ("kind".to_owned(), json!(archive.kind)),
            ("key".to_owned(), json!(archive.key)),
            (DIGEST.to_owned(), json!(archive.digest)),
        ]);
        let action = AuditedAction { details, ..AuditedAction::new(ARCHIVED, &archive.archive_id) };
        let by = self.context.service("jobs", Trigger::Job("archive".to_owned()));
        action.commit_as(by, Vec::new(), archive.created_at)
    }

    /// Fails unless the archive is the one that ade wrote: its own MAC, its blob and its audit entry agree.
    async fn require_authentic(&self, archive: &Archive, blob: Digest) -> Result<()> {
        let database = &self.context.database;
        let mac = database.keys().verify(KeyPurpose::Archive, archive.content().as_bytes(), &archive.mac);
        let entry = database.authentic_entry(ARCHIVED, &archive.archive_id, archive.created_at).await?;
        let named = entry.as_ref().and_then(|entry| entry.details.get(DIGEST));
        let reason = match mac {
            MacCheck::UnknownKey => "it was written with a secret that this server does not have",
            MacCheck::Invalid => "its description was changed",
            MacCheck::Valid if blob != archive.digest => "its content was changed",
            MacCheck::Valid if named != Some(&json!(blob)) => {
                "its audit entry is missing or names another content"
            }
            MacCheck::Valid => return Ok(()),
        };
        tracing::error!(archive_id = archive.archive_id, reason, "refused to restore an archive");
        Err(Error::ForgedArchive { archive_id: archive.archive_id.clone(), reason })
    }

    /// Appends the line of a task; `None` if the task no longer exists.
    async fn append_line(
        &self,
        kind: ArchiveKind,
        task_id: &str,
        lines: &mut Vec<u8>,
    ) -> Result<Option<ArchivedTask>> {
        let Some(mut item) = self.context.database.load_for_archive(kind, task_id).await? else {
            return Ok(None);
        };
        if kind == ArchiveKind::Tasks {
            self.pack_output(&mut item).await?;
        }
        let line = serde_json::to_vec(&item).map_err(Error::system)?;
        lines.extend_from_slice(&line);
        lines.push(b'\n');
        Ok(Some(item))
    }

    /// Drops the rollback data of a task, which can no longer be rolled back, and compresses its output.
    async fn pack_output(&self, item: &mut ArchivedTask) -> Result<()> {
        let task_id = item.task.task_id.clone();
        let Some(execution) = &mut item.task.execution else { return Ok(()) };
        execution.rollback_data_key = None;
        let Some(from) = execution.output_key.clone().filter(|key| !key.starts_with(OUTPUT_PREFIX)) else {
            return Ok(());
        };
        let to = format!("{OUTPUT_PREFIX}{task_id}/{}.gz", execution.attempt);
        let compress = move |blobs: &Blobs| {
            let mut output = match blobs.open(&from) {
                // The output was removed by hand; its key stays.
                Err(BlobError::NotFound(_)) => return Ok(from),
                opened => opened?,
            };
            blobs.write(&to, |file| {
                let mut packed = GzEncoder::new(file, Compression::default());
                io::copy(&mut output, &mut packed)?;
                packed.finish().map(drop)
            })?;
            Ok(to)
        };
        let packed = self.context.with_blobs("cannot archive the output of a task", compress).await?;
        execution.output_key = Some(packed);
        Ok(())
    }

    /// Removes blobs that have been unneeded for a while.
    async fn remove_unneeded_blobs(&self, deadline: Instant) -> Result<()> {
        const FAILURE: &str = "cannot remove unneeded blobs";
        let before = days_before(self.context.now(), BLOB_GRACE_DAYS);
        self.context.with_blobs(FAILURE, move |blobs| Ok(blobs.remove_stale_temp_files(before)?)).await?;
        loop {
            let keys = self.context.database.take_orphaned_blobs(before, BLOB_BATCH_SIZE).await?;
            let removed = keys.clone();
            let remove = move |blobs: &Blobs| {
                Ok(removed.iter().try_for_each(|key| blobs.remove_prefix(key).map(drop))?)
            };
            self.context.with_blobs(FAILURE, remove).await?;
            let is_last = keys.len() < BLOB_BATCH_SIZE as usize;
            self.context.database.confirm_blobs_removed(keys).await?;
            if is_last || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    /// Archives, newest first, starting before `before`.
    pub async fn list(&self, before: Option<&str>, limit: u32, caller: &Caller) -> Result<Vec<Archive>> {
        caller.require_scope(Scope::Read)?;
        if !caller.can_see_all() {
            return Err(Error::forbidden("only administrators and auditors can list archives"));
        }
        Ok(self.context.database.archives(before, limit).await?)
    }

    /// Restores the items of an archive that are not in the database, for a while. Restoring it again changes nothing.
    pub async fn restore(&self, archive_id: &str, caller: &Caller) -> Result<RestoreResult> {
        caller.require_scope(Scope::Admin)?;
        if !caller.is_admin() {
            return Err(Error::Forbidden(format!("only users with the role {ADMIN} can restore archives")));
        }
        let found = self.context.database.archive(archive_id).await?;
        let mut archive = found.ok_or(Error::NotFound(ObjectKind::Archive))?;
        let now = self.context.now();
        // Audited first: the attempt must be on record even if restoring fails.
        let commit = AuditedAction::new("archive.restore", archive_id).commit(Vec::new(), caller, now);
        self.context.database.commit(commit).await?;
        let key = archive.key.clone();
        let read = move |blobs: &Blobs| Ok(blobs.get(&key, MAX_PACKED_BYTES)?);
        let packed = self.context.with_blobs("cannot read the archive", read).await?;
        self.require_authentic(&archive, Digest::of_bytes(&packed)).await?;
        let items = self.context.with_blobs("cannot read the archive", move |_| Ok(unpack(&packed)?)).await?;
        let task_ids: Vec<String> = items.iter().map(|item| item.task.task_id.clone()).collect();
        archive.restored_at = Some(now);
        let until = now.plus_ms(RESTORED_DAYS * DAY_MS);
        let items = self.context.database.restore_archive(archive.clone(), items, until).await?;
        let left_out = self.context.database.skipped_on_restore(&archive, &task_ids).await?;
        let restored = RestoreResult { archive, items, left_out };
        let response = stored_response(caller, |_| Outcome::Restored(restored.clone()))?;
        if response.is_some() {
            self.context.database.commit(Commit { response, ..Commit::default() }).await?;
        }
        Ok(restored)
    }
}

impl Jobs {
    #[must_use]
    pub fn archives(&self) -> ArchiveService {
        ArchiveService { context: self.context.clone() }
    }

    /// Whether the next round of archiving is due at once.
    pub(super) async fn is_behind(&self) -> bool {
        self.archives().is_behind().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot look for more to archive; the next round is due by time");
            false
        })
    }
}

fn pack(lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(lines)?;
    packed.finish()
}

fn unpack(bytes: &[u8]) -> io::Result<Vec<ArchivedTask>> {
    let lines = BufReader::new(GzDecoder::new(bytes).take(MAX_UNPACKED_BYTES)).lines();
    let task = |(number, line): (u64, io::Result<String>)| {
        serde_json::from_str(&line?).map_err(|_| {
            let unknown = "was written by another version of ade; restore the archive with that version";
            io::Error::other(format!("line {number} {unknown}"))
        })
    };
    (1..).zip(lines).map(task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_compressed_lines_and_those_of_other_versions_are_refused() {
        let packed = pack(b"{}\n").expect("packed");
        let mut lines = String::new();
        GzDecoder::new(&*packed).read_to_string(&mut lines).expect("compressed");
        assert_eq!(lines, "{}\n");
        let refused = unpack(&packed).expect_err("not a task").to_string();
        assert_eq!(
            refused,
            "line 1 was written by another version of ade; restore the archive with that version"
        );
    }
}
