//! The state file of an audit: how far each server was read, and what was counted there.
//!
//! Invariants: the file is replaced as a whole, so that an interruption leaves an earlier state; cursor and counts of a server
//! belong together, so that a resumed audit counts nothing twice.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::AuditError;
use super::stats::Counts;

/// How far a server was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeState {
    /// A cursor is valid for one run of a server only.
    pub(super) run_id: Option<String>,
    pub(super) cursor: u64,
    pub(super) is_done: bool,
    pub(super) counts: Counts,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct AuditState {
    /// Of the catalogs and options that the counts depend on.
    fingerprint: String,
    nodes: BTreeMap<String, NodeState>,
}

/// Saves the state of an audit from time to time.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: Option<PathBuf>,
    interval: Duration,
    state: Mutex<(AuditState, Instant)>,
}

impl Checkpoint {
    /// Reads the state of an interrupted audit, if there is one.
    pub(super) fn open(
        path: Option<PathBuf>,
        interval: Duration,
        fingerprint: String,
    ) -> Result<Self, AuditError> {
        let fresh = AuditState { fingerprint, nodes: BTreeMap::new() };
        let state = match path.as_ref().map(|path| (path, fs::read_to_string(path))) {
            None => fresh,
            Some((path, Ok(text))) => {
                let state: AuditState = serde_json::from_str(&text)
                    .map_err(|_| AuditError::ForeignState { path: path.clone() })?;
                if state.fingerprint != fresh.fingerprint {
                    return Err(AuditError::ForeignState { path: path.clone() });
                }
                state
            }
            Some((_, Err(error))) if error.kind() == io::ErrorKind::NotFound => fresh,
            Some((path, Err(error))) => return Err(AuditError::state(path, &error)),
        };
        let checkpoint = Self { path, interval, state: Mutex::new((state, Instant::now())) };
        // A file that cannot be written is noticed now, not when it is needed.
        checkpoint.save(&checkpoint.locked().0)?;
        Ok(checkpoint)
    }

    fn locked(&self) -> MutexGuard<'_, (AuditState, Instant)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a server, unless it has restarted since.
    pub(super) fn resume(&self, node: &str, run_id: Option<&str>, classes: usize) -> NodeState {
        let known = self.locked().0.nodes.get(node).cloned();
        let same_run =
            known.filter(|state| state.is_done || (run_id.is_some() && state.run_id.as_deref() == run_id));
        same_run.unwrap_or_else(|| NodeState {
            run_id: run_id.map(str::to_owned),
            counts: Counts::new(classes),
            ..NodeState::default()
        })
    }

    /// Takes the state of a server after a batch; saves it if enough time has passed.
    pub(super) fn publish(&self, node: &str, state: &NodeState) -> Result<(), AuditError> {
        let mut locked = self.locked();
        if self.path.is_none() || (locked.1.elapsed() < self.interval && !state.is_done) {
            return Ok(());
        }
        locked.0.nodes.insert(node.to_owned(), state.clone());
        self.save(&locked.0)?;
        locked.1 = Instant::now();
        Ok(())
    }

    fn save(&self, state: &AuditState) -> Result<(), AuditError> {
        let Some(path) = &self.path else { return Ok(()) };
        let text = serde_json::to_vec(state).map_err(io::Error::from);
        text.and_then(|text| replace_file(path, &text)).map_err(|error| AuditError::state(path, &error))
    }

    /// Removes the file: the audit is complete.
    pub(super) fn finish(&self) -> Result<(), AuditError> {
        let Some(path) = &self.path else { return Ok(()) };
        fs::remove_file(path).map_err(|error| AuditError::state(path, &error))
    }
}

/// Writes a file so that it is always either the old or the new one.
pub(super) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
