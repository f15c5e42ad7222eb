//! Data folders of the embedded backend for tests: opened, copied while in use, truncated.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ade_domain::Moment;
use ade_store::EmbeddedCoordination;
use ade_store::embedded::{EmbeddedOpenError, EmbeddedOptions};
use ade_testkit::{ManualClock, SeededRng};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp())
}

pub(crate) fn open(
    folder: &Path,
    options: EmbeddedOptions,
    clock: &ManualClock,
) -> Result<EmbeddedCoordination, EmbeddedOpenError> {
    EmbeddedCoordination::open(folder, options, Arc::new(clock.clone()))
}

/// A dropped backend may still write a snapshot; the folder is unlocked when that is done.
pub(crate) fn wait_until_closed(folder: &Path) {
    let file = File::open(folder.join("in-use")).expect("lock file");
    flock(&file, FlockOperation::LockExclusive).expect("unlocked");
}

fn data_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("coordination")).expect("readable");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

pub(crate) fn has_snapshot(folder: &Path) -> bool {
    data_files(folder).iter().any(|file| file.to_string_lossy().contains("snapshot-"))
}

/// What a kill -9 at one moment would leave. Copied again if files appeared or vanished meanwhile.
pub(crate) fn copy(folder: &Path) -> TempDir {
    loop {
        let (copied, before) = (self::folder(), data_files(folder));
        let target = copied.path().join("coordination");
        fs::create_dir(&target).expect("created");
        let is_complete =
            before.iter().all(|file| fs::copy(file, target.join(file.file_name().expect("named"))).is_ok());
        if is_complete && data_files(folder) == before {
            return copied;
        }
    }
}

/// Truncates the last segment at a random position, like an incomplete write.
pub(crate) fn truncate_last_segment(folder: &Path, rng: &mut SeededRng) {
    let is_segment = |file: &PathBuf| file.to_string_lossy().contains("journal-");
    let last = data_files(folder).into_iter().rfind(is_segment).expect("a segment");
    let file = File::options().write(true).open(&last).expect("writable");
    let length = file.metadata().expect("readable").len();
    file.set_len(rng.below(length + 1)).expect("truncated");
}
