//! The file of checkpoints in the data folder of a server: outside of the database, so that somebody who can only write to the database
//! cannot change it. Copy it elsewhere for the case that somebody can do both.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::checkpoints::{AuditLogError, Checkpoint, Signer};

const FILE: &str = "audit-checkpoints.ndjson";

#[derive(Debug, Clone)]
pub struct CheckpointFile {
    path: PathBuf,
}

impl CheckpointFile {
    #[must_use]
    pub fn in_folder(data: &Path) -> Self {
        Self { path: data.join(FILE) }
    }

    /// The last checkpoint of this installation. The file of another one, or of a secret that was dropped, proves nothing.
    pub fn last(&self, signer: &Signer) -> Result<Option<Checkpoint>, AuditLogError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) else { return Ok(None) };
        let last: Checkpoint = serde_json::from_str(line).map_err(io::Error::other)?;
        if !last.is_signed() {
            return Err(AuditLogError::InvalidSignature);
        }
        Ok(Some(last).filter(|last| signer.trusts(last)))
    }

    pub fn append(&self, checkpoint: &Checkpoint) -> Result<(), AuditLogError> {
        let line = serde_json::to_string(checkpoint).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        writeln!(file, "{line}")?;
        file.sync_all()?;
        Ok(())
    }
}
