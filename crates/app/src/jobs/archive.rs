//! Archives: what ended long ago leaves the record for compressed lines of JSON, and comes back when an administrator wants it.
//!
//! The copy is kept, whole and synced, before anything is deleted; what changed meanwhile is not deleted. What nobody needs any
//! more goes by and by: stashes of tasks that left, and whatever crashes left half.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use ade_domain::people::ADMIN;
use ade_domain::permission::Scope;
use ade_domain::{Clock, Moment};
use ade_store::database::{Archive, ArchiveKind, Archived, Commit, Leaving, LeftOut};
use ade_store::{BlobError, Blobs, Database};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use uuid::Uuid;

use super::{DAY_MS, Jobs, away};
use crate::acts::Act;
use crate::{Caller, Error, Outcome};

/// Days after which the requests of a task that ended leave.
const APPROVALS_AFTER: u64 = 30;
/// Days after which it leaves itself.
const TASKS_AFTER: u64 = 90;
/// Days for which what was brought back stays.
const STAYS: u64 = 30;
/// Days after which a blob that nobody needs is removed. No run takes longer than one.
const REMOVED_AFTER: u64 = 2;
/// Tasks of one archive.
const MOST: u32 = 200;
/// Bytes of its lines, before they are compressed; one task may have more.
const MOST_BYTES: usize = 16 * 1_048_576;
/// How long one round may take to begin something new: far shorter than others wait for it.
const ROUND: Duration = Duration::from_secs(40);
/// Blobs that are removed at once.
const MOST_REMOVED: u32 = 500;
/// Bytes of an archive that is read back, and of its lines.
const LONGEST: u64 = 512 * 1_048_576;
const LONGEST_LINES: u64 = 4 * LONGEST;
/// Where outputs of archived tasks are.
const OUTPUTS: &str = "archive/output/";

/// Archives: made by a job, and used by administrators.
#[derive(Clone)]
pub struct Archives {
    /// The record.
    pub record: Database,
    /// Where they are kept.
    pub blobs: Blobs,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
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
    /// What did not come back.
    pub left_out: LeftOut,
}

/// How a round goes.
struct Round {
    until: Instant,
    many: u64,
    /// Why some task stays.
    failed: Option<Error>,
}

impl Round {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

const fn kinds() -> [(ArchiveKind, u64); 2] {
    [(ArchiveKind::Tasks, TASKS_AFTER), (ArchiveKind::Approvals, APPROVALS_AFTER)]
}

fn days_before(now: Moment, days: u64) -> Moment {
    Moment::from_micros(now.micros().saturating_sub(days * DAY_MS * 1_000))
}

/// Whatever goes wrong with files.
type Unusable = Box<dyn std::error::Error + Send + Sync>;

/// On a thread that may wait.
async fn on_disk<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, Unusable> + Send + 'static,
) -> Result<T, Error> {
    let done = spawn_blocking(work).await.map_err(|error| away(&format!("{what}: {error}")))?;
    done.map_err(|error| away(&format!("{what}: {error}")))
}

impl Archives {
    /// Archives what is old enough, for a while; how many tasks it concerned.
    pub async fn archive_old(&self) -> Result<u64, Error> {
        let mut round = Round { until: Instant::now() + ROUND, many: 0, failed: None };
        for (kind, days) in kinds() {
            self.archive_kind(kind, days, &mut round).await?;
        }
        self.remove_unneeded(round.until).await?;
        round.failed.map_or(Ok(round.many), Err)
    }

