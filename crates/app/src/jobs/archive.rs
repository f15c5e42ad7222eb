//! Archives: what ended long ago leaves the record for compressed lines of JSON, and comes back when an administrator wants it.
//!
//! The copy is kept, whole and synced, before anything is deleted; what changed meanwhile is not deleted.

use std::io::{BufRead as _, BufReader, Write as _};

use ade_domain::Moment;
use ade_domain::people::ADMIN;
use ade_domain::permission::Scope;
use ade_store::record::{Archive, ArchiveKind, Archived, Commit};
use ade_store::{Blobs, Record};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::{DAY_MS, Jobs, away};
use crate::acts::Act;
use crate::{Caller, Error};

/// Days after which the requests of a task that ended leave.
const APPROVALS_AFTER: u64 = 30;
/// Days after which it leaves itself.
const TASKS_AFTER: u64 = 90;
/// Tasks of one archive.
const MOST: u32 = 200;
/// Archives of one round; what is left is for the next.
const ROUNDS: usize = 50;
/// Bytes of an archive that is read back.
const LONGEST: u64 = 512 * 1_048_576;
const KEPT_BEFORE_DELETED: &str = "an archive cannot be kept";

impl Jobs {
    /// Archives what is old enough; how many tasks it concerned.
    pub(super) async fn archive(&self) -> Result<u64, Error> {
        let now = self.clock.now();
        let before = |days: u64| Moment::from_micros(now.micros().saturating_sub(days * DAY_MS * 1_000));
        let mut many = self.archive_kind(ArchiveKind::Tasks, before(TASKS_AFTER)).await?;
        many += self.archive_kind(ArchiveKind::Approvals, before(APPROVALS_AFTER)).await?;
        Ok(many)
    }

    async fn archive_kind(&self, kind: ArchiveKind, before: Moment) -> Result<u64, Error> {
        let mut many = 0;
        for _ in 0..ROUNDS {
            let items = self.record.to_be_archived(kind, before, MOST).await?;
            if items.is_empty() {
                break;
            }
            let taken = self.archive_some(kind, items).await?;
            many += taken;
            if taken == 0 {
                // Somebody changes them all the time: they are not that old.
                break;
            }
        }
        Ok(many)
    }

    async fn archive_some(&self, kind: ArchiveKind, items: Vec<Archived>) -> Result<u64, Error> {
        let (archive_id, now) = (Uuid::now_v7().to_string(), self.clock.now());
        let day = now.timestamp().strftime("%Y-%m-%d");
        let word = match kind {
            ArchiveKind::Approvals => "approvals",
            ArchiveKind::Tasks => "tasks",
        };
        let key = format!("archive/{word}/{day}/{archive_id}.ndjson.gz");
        let ended = |item: &Archived| item.task.review.since.get(&item.task.review.state).copied();
        let (from, to) = (items.iter().filter_map(ended).min(), items.iter().filter_map(ended).max());
        let (blobs, at) = (self.blobs.clone(), key.clone());
        let kept = spawn_blocking(move || -> Result<(u64, Vec<Archived>), String> {
            let bytes = packed(&items).map_err(|error| error.to_string())?;
            blobs.put(&at, &bytes).map_err(|error| error.to_string())?;
            Ok((bytes.len() as u64, items))
        });
        let kept = kept.await.map_err(|error| away(&format!("{KEPT_BEFORE_DELETED}: {error}")))?;
        let (bytes, items) = kept.map_err(|error| away(&format!("{KEPT_BEFORE_DELETED}: {error}")))?;
        let archive = Archive {
            archive_id,
            kind,
            key,
            items: items.len() as u64,
            bytes,
            created_at: now,
            from: from.unwrap_or(now),
            to: to.unwrap_or(now),
            restored_at: None,
        };
        Ok(self.record.take_out(archive, &items).await?)
    }

    /// What else the record does not need any more, and what it will need.
    pub(super) async fn tidy(&self) -> Result<u64, Error> {
        let now = self.clock.now();
        let before = Moment::from_micros(now.micros().saturating_sub(DAY_MS * 1_000));
        let mut many = 0;
        loop {
            let forgotten =
                self.record.forget_answers(before).await? + self.record.end_old_sessions(now).await?;
            many += forgotten;
            if forgotten == 0 {
                break;
            }
        }
        let missing = self.record.prepare_months(now).await?;
        if missing > 0 {
            tracing::warn!(
                missing,
                "parts of the audit log for coming months cannot be made yet; trying again"
            );
        }
        Ok(many)
    }
}

fn packed(items: &[Archived]) -> std::io::Result<Vec<u8>> {
    let mut lines = GzEncoder::new(Vec::new(), Compression::default());
    for item in items {
        serde_json::to_writer(&mut lines, item)?;
        lines.write_all(b"\n")?;
    }
    lines.finish()
}

fn unpacked(bytes: &[u8]) -> std::io::Result<Vec<Archived>> {
    let lines = BufReader::new(GzDecoder::new(bytes)).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// Archives, as administrators use them.
#[derive(Clone)]
pub struct Archives {
    /// The record.
    pub record: Record,
    /// Where they are kept.
    pub blobs: Blobs,
    /// By which clock.
    pub clock: std::sync::Arc<dyn ade_domain::Clock>,
}

impl std::fmt::Debug for Archives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archives").finish_non_exhaustive()
    }
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// From which archive.
    pub archive: Archive,
    /// How many were not there.
    pub items: u64,
}

impl Archives {
    fn permit(caller: &Caller) -> Result<(), Error> {
        caller.require(Scope::Admin)?;
        if caller.administers() {
            return Ok(());
        }
        Err(Error::Forbidden(format!("archives are for whoever has the role {ADMIN}")))
    }

    /// Archives, the newest first.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn list(
        &self,
        before: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<Archive>, Error> {
        caller.require(Scope::Read)?;
        if !caller.sees_all() {
            return Err(Error::Forbidden("archives are for administrators and auditors".to_owned()));
        }
        Ok(self.record.archives(before, limit).await?)
    }

    /// Brings back what is in an archive and not in the record. Doing it again brings back nothing.
    ///
    /// # Errors
    /// The caller may not, or the archive is not there.
    pub async fn restore(&self, archive_id: &str, caller: &Caller) -> Result<Restored, Error> {
        Self::permit(caller)?;
        let known = Uuid::parse_str(archive_id).is_ok();
        let found = if known { self.record.archive(archive_id).await? } else { None };
        let mut archive = found.ok_or(Error::NotFound("archive"))?;
        let (blobs, key) = (self.blobs.clone(), archive.key.clone());
        let read = spawn_blocking(move || -> Result<Vec<Archived>, String> {
            let bytes = blobs.get(&key, LONGEST).map_err(|error| error.to_string())?;
            unpacked(&bytes).map_err(|error| error.to_string())
        });
        let items = read.await.map_err(|error| away(&error))?.map_err(|error| away(&error))?;
        let now = self.clock.now();
        archive.restored_at = Some(now);
        // Told before it is done: that somebody wanted it is worth knowing whatever comes of it.
        let mut commit = Commit::default();
        let act = Act { action: "archive.restore", object_id: archive_id, ..Act::default() };
        act.add(&mut commit, Some(caller), now);
        self.record.commit(commit).await?;
        let many = self.record.bring_back(archive.clone(), items).await?;
        Ok(Restored { archive, items: many })
    }
}
