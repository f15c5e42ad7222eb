//! Folders of the backend in the hands of a test: opened, copied while in use, cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ade_domain::Moment;
use ade_store::EmbeddedCoordination;
use ade_store::embedded::{OpenError, Options};
use ade_testkit::{Dice, ManualClock};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("folder")
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp())
}

pub(crate) fn open(
    folder: &Path,
    options: Options,
    clock: &ManualClock,
) -> Result<EmbeddedCoordination, OpenError> {
    EmbeddedCoordination::open(folder, options, Arc::new(clock.clone()))
}

/// A snapshot may still be written by a backend that was dropped; the folder is free when it is done.
pub(crate) fn wait_until_closed(folder: &Path) {
    let file = File::open(folder.join("in-use")).expect("used before");
    flock(&file, FlockOperation::LockExclusive).expect("free in the end");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("coordination")).expect("readable");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

pub(crate) fn has_snapshot(folder: &Path) -> bool {
    files(folder).iter().any(|file| file.to_string_lossy().contains("snapshot-"))
}

/// What a kill -9 would leave at one moment: copied again if files came or went meanwhile.
pub(crate) fn copy(folder: &Path) -> TempDir {
    loop {
        let (copied, before) = (self::folder(), files(folder));
        let to = copied.path().join("coordination");
        fs::create_dir(&to).expect("created");
        let all = before.iter().all(|file| fs::copy(file, to.join(file.file_name().expect("named"))).is_ok());
        if all && files(folder) == before {
            return copied;
        }
    }
}

/// Cuts the last segment somewhere, as if its last write had not come to its end.
pub(crate) fn cut_last_segment(folder: &Path, dice: &mut Dice) {
    let is_segment = |file: &PathBuf| file.to_string_lossy().contains("journal-");
    let last = files(folder).into_iter().rfind(is_segment).expect("a segment");
    let file = File::options().write(true).open(&last).expect("writable");
    let length = file.metadata().expect("readable").len();
    file.set_len(dice.below(length + 1)).expect("cut");
}
