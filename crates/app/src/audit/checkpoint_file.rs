//! The file of checkpoints in the data folder of a server: outside of the database, so that somebody who can only write to the database
//! cannot change it. Copy it elsewhere for the case that somebody can do both.
//!
//! A crash or a full disk may leave an incomplete last line. It is ignored, and removed by the next write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::checkpoints::{AuditLogError, Checkpoint, Signer};

const FILE: &str = "audit-checkpoints.ndjson";
/// How much of the end of the file is read: far more than a line.
const TAIL_BYTES: u64 = 65_536;

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
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Tail { last_line: Some(line), .. } = Tail::read(&mut file)? else { return Ok(None) };
        let last: Checkpoint = serde_json::from_slice(&line).map_err(io::Error::other)?;
        if !last.is_signed() {
            return Err(AuditLogError::InvalidSignature);
        }
        Ok(Some(last).filter(|last| signer.trusts(last)))
    }

    pub fn append(&self, checkpoint: &Checkpoint) -> Result<(), AuditLogError> {
        let line = serde_json::to_string(checkpoint).map_err(io::Error::other)?;
        let mut file =
            OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&self.path)?;
        let Tail { len, complete_len, .. } = Tail::read(&mut file)?;
        if complete_len < len {
            let (file_name, bytes) = (self.path.display(), len - complete_len);
            tracing::warn!(%file_name, bytes, "removing an incomplete checkpoint, which a crash or a full disk left");
            file.set_len(complete_len)?;
        }
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()?;
        Ok(())
    }
}

/// The end of the file.
struct Tail {
    /// The last line that is complete and not empty.
    last_line: Option<Vec<u8>>,
    len: u64,
    /// The length without an incomplete last line.
    complete_len: u64,
}

impl Tail {
    fn read(file: &mut File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let start = file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        let lines = bytes.iter().rposition(|byte| *byte == b'\n').and_then(|end| bytes.get(..=end));
        if lines.is_none() && start > 0 {
            return Err(io::Error::other("the last line is too long to be a checkpoint"));
        }
        let lines = lines.unwrap_or_default();
        let last_line = lines.rsplit(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        Ok(Self { last_line: last_line.map(<[u8]>::to_vec), len, complete_len: start + lines.len() as u64 })
    }
}
