//! The rollback data of an attempt at files: each file before and after the change. It suffices to determine from the files alone
//! how far the attempt came, and to restore them.
//!
//! The encoding is one line of JSON, followed by the old contents of the files, one after the other.

use ade_domain::task::Digest;
use serde::{Deserialize, Serialize};

use super::parameters::{FileSpec, parent_dirs};
use super::tree::{ExistingFile, Tree, TreeError};
use crate::{Failure, Result};

const VERSION: u32 = 1;
/// Bytes of all existing files of one attempt.
pub(super) const MAX_TOTAL_BYTES: u64 = 32 * 1_048_576;
/// The permissions of a new file unless the task sets others.
const DEFAULT_MODE: u32 = 0o644;

fn invalid_snapshot(reason: impl std::fmt::Display) -> Failure {
    Failure::permanent(format!(
        "cannot read the rollback data of the files ({reason}); restore them from a backup"
    ))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NewFile {
    pub(super) hash: Digest,
    pub(super) mode: u32,
}

/// One file of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) path: String,
    /// None if the file is created.
    pub(super) before: Option<ExistingFile>,
    /// None if the file is deleted.
    pub(super) after: Option<NewFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    version: u32,
    pub(super) entries: Vec<Entry>,
    /// Directories to be created, outer ones first.
    pub(super) dirs: Vec<String>,
}

/// The present state of a file compared with its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    Before,
    After,
    /// Modified by somebody else.
    Modified,
}

impl Entry {
    /// Compares the specification of a file with its present state. `budget` is how many bytes may still be read.
    pub(super) fn plan(tree: &Tree, spec: &FileSpec, budget: &mut u64) -> Result<Self> {
        let before = tree.read(&spec.path)?;
        if before.is_none() && spec.content.is_none() {
            return Err(Failure::permanent(format!("cannot delete {:?}: it does not exist", spec.path)));
        }
        let bytes = before.as_ref().map_or(0, |before| before.bytes) as u64;
        *budget = budget.checked_sub(bytes).ok_or_else(|| {
            let limit = format!("{MAX_TOTAL_BYTES} bytes");
            Failure::permanent(format!("the existing files have more than {limit} together; split the task"))
        })?;
        let after = spec.content.as_ref().map(|content| {
            let hash = Digest::of_bytes(content.as_bytes());
            let present_mode = before.as_ref().map_or(DEFAULT_MODE, |before| {
                // New content must not inherit setuid and setgid.
                if before.hash == hash { before.mode } else { before.mode & 0o777 }
            });
            NewFile { hash, mode: spec.mode.unwrap_or(present_mode) }
        });
        Ok(Self { path: spec.path.clone(), before, after })
    }

    pub(super) fn is_change(&self) -> bool {
        let as_new = |before: &ExistingFile| NewFile { hash: before.hash, mode: before.mode };
        self.before.as_ref().map(as_new) != self.after
    }

    /// Compares the content, and the permissions only if the contents before and after are the same.
    pub(super) fn state(&self, tree: &Tree) -> Result<FileState, TreeError> {
        let existing = match tree.read(&self.path) {
            Ok(existing) => existing,
            Err(error @ TreeError::Io { .. }) => return Err(error),
            Err(_) => return Ok(FileState::Modified),
        };
        let (hash, mode) = existing.map(|existing| (existing.hash, existing.mode)).unzip();
        let (before, mode_before) = self.before.as_ref().map(|before| (before.hash, before.mode)).unzip();
        let after = self.after.map(|after| after.hash);
        Ok(match hash {
            hash if hash == before && (before != after || mode == mode_before) => FileState::Before,
            hash if hash == after => FileState::After,
            _ => FileState::Modified,
        })
    }

    /// Whether content and permissions are exactly as before.
    pub(super) fn is_unchanged(&self, tree: &Tree) -> Result<bool, TreeError> {
        let existing = tree.read(&self.path)?;
        let present = existing.map(|existing| (existing.hash, existing.mode));
        Ok(present == self.before.as_ref().map(|before| (before.hash, before.mode)))
    }
}

impl Snapshot {
    pub(super) fn take(tree: &Tree, specs: &[FileSpec]) -> Result<Self> {
        let (mut entries, mut dirs, mut budget) = (Vec::new(), Vec::new(), MAX_TOTAL_BYTES);
        for spec in specs {
            entries.push(Entry::plan(tree, spec, &mut budget)?);
            for dir in parent_dirs(&spec.path) {
                if !dirs.iter().any(|known| known == dir) && !tree.has_dir(dir)? {
                    dirs.push(dir.to_owned());
                }
            }
        }
        Ok(Self { version: VERSION, entries, dirs })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self).map_err(invalid_snapshot)?;
        bytes.push(b'\n');
        for before in self.entries.iter().filter_map(|entry| entry.before.as_ref()) {
            bytes.extend_from_slice(&before.content);
        }
        Ok(bytes)
    }

    /// Rejects incomplete and corrupt data.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let line_end = bytes.iter().position(|byte| *byte == b'\n');
        let (line, mut rest) = line_end
            .and_then(|end| Some((bytes.get(..end)?, bytes.get(end + 1..)?)))
            .ok_or_else(|| invalid_snapshot("it has no header"))?;
        let mut snapshot: Self = serde_json::from_slice(line).map_err(invalid_snapshot)?;
        if snapshot.version != VERSION {
            let reason = format!("its version is {}, expected {VERSION}", snapshot.version);
            return Err(invalid_snapshot(reason));
        }
        for before in snapshot.entries.iter_mut().filter_map(|entry| entry.before.as_mut()) {
            let content;
            (content, rest) =
                rest.split_at_checked(before.bytes).ok_or_else(|| invalid_snapshot("it is truncated"))?;
            if Digest::of_bytes(content) != before.hash {
                return Err(invalid_snapshot("it is corrupt"));
            }
            before.content = content.to_vec();
        }
        if rest.is_empty() { Ok(snapshot) } else { Err(invalid_snapshot("it has excess bytes")) }
    }
}
