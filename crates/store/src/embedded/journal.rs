//! The journal: every change as a line of JSON with a checksum, written with write(2) before it is answered.
//!
//! Segments follow each other; a snapshot stands for all segments before its number. A line that was cut by a crash at the
//! very end is forgotten, because nobody was answered; damage anywhere else stops the start, because it would lose locks
//! quietly.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::folder::private_folder;

/// Why the journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot use {path}: {source}")]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was written may not be on the disk.
    #[error("the journal could not be synced: {0}")]
    Unsynced(io::Error),
    /// A line is whole, but not of a kind that is known.
    #[error(
        "{path} has a line of an unknown kind at {line}; it was written by another version of ade: start that one"
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// A line is not what was written.
    #[error(
        "{path} is damaged at line {line}; restore the folder from a copy, or remove it to start without locks"
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    segment: u64,
    file: Arc<File>,
    /// What could not be written yet: it must reach the file before anything else does.
    pending: Vec<u8>,
    bytes: u64,
    snapshot_bytes: u64,
}

/// A snapshot in the making, to be written while the journal goes on.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    number: u64,
}

impl Journal {
    /// Reads what a folder holds, oldest first, then opens a new segment for what is to come.
    pub(super) fn open<R: DeserializeOwned>(
        folder: &Path,
        mut record: impl FnMut(R),
    ) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io { path: folder.to_owned(), source };
        private_folder(folder).map_err(io)?;
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
            snapshot_bytes = read(&path(folder, "snapshot", number), false, &mut record)?;
        }
        let live: Vec<u64> =
            segments.iter().copied().filter(|n| snapshot.is_none_or(|first| *n >= first)).collect();
        // A segment that was begun and never written to does not make the one before it whole.
        let is_written =
            |number: &&u64| fs::metadata(path(folder, "journal", **number)).is_ok_and(|file| file.len() > 0);
        let last = live.iter().rfind(is_written);
        let mut bytes = 0;
        for number in &live {
            bytes += read(&path(folder, "journal", *number), Some(number) == last, &mut record)?;
        }
        let segment = segments.last().copied().max(snapshot).map_or(1, |last| last + 1);
        let file = Arc::new(create(&path(folder, "journal", segment))?);
        sync_folder(folder)?;
        Ok(Self { folder: folder.to_owned(), segment, file, pending: Vec::new(), bytes, snapshot_bytes })
    }

    /// Adds records. On failure they stay pending, and nothing may be answered until a later call succeeds.
    pub(super) fn append<R: Serialize>(&mut self, records: &[R]) -> io::Result<()> {
        for record in records {
            push_line(&mut self.pending, record)?;
        }
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

    /// The file to be synced.
    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    #[cfg(test)]
    pub(super) fn swap_file(&mut self, file: Arc<File>) -> Arc<File> {
        std::mem::replace(&mut self.file, file)
    }

    /// Whether a snapshot would be worth its work.
    pub(super) fn is_long(&self, least_bytes: u64) -> bool {
        self.bytes > least_bytes.max(4 * self.snapshot_bytes)
    }

    /// Whether something could not be written yet.
    pub(super) const fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Goes on in a new segment. What happened until now belongs into the snapshot that is returned. If that fails, the
    /// old segment goes on, and is not looked at again until it is as long once more.
    pub(super) fn rotate(&mut self) -> Result<Snapshot, JournalError> {
        self.bytes = 0;
        self.segment += 1;
        // Only the last segment may end in the middle of a line, also after a loss of power.
        self.file.sync_data().map_err(JournalError::Unsynced)?;
        let file = create(&path(&self.folder, "journal", self.segment))?;
        sync_folder(&self.folder)?;
        self.file = Arc::new(file);
        Ok(Snapshot { folder: self.folder.clone(), number: self.segment })
    }

    /// Notes the size of a finished snapshot.
    pub(super) const fn snapshot_done(&mut self, bytes: u64) {
        self.snapshot_bytes = bytes;
    }
}

