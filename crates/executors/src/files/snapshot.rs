//! The rollback data of an attempt at files: each file before and after the change. It suffices to determine from the files alone
//! how far the attempt came, and to restore them.
//!
//! The encoding is one line of JSON, followed by the old contents of the files, one after the other.

use ade_domain::task::Digest;
use serde::{Deserialize, Serialize};

use super::parameters::{FileSpec, parent_dirs};
use super::tree::{ExistingFile, Tree, TreeError};

const VERSION: u32 = 1;
/// Bytes of all existing files of one attempt.
const MAX_TOTAL_BYTES: u64 = 32 * 1_048_576;
/// The permissions of a new file unless the task sets others.
const DEFAULT_MODE: u32 = 0o644;

#[derive(Debug, thiserror::Error)]
#[error("cannot read the rollback data of the files ({0}); restore them from a backup")]
pub(super) struct InvalidSnapshot(String);

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

/// How many bytes may still be read.
#[derive(Debug)]
pub(super) struct ReadBudget(u64);

impl Default for ReadBudget {
    fn default() -> Self {
        Self(MAX_TOTAL_BYTES)
    }
}

impl ReadBudget {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes as u64).ok_or_else(|| {
            format!("the existing files have more than {MAX_TOTAL_BYTES} bytes together; split the task")
        })?;
        Ok(())
    }
}

impl Entry {
    /// Compares the specification of a file with its present state.
    pub(super) fn plan(tree: &Tree, spec: &FileSpec, budget: &mut ReadBudget) -> Result<Self, String> {
        let before = tree.read(&spec.path).map_err(|error| error.to_string())?;
        if before.is_none() && spec.content.is_none() {
            return Err(format!("cannot delete {:?}: it does not exist", spec.path));
        }
        budget.take(before.as_ref().map_or(0, |before| before.bytes))?;
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
        let hash = existing.as_ref().map(|existing| existing.hash);
        let before = self.before.as_ref().map(|before| before.hash);
        let after = self.after.map(|after| after.hash);
        let mode = existing.map(|existing| existing.mode);
        Ok(if before == after && hash == before {
            let is_before = mode == self.before.as_ref().map(|before| before.mode);
            if is_before { FileState::Before } else { FileState::After }
        } else if hash == before {
            FileState::Before
        } else if hash == after {
            FileState::After
        } else {
            FileState::Modified
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
    pub(super) fn take(tree: &Tree, specs: &[FileSpec]) -> Result<Self, String> {
        let (mut entries, mut dirs, mut budget) = (Vec::new(), Vec::new(), ReadBudget::default());
        for spec in specs {
            entries.push(Entry::plan(tree, spec, &mut budget)?);
            for dir in parent_dirs(&spec.path) {
                let is_known = dirs.iter().any(|known| known == dir);
                if !is_known && !tree.has_dir(dir).map_err(|error| error.to_string())? {
                    dirs.push(dir.to_owned());
                }
            }
        }
        Ok(Self { version: VERSION, entries, dirs })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, InvalidSnapshot> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| InvalidSnapshot(error.to_string()))?;
        bytes.push(b'\n');
        for before in self.entries.iter().filter_map(|entry| entry.before.as_ref()) {
            bytes.extend_from_slice(&before.content);
        }
        Ok(bytes)
    }

    /// Rejects incomplete and corrupt data.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidSnapshot> {
        let invalid = |reason: &str| InvalidSnapshot(reason.to_owned());
        let line_end =
            bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| invalid("it has no header"))?;
        let (line, mut rest) = bytes.split_at(line_end);
        let mut snapshot: Self =
            serde_json::from_slice(line).map_err(|error| InvalidSnapshot(error.to_string()))?;
        if snapshot.version != VERSION {
            return Err(InvalidSnapshot(format!("its version is {}, expected {VERSION}", snapshot.version)));
        }
        rest = rest.get(1..).unwrap_or_default();
        for before in snapshot.entries.iter_mut().filter_map(|entry| entry.before.as_mut()) {
            let (content, remaining) =
                rest.split_at_checked(before.bytes).ok_or_else(|| invalid("it is truncated"))?;
            if Digest::of_bytes(content) != before.hash {
                return Err(invalid("it is corrupt"));
            }
            before.content = content.to_vec();
            rest = remaining;
        }
        if rest.is_empty() { Ok(snapshot) } else { Err(invalid("it has excess bytes")) }
    }
}