    /// Whether there is so much to be archived that another round is due at once.
    pub async fn is_behind(&self) -> Result<bool, Error> {
        let now = self.clock.now();
        for (kind, days) in kinds() {
            let some = self.record.to_be_archived(kind, days_before(now, days), now, None, MOST).await?;
            if some.len() == MOST as usize {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn archive_kind(&self, kind: ArchiveKind, days: u64, round: &mut Round) -> Result<(), Error> {
        let now = self.clock.now();
        let (before, mut after) = (days_before(now, days), None);
        while !round.is_over() {
            let page = self.record.to_be_archived(kind, before, now, after.as_ref(), MOST).await?;
            let mut open = page.as_slice();
            while !open.is_empty() && !round.is_over() {
                open = self.archive_some(kind, open, round).await?;
            }
            if page.len() < MOST as usize {
                break;
            }
            after = page.into_iter().next_back();
        }
        Ok(())
    }

    /// One archive of the first of these; which of them are still to come.
    async fn archive_some<'a>(
        &self,
        kind: ArchiveKind,
        some: &'a [(Moment, String)],
        round: &mut Round,
    ) -> Result<&'a [(Moment, String)], Error> {
        let (archive_id, created_at) = (Uuid::now_v7().to_string(), self.clock.now());
        let (mut lines, mut leaving, mut rest) = (Vec::new(), Vec::new(), some);
        while let Some(((_, task_id), others)) = rest.split_first()
            && lines.len() < MOST_BYTES
            && (leaving.is_empty() || !round.is_over())
        {
            rest = others;
            match self.line(kind, task_id, &mut lines).await {
                Ok(Some(item)) => leaving.push(Leaving::of(kind, &archive_id, &item)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(task_id, %error, "a task cannot be archived; trying again");
                    round.failed.get_or_insert(error);
                }
            }
        }
        if leaving.is_empty() {
            return Ok(rest);
        }
        let (day, word) = (created_at.timestamp().strftime("%Y-%m-%d"), kind.word());
        let key = format!("archive/{word}/{day}/{archive_id}.ndjson.gz");
        self.record.announce_blob(&key, created_at).await?;
        let (blobs, at) = (self.blobs.clone(), key.clone());
        let keep = move || {
            let bytes = packed(&lines)?;
            blobs.put(&at, &bytes)?;
            Ok(bytes.len() as u64)
        };
        let bytes = on_disk("an archive cannot be kept", keep).await?;
        let ended = |item: Option<&(Moment, String)>| item.map_or(created_at, |(at, _)| *at);
        let done = some.len() - rest.len();
        let (from, to) = (ended(some.first()), ended(done.checked_sub(1).and_then(|last| some.get(last))));
        let items = leaving.len() as u64;
        let archive =
            Archive { archive_id, kind, key, items, bytes, created_at, from, to, restored_at: None };
        round.many += self.record.take_out(archive, leaving).await?;
        Ok(rest)
    }

    /// Adds the line of a task, if it is there.
    async fn line(
        &self,
        kind: ArchiveKind,
        task_id: &str,
        lines: &mut Vec<u8>,
    ) -> Result<Option<Archived>, Error> {
        let Some(mut item) = self.record.archived(kind, task_id).await? else { return Ok(None) };
        if kind == ArchiveKind::Tasks {
            self.put_away(&mut item).await?;
        }
        let line = serde_json::to_vec(&item).map_err(|error| away(&error))?;
        lines.extend_from_slice(&line);
        lines.push(b'\n');
        Ok(Some(item))
    }

    /// From now on nothing of a task can be undone, and what it said is compressed.
    async fn put_away(&self, item: &mut Archived) -> Result<(), Error> {
        let review = &mut item.task.task;
        let Some(execution) = &mut review.execution else { return Ok(()) };
        execution.stash_key = None;
        let Some(from) = execution.output_key.clone().filter(|key| !key.starts_with(OUTPUTS)) else {
            return Ok(());
        };
        let (to, blobs) =
            (format!("{OUTPUTS}{}/{}.gz", review.task_id, execution.attempt), self.blobs.clone());
        let compress = move || {
            let mut output = match blobs.open(&from) {
                // Somebody removed it: there is nothing to be kept, and its name stays.
                Err(BlobError::Missing(_)) => return Ok(from),
                opened => opened?,
            };
            blobs.write(&to, |file| {
                let mut packed = GzEncoder::new(file, Compression::default());
                io::copy(&mut output, &mut packed)?;
                packed.finish().map(drop)
            })?;
            Ok(to)
        };
        execution.output_key = Some(on_disk("what a task said cannot be kept", compress).await?);
        Ok(())
    }

    /// Removes blobs that nobody has needed for a while.
    async fn remove_unneeded(&self, until: Instant) -> Result<(), Error> {
        const WHAT: &str = "what nobody needs cannot be removed";
        let before = days_before(self.clock.now(), REMOVED_AFTER);
        let blobs = self.blobs.clone();
        on_disk(WHAT, move || Ok(blobs.remove_unfinished(before)?)).await?;
        loop {
            let some = self.record.doomed_blobs(before, MOST_REMOVED).await?;
            let (blobs, all) = (self.blobs.clone(), some.clone());
            on_disk(WHAT, move || {
                Ok(all.iter().try_for_each(|within| blobs.remove_within(within).map(drop))?)
            })
            .await?;
            let is_last = some.len() < MOST_REMOVED as usize;
            self.record.blobs_removed(some).await?;
            if is_last || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    fn permit(caller: &Caller) -> Result<(), Error> {
        caller.require(Scope::Admin)?;
        if caller.administers() {
            return Ok(());
        }
        Err(Error::Forbidden(format!("archives are for whoever has the role {ADMIN}")))
    }

    /// Archives, the newest first.
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

    /// Brings back what is in an archive and not in the record, to stay for a while. Doing it again brings back nothing.
    pub async fn restore(&self, archive_id: &str, caller: &Caller) -> Result<Restored, Error> {
        Self::permit(caller)?;
        let known = Uuid::parse_str(archive_id).is_ok();
        let found = if known { self.record.archive(archive_id).await? } else { None };
        let mut archive = found.ok_or(Error::NotFound("archive"))?;
        let (blobs, key) = (self.blobs.clone(), archive.key.clone());
        let read = move || {
            let bytes = blobs.get(&key, LONGEST)?;
            Ok(unpacked(&bytes)?)
        };
        let items = on_disk("the archive cannot be read", read).await?;
        let task_ids: Vec<String> = items.iter().map(|item| item.task.task_id.clone()).collect();
        let now = self.clock.now();
        archive.restored_at = Some(now);
        // Told before it is done: that somebody wanted it is worth knowing whatever comes of it.
        let mut commit = Commit::default();
        let act = Act { action: "archive.restore", object_id: archive_id, ..Act::default() };
        act.add(&mut commit, Some(caller), now);
        self.record.commit(commit).await?;
        let items = self.record.bring_back(archive.clone(), items, now.plus_ms(STAYS * DAY_MS)).await?;
        let left_out = self.record.left_out(&archive, &task_ids).await?;
        let restored = Restored { archive, items, left_out };
        if let Some(keep) = &caller.keep {
            let mut commit = Commit::default();
            keep.add(&mut commit, Outcome::Restored(&restored), now);
            self.record.commit(commit).await?;
        }
        Ok(restored)
    }
}

impl Jobs {
    pub(super) fn archives(&self) -> Archives {
        let (record, blobs, clock) = (self.record.clone(), self.blobs.clone(), self.clock.clone());
        Archives { record, blobs, clock }
    }

    /// Whether the next round is due at once.
    pub(super) async fn is_behind(&self) -> bool {
        self.archives().is_behind().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "what is left to be archived waits for its time");
            false
        })
    }
}

fn packed(lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(lines)?;
    packed.finish()
}

fn unpacked(bytes: &[u8]) -> io::Result<Vec<Archived>> {
    let lines = BufReader::new(GzDecoder::new(bytes).take(LONGEST_LINES)).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
