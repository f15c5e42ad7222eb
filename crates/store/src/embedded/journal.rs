//! The journal: every change is a line of JSON with a checksum, written with write(2) before it is acknowledged.
//!
//! The journal consists of numbered segments; a snapshot replaces all segments before its number. An incomplete line at the very end is
//! dropped, because it was never acknowledged. Damage anywhere else prevents the start, because locks would be lost silently.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::data_folder::create_private_folder;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// It is unknown what is on the disk.
    #[error("cannot sync the journal: {0}")]
    Unsynced(io::Error),
    /// The state must not be read any more.
    #[error("a command panicked before the snapshot was complete")]
    Interrupted,
    /// The checksum of the line is right, but its content is unknown.
    #[error(
        "{path} has an unknown record at line {line}, written by another version of ade; start that version instead"
    )]
    UnknownRecord { path: PathBuf, line: usize },
    #[error(
        "{path} is damaged at line {line}; restore the folder from a backup, or remove it to start without locks"
    )]
    Damaged { path: PathBuf, line: usize },
}

/// A snapshot is synced in parts: a sync of the journal may have to wait for one of them, but not for the whole.
const MAX_UNSYNCED_BYTES: u64 = 4 << 20;

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    segment: u64,
    file: Arc<File>,
    /// Bytes that could not be written yet. They must be written before anything else.
    pending: Vec<u8>,
    bytes: u64,
    snapshot_bytes: u64,
}

/// The segment that is to follow: it is created while the journal continues in the present one.
#[derive(Debug)]
pub(super) struct NextSegment {
    folder: PathBuf,
    number: u64,
    present: Arc<File>,
}

/// A segment that nothing was written to yet.
#[derive(Debug)]
pub(super) struct NewSegment {
    number: u64,
    file: File,
}

/// A snapshot that is to be written while the journal continues.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    number: u64,
}

impl Journal {
    /// Passes the JSON of all records of a folder to `replay`, the oldest first, then opens a new segment.
    pub(super) fn open(
        folder: &Path,
        mut replay: impl FnMut(&[u8]) -> serde_json::Result<()>,
    ) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: folder.to_owned(), source };
        create_private_folder(folder).map_err(io)?;
        let numbers = |prefix: &str| -> Result<Vec<u64>, JournalError> {
            let mut numbers = Vec::new();
            for entry in fs::read_dir(folder).map_err(io)? {
                let name = entry.map_err(io)?.file_name();
                numbers.extend(name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u64>().ok()));
            }
            numbers.sort_unstable();
            Ok(numbers)
        };
        let snapshot = numbers("snapshot-")?.pop();
        let segments = numbers("journal-")?;
        let mut snapshot_bytes = 0;
        if let Some(number) = snapshot {
            snapshot_bytes = read(&path(folder, "snapshot", number), false, &mut replay)?;
        }
        let live: Vec<u64> =
            segments.iter().copied().filter(|n| snapshot.is_none_or(|first| *n >= first)).collect();
        // The last written segment may be incomplete, also if an empty one follows it.
        let is_written =
            |number: &&u64| fs::metadata(path(folder, "journal", **number)).is_ok_and(|file| file.len() > 0);
        let last = live.iter().rfind(is_written);
        let mut bytes = 0;
        for number in &live {
            bytes += read(&path(folder, "journal", *number), Some(number) == last, &mut replay)?;
        }
        let segment = segments.last().copied().max(snapshot).map_or(1, |last| last + 1);
        let file = Arc::new(create(&path(folder, "journal", segment))?);
        sync_folder(folder)?;
        Ok(Self { folder: folder.to_owned(), segment, file, pending: Vec::new(), bytes, snapshot_bytes })
    }

    /// Appends records. On failure they stay pending, and nothing may be acknowledged until a later call succeeds.
    pub(super) fn append<R: Serialize>(&mut self, records: &[R]) -> io::Result<()> {
        for record in records {
            push_line(&mut self.pending, record)?;
        }
        self.flush()
    }

    /// Writes what is pending.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match (&*self.file).write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.bytes += written as u64;
                    self.pending.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    #[cfg(test)]
    pub(super) fn swap_file(&mut self, file: Arc<File>) -> Arc<File> {
        std::mem::replace(&mut self.file, file)
    }

    /// Whether the journal is long enough to be replaced by a snapshot.
    pub(super) fn is_long(&self, min_bytes: u64) -> bool {
        self.bytes > min_bytes.max(4 * self.snapshot_bytes)
    }

    pub(super) const fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next segment. If it is never used, the next snapshot is due when the journal has grown as much again.
    pub(super) fn next_segment(&mut self) -> NextSegment {
        self.bytes = 0;
        self.segment += 1;
        NextSegment { folder: self.folder.clone(), number: self.segment, present: self.file.clone() }
    }

    /// Continues in a new segment. All records so far belong to the returned snapshot.
    pub(super) fn rotate(&mut self, segment: NewSegment) -> Result<Snapshot, JournalError> {
        // Only the last segment may be incomplete, also after a power failure: a hole between two segments could not be detected, and
        // would give a lock to two holders. Little is left to sync.
        self.flush().map_err(|source| JournalError::Io { path: self.folder.clone(), source })?;
        self.file.sync_data().map_err(JournalError::Unsynced)?;
        self.file = Arc::new(segment.file);
        Ok(Snapshot { folder: self.folder.clone(), number: segment.number })
    }

    pub(super) const fn set_snapshot_bytes(&mut self, bytes: u64) {
        self.snapshot_bytes = bytes;
    }
}

