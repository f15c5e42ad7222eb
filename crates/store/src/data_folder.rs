//! The data folder: only its owner can use it, and one process at a time. A folder or file that others can read is closed to them,
//! with a warning.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The file in a data folder that names the address of its server.
pub const ADDRESS_FILE: &str = "address";
/// Locked while a process uses the folder.
const LOCK_FILE: &str = "in-use";
const OTHERS: u32 = 0o077;
const ALL: u32 = 0o777;
/// The folders in the data folder that ADE writes itself. Others, such as those of the demo, keep their permissions.
const OWN_FOLDERS: [&str; 2] = ["blobs", "coordination"];

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
    /// Creates the folder if it is missing, closes it to others, and locks it. The address of a server that was killed is removed.
    pub fn lock(data: &Path) -> Result<Self, FolderError> {
        let unusable = |source| FolderError::Unusable { path: data.to_owned(), source };
        close_content(data).map_err(unusable)?;
        let file = private_file().truncate(false).open(data.join(LOCK_FILE)).map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FolderError::InUse(data.to_owned())),
            Err(errno) => return Err(unusable(errno.into())),
        }
        match fs::remove_file(data.join(ADDRESS_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(error)),
            _ => Ok(Self { _lock_file: file }),
        }
    }

    /// Whether a process uses the folder now.
    pub fn is_in_use(data: &Path) -> io::Result<bool> {
        let file = match File::open(data.join(LOCK_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        // Unlocked when the file is closed.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Creates a folder that only its owner can use. An existing one is closed to others; fails if that is not possible.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    close_to_others(path).map(drop)
}

/// Options for a file that is created if it is missing, readable by its owner only.
#[must_use]
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).mode(0o600);
    options
}

/// Closes a folder and the files in it. Below a folder that was closed already, others cannot have reached anything.
fn close_content(data: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(data)?;
    let was_open = close_to_others(data)?;
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let is_own_folder = OWN_FOLDERS.iter().any(|name| entry.file_name() == *name);
        match entry.file_type()? {
            kind if kind.is_file() => close_to_others(&entry.path()).map(drop)?,
            kind if kind.is_dir() && is_own_folder && was_open => close_all_below(&entry.path())?,
            _ => {}
        }
    }
    Ok(())
}

fn close_all_below(folder: &Path) -> io::Result<()> {
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        close_to_others(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => pending.push(entry.path()),
                kind if kind.is_file() => close_to_others(&entry.path()).map(drop)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Takes the permissions of everybody but the owner away; false if there were none.
pub(crate) fn close_to_others(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.permissions().mode() & ALL;
    if mode & OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS))?;
    tracing::warn!(
        "{} was open to other users (mode {mode:03o}); closed it. Replace its secrets if others may have read them",
        path.display()
    );
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("exists").permissions().mode() & ALL
    }

    #[test]
    fn closes_an_open_folder_and_its_files() {
        let parent = tempfile::tempdir().expect("a folder");
        let data = parent.path().join("data");
        for folder in ["data/blobs/archives", "data/playground"] {
            fs::create_dir_all(parent.path().join(folder)).expect("created");
        }
        for file in ["data/admin-token", "data/blobs/archives/one", "data/playground/app.conf"] {
            fs::write(parent.path().join(file), "x").expect("written");
            fs::set_permissions(parent.path().join(file), Permissions::from_mode(0o644)).expect("changed");
        }
        fs::set_permissions(&data, Permissions::from_mode(0o755)).expect("changed");
        fs::write(data.join(ADDRESS_FILE), "http://127.0.0.1:8300").expect("written");
        assert!(!DataFolder::is_in_use(&data).expect("readable"));
        let locked = DataFolder::lock(&data).expect("locked");
        assert!(!data.join(ADDRESS_FILE).exists(), "that of a server that was killed");
        assert!(DataFolder::is_in_use(&data).expect("readable"));
        assert_eq!(
            (mode(&data), mode(&data.join("admin-token")), mode(&data.join("in-use"))),
            (0o700, 0o600, 0o600)
        );
        assert_eq!((mode(&data.join("blobs")), mode(&data.join("blobs/archives/one"))), (0o700, 0o600));
        assert_eq!(mode(&data.join("playground/app.conf")), 0o644, "what tasks change keeps its permissions");
        assert!(matches!(DataFolder::lock(&data), Err(FolderError::InUse(_))));
        drop(locked);
        assert!(!DataFolder::is_in_use(&data).expect("readable"));
        fs::set_permissions(data.join("admin-token"), Permissions::from_mode(0o640)).expect("changed");
        DataFolder::lock(&data).expect("locked");
        assert_eq!(mode(&data.join("admin-token")), 0o600, "also in a folder that is closed");
    }
}