impl Snapshot {
    /// Writes the snapshot, then removes what it stands for. Returns its size.
    pub(super) fn write<R: Serialize>(self, records: impl Iterator<Item = R>) -> Result<u64, JournalError> {
        let path_new = self.folder.join("snapshot.new");
        let io = |source| JournalError::Io { path: path_new.clone(), source };
        let created = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path_new);
        let mut file = created.map_err(io)?;
        let (mut buffer, mut bytes) = (Vec::new(), 0_u64);
        for record in records {
            push_line(&mut buffer, &record).map_err(io)?;
            if buffer.len() > 1 << 16 {
                bytes += buffer.len() as u64;
                file.write_all(&buffer).map_err(io)?;
                buffer.clear();
            }
        }
        bytes += buffer.len() as u64;
        file.write_all(&buffer).map_err(io)?;
        file.sync_all().map_err(io)?;
        fs::rename(&path_new, path(&self.folder, "snapshot", self.number)).map_err(io)?;
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

fn push_line<R: Serialize>(buffer: &mut Vec<u8>, record: &R) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    buffer.extend_from_slice(format!("{:08x} ", crc32fast::hash(&json)).as_bytes());
    buffer.extend_from_slice(&json);
    buffer.push(b'\n');
    Ok(())
}

/// Reads all lines of a file. Only the last file may end in the middle of a line, or in lines that never became whole.
fn read<R: DeserializeOwned>(
    path: &Path,
    last: bool,
    record: &mut impl FnMut(R),
) -> Result<u64, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let (mut line, mut number, mut good) = (Vec::new(), 0, 0_u64);
    let mut broken_at = None;
    loop {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line).map_err(io)?;
        if bytes == 0 {
            break;
        }
        number += 1;
        match (whole(&line), broken_at) {
            (Some(json), None) => {
                let foreign = |_| JournalError::Foreign { path: path.to_owned(), line: number };
                record(serde_json::from_slice(json).map_err(foreign)?);
                good += bytes as u64;
            }
            (None, None) => broken_at = Some(number),
            // Something whole follows something broken: that is damage, not a crash.
            (Some(_), Some(line)) => return Err(JournalError::Damaged { path: path.to_owned(), line }),
            (None, Some(_)) => {}
        }
    }
    match broken_at {
        None if last => reader.into_inner().sync_data().map_err(io).map(|()| good),
        None => Ok(good),
        Some(line) if !last => Err(JournalError::Damaged { path: path.to_owned(), line }),
        Some(line) => {
            tracing::warn!(path = %path.display(), line, "the journal was cut in the middle of a line; nobody was answered");
            let file = OpenOptions::new().write(true).open(path).map_err(io)?;
            file.set_len(good).map_err(io)?;
            file.sync_all().map_err(io)?;
            Ok(good)
        }
    }
}

/// The JSON of a line that is as it was written.
fn whole(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, json) = line.split_at_checked(9)?;
    let sum = u32::from_str_radix(str::from_utf8(sum).ok()?.strip_suffix(' ')?, 16).ok()?;
    (crc32fast::hash(json) == sum).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> (Journal, Vec<u64>) {
        let mut found = Vec::new();
        let journal = Journal::open(folder, |n: u64| found.push(n)).expect("readable");
        (journal, found)
    }

    #[test]
    fn what_was_appended_is_read_again_in_order_across_snapshots() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut journal, found) = open(folder.path());
        assert!(found.is_empty());
        journal.append(&[1_u64, 2]).expect("written");
        let snapshot = journal.rotate().expect("rotated");
        journal.append(&[3_u64]).expect("written");
        assert_eq!(open(folder.path()).1, [1, 2, 3], "a crash before the snapshot is written");
        snapshot.write([12_u64].into_iter()).expect("written");
        let (mut journal, found) = open(folder.path());
        assert_eq!(found, [12, 3]);
        journal.append(&[4_u64]).expect("written");
        assert_eq!(open(folder.path()).1, [12, 3, 4]);
    }

    #[test]
    fn a_cut_end_is_forgotten_and_damage_is_not() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut journal, _) = open(folder.path());
        journal.append(&[1_u64, 2, 3]).expect("written");
        let file = path(folder.path(), "journal", 1);
        let whole = fs::read(&file).expect("readable");
        for cut in 1..whole.len() {
            fs::write(&file, &whole[..cut]).expect("written");
            fs::remove_file(path(folder.path(), "journal", 2)).ok();
            let (_, found) = open(folder.path());
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(found, (1..=lines).collect::<Vec<_>>(), "cut at {cut}");
            fs::remove_file(path(folder.path(), "journal", 2)).expect("empty segment");
        }
        let mut damaged = whole;
        damaged[12] ^= 1;
        fs::write(&file, &damaged).expect("written");
        let error = Journal::open(folder.path(), |_: u64| ()).expect_err("damaged");
        assert!(matches!(error, JournalError::Damaged { line: 2, .. }), "{error}");
    }
}
