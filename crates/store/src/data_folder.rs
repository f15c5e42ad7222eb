//! The data folder: readable by its owner only, and used by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{0} is used by another ade process; stop it, or choose another folder with --data")]
    InUse(PathBuf),
    #[error("cannot use {path}: {source}")]
    Unusable { path: PathBuf, source: io::Error },
}

/// A folder that belongs to this process until the value is dropped.
#[derive(Debug)]
pub struct DataFolder {
    _lock_file: File,
}

impl DataFolder {
    /// Creates the folder if it is missing, and locks it.
    pub fn lock(data: &Path) -> Result<Self, FolderError> {
        let unusable = |source| FolderError::Unusable { path: data.to_owned(), source };
        create_private_folder(data).map_err(unusable)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(data.join("in-use"))
            .map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _lock_file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FolderError::InUse(data.to_owned())),
            Err(errno) => Err(unusable(errno.into())),
        }
    }
}

/// Creates a folder that only its owner can read, because it contains tokens. An existing folder keeps its permissions.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