impl NextSegment {
    /// Creates the segment, and syncs the present one, so that little is left to sync at the change from one to the other.
    pub(super) fn create(self) -> Result<NewSegment, JournalError> {
        let file = create(&path(&self.folder, "journal", self.number))?;
        sync_folder(&self.folder)?;
        self.present.sync_data().map_err(JournalError::Unsynced)?;
        Ok(NewSegment { number: self.number, file })
    }
}

impl Snapshot {
    /// Writes the snapshot, then removes the segments that it replaces. Returns its size.
    pub(super) fn write<R: Serialize>(
        self,
        slices: impl Iterator<Item = Result<Vec<R>, JournalError>>,
    ) -> Result<u64, JournalError> {
        let temp_path = self.folder.join("snapshot.new");
        let io = |source| JournalError::Io { path: temp_path.clone(), source };
        let created = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp_path);
        let mut file = created.map_err(io)?;
        let (mut buffer, mut bytes, mut synced_bytes) = (Vec::new(), 0_u64, 0);
        for slice in slices {
            for record in slice? {
                push_line(&mut buffer, &record).map_err(io)?;
            }
            bytes += buffer.len() as u64;
            file.write_all(&buffer).map_err(io)?;
            buffer.clear();
            if bytes - synced_bytes >= MAX_UNSYNCED_BYTES {
                file.sync_data().map_err(io)?;
                synced_bytes = bytes;
            }
        }
        file.sync_all().map_err(io)?;
        fs::rename(&temp_path, path(&self.folder, "snapshot", self.number)).map_err(io)?;
        sync_folder(&self.folder)?;
        for entry in fs::read_dir(&self.folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.split_once('-')?.1.parse::<u64>().ok());
            if number.is_some_and(|number| number < self.number) {
                fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(bytes)
    }
}

fn path(folder: &Path, kind: &str, number: u64) -> PathBuf {
    folder.join(format!("{kind}-{number:012}"))
}

fn create(path: &Path) -> Result<File, JournalError> {
    let opened = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path);
    opened.map_err(|source| JournalError::Io { path: path.to_owned(), source })
}

fn sync_folder(folder: &Path) -> Result<(), JournalError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| JournalError::Io { path: folder.to_owned(), source })
}

pub(super) fn push_line<R: Serialize>(buffer: &mut Vec<u8>, record: &R) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    buffer.extend_from_slice(format!("{:08x} ", crc32fast::hash(&json)).as_bytes());
    buffer.extend_from_slice(&json);
    buffer.push(b'\n');
    Ok(())
}

