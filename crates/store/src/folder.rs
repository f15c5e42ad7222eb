//! The data folder: for its owner's eyes only, and for one process at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process uses it.
    #[error("{0} is used by another ade process; stop it, or choose another folder with --data")]
    InUse(PathBuf),
    /// It cannot be made, or not be written to.
    #[error("cannot use {path}: {source}")]
    Unusable {
        /// Which folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A folder that belongs to this process until this is dropped.
#[derive(Debug)]
pub struct DataFolder {
    _in_use: File,
}

impl DataFolder {
    /// Makes the folder and takes it.
    pub fn claim(data: &Path) -> Result<Self, FolderError> {
        let unusable = |source| FolderError::Unusable { path: data.to_owned(), source };
        private_folder(data).map_err(unusable)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(data.join("in-use"))
            .map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _in_use: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FolderError::InUse(data.to_owned())),
            Err(errno) => Err(unusable(errno.into())),
        }
    }
}

/// Makes a folder for its owner only: purposes and tokens are nobody else's business. One that is there stays as it is.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