/// Replays all records of a file, and returns their size. Only the last file may end in incomplete lines.
fn read(
    path: &Path,
    is_last: bool,
    replay: &mut impl FnMut(&[u8]) -> serde_json::Result<()>,
) -> Result<u64, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let (mut line, mut number, mut valid_bytes) = (Vec::new(), 0, 0_u64);
    let mut first_invalid = None;
    loop {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line).map_err(io)?;
        if bytes == 0 {
            break;
        }
        number += 1;
        match (checked_json(&line), first_invalid) {
            (Some(json), None) => {
                let unknown = |_| JournalError::UnknownRecord { path: path.to_owned(), line: number };
                replay(json).map_err(unknown)?;
                valid_bytes += bytes as u64;
            }
            (None, None) => first_invalid = Some(number),
            // A valid line after an invalid one: this is damage, not a crash.
            (Some(_), Some(line)) => return Err(JournalError::Damaged { path: path.to_owned(), line }),
            (None, Some(_)) => {}
        }
    }
    match first_invalid {
        None if is_last => reader.into_inner().sync_data().map_err(io).map(|()| valid_bytes),
        None => Ok(valid_bytes),
        Some(line) if !is_last => Err(JournalError::Damaged { path: path.to_owned(), line }),
        Some(line) => {
            tracing::warn!(path = %path.display(), line, "dropping incomplete lines at the end of the journal, which were never acknowledged");
            let file = OpenOptions::new().write(true).open(path).map_err(io)?;
            file.set_len(valid_bytes).map_err(io)?;
            file.sync_all().map_err(io)?;
            Ok(valid_bytes)
        }
    }
}

/// The JSON of a complete line whose checksum is right.
pub(super) fn checked_json(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (checksum, json) = line.split_at_checked(9)?;
    let checksum = u32::from_str_radix(str::from_utf8(checksum).ok()?.strip_suffix(' ')?, 16).ok()?;
    (crc32fast::hash(json) == checksum).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> (Journal, Vec<u64>) {
        let mut found = Vec::new();
        let replay = |json: &[u8]| serde_json::from_slice(json).map(|number| found.push(number));
        let journal = Journal::open(folder, replay).expect("readable");
        (journal, found)
    }

    #[test]
    fn replays_records_in_order_across_snapshots() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut journal, found) = open(folder.path());
        assert!(found.is_empty());
        journal.append(&[1_u64]).expect("written");
        let segment = journal.next_segment().create().expect("created");
        journal.append(&[2_u64]).expect("written");
        let snapshot = journal.rotate(segment).expect("rotated");
        journal.append(&[3_u64]).expect("written");
        assert_eq!(open(folder.path()).1, [1, 2, 3], "a crash before the snapshot is written");
        snapshot.write([Ok(vec![12_u64])].into_iter()).expect("written");
        let (mut journal, found) = open(folder.path());
        assert_eq!(found, [12, 3]);
        journal.append(&[4_u64]).expect("written");
        assert_eq!(open(folder.path()).1, [12, 3, 4]);
    }

    #[test]
    fn drops_an_incomplete_end_but_reports_damage() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut journal, _) = open(folder.path());
        journal.append(&[1_u64, 2, 3]).expect("written");
        let file = path(folder.path(), "journal", 1);
        let complete = fs::read(&file).expect("readable");
        for cut in 1..complete.len() {
            fs::write(&file, &complete[..cut]).expect("written");
            let (_, found) = open(folder.path());
            let lines = complete[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(found, (1..=lines).collect::<Vec<_>>(), "cut at {cut}");
            fs::remove_file(path(folder.path(), "journal", 2)).expect("the next segment");
        }
        let mut damaged = complete;
        damaged[12] ^= 1;
        fs::write(&file, &damaged).expect("written");
        let error = Journal::open(folder.path(), |_| Ok(())).expect_err("damaged");
        assert!(matches!(error, JournalError::Damaged { line: 2, .. }), "{error}");
    }
}
