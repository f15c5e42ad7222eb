//! The tree below a root, accessed only through open directories, one name at a time, and never through a symbolic link. A
//! directory that is replaced by a link between a check and a change cannot lead out of the root, because the checked directory
//! stays the one that is changed.
//!
//! A [`Tree`] holds the lock of its root until it is dropped.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ade_domain::task::Digest;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod,
    fchown, flock, fstat, fsync, mkdirat, open, openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::parameters::{ATTEMPTS_DIR, parent_dirs};
use crate::Failure;

/// Bytes of one existing file.
pub(super) const MAX_FILE_BYTES: u64 = 8 * 1_048_576;
const OPEN_DIR: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

type Result<T, E = TreeError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error("{0:?} is a symbolic link, which is never followed; name its target instead, if that is allowed")]
    Symlink(String),
    #[error("{0:?} is not a directory; move it away, or choose another path")]
    NotDirectory(String),
    #[error("{0:?} is not a regular file; only regular files can be changed")]
    NotRegular(String),
    #[error("{0:?} has more than {MAX_FILE_BYTES} bytes, which is too large for the rollback data")]
    TooLarge(String),
    #[error("cannot access {path:?}: {source}")]
    Io { path: String, source: io::Error },
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Io { .. } => Self::retryable(error.to_string()),
            _ => Self::permanent(error.to_string()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExistingFile {
    pub(super) hash: Digest,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) bytes: usize,
    #[serde(skip)]
    pub(super) content: Vec<u8>,
    #[serde(skip)]
    pub(super) has_hard_links: bool,
}

/// The permissions of a file that is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) mode: u32,
    /// User and group, set as far as this process may.
    pub(super) owner: Option<(u32, u32)>,
}

/// A root whose lock is held.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
}

fn io_error<E: Into<io::Error>>(path: &str) -> impl Fn(E) -> TreeError {
    move |error| TreeError::Io { path: path.to_owned(), source: error.into() }
}

fn not_directory(path: &str, is_symlink: bool) -> TreeError {
    if is_symlink { TreeError::Symlink(path.to_owned()) } else { TreeError::NotDirectory(path.to_owned()) }
}

impl Tree {
    /// None if others hold the lock.
    pub(super) fn try_lock(root: &str, operation: FlockOperation) -> Result<Option<Self>> {
        let fd = match open(root, OPEN_DIR, Mode::empty()) {
            // With DIRECTORY and NOFOLLOW a symbolic link causes either error.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let is_symlink = std::fs::symlink_metadata(root).is_ok_and(|metadata| metadata.is_symlink());
                return Err(not_directory(root, is_symlink));
            }
            opened => opened.map_err(io_error(root))?,
        };
        match flock(&fd, operation) {
            Ok(()) => Ok(Some(Self { root: fd })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(io_error(root)(errno)),
        }
    }

    /// Opens a direct subdirectory. A single name can lead elsewhere only as a symbolic link, which all of these flags reject.
    fn open_subdir(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(dir, name, OPEN_DIR, Mode::empty(), resolve) {
            // Some kernels and sandboxes do not support openat2.
            Err(Errno::NOSYS | Errno::PERM) => openat(dir, name, OPEN_DIR, Mode::empty()),
            opened => opened,
        }
    }

    /// Opens a directory, if it exists. The empty path is the root.
    fn open_dir(&self, path: &str) -> Result<Option<OwnedFd>> {
        let mut dir = self.root.try_clone().map_err(io_error(path))?;
        let prefixes = parent_dirs(path).chain(Some(path).filter(|path| !path.is_empty()));
        for (prefix, name) in prefixes.zip(path.split('/')) {
            dir = match Self::open_subdir(dir.as_fd(), name) {
                Ok(subdir) => subdir,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let stat = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
                    let is_symlink =
                        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
                    return Err(not_directory(prefix, is_symlink));
                }
                Err(errno) => return Err(io_error(prefix)(errno)),
            };
        }
        Ok(Some(dir))
    }

    /// Calls `operation` with the directory that contains a path, and with the last name of the path.
    fn in_parent<T>(&self, path: &str, operation: impl FnOnce(&OwnedFd, &str) -> io::Result<T>) -> Result<T> {
        let (parent, name) = split_path(path);
        let dir = self.open_dir(parent)?.ok_or_else(|| io_error(path)(Errno::NOENT))?;
        operation(&dir, name).map_err(io_error(path))
    }

    pub(super) fn has_dir(&self, path: &str) -> Result<bool> {
        self.open_dir(path).map(|dir| dir.is_some())
    }

    /// Reads a file, if it exists.
    pub(super) fn read(&self, path: &str) -> Result<Option<ExistingFile>> {
        let (parent, name) = split_path(path);
        let Some(dir) = self.open_dir(parent)? else { return Ok(None) };
        // The type is checked before opening, because opening a device may have effects.
        match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => check_regular(&stat.map_err(io_error(path))?, path)?,
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(TreeError::Symlink(path.to_owned())),
            opened => opened.map_err(io_error(path))?,
        };
        let stat = fstat(&file).map_err(io_error(path))?;
        check_regular(&stat, path)?;
        let mut content = Vec::new();
        let read = File::from(file).take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
        if read.map_err(io_error(path))? as u64 > MAX_FILE_BYTES {
            return Err(TreeError::TooLarge(path.to_owned()));
        }
        Ok(Some(ExistingFile {
            hash: Digest::of_bytes(&content),
            mode: stat.st_mode & 0o7777,
            owner: stat.st_uid,
            group: stat.st_gid,
            bytes: content.len(),
            content,
            has_hard_links: stat.st_nlink > 1,
        }))
    }

    /// Creates one directory, which must not exist.
    pub(super) fn create_dir(&self, path: &str) -> Result<()> {
        self.in_parent(path, |dir, name| Ok(mkdirat(dir, name, Mode::from_raw_mode(0o755))?))
    }

    /// Removes a directory if it exists and is empty.
    pub(super) fn remove_dir(&self, path: &str) -> Result<()> {
        ignore_missing(self.in_parent(path, |dir, name| match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // Others use it, or have replaced it.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            removed => Ok(removed?),
        }))
    }

    /// Writes and syncs a temporary file in the directory of `path`. An existing file of this name is a leftover of ours.
    pub(super) fn write_temp(
        &self,
        path: &str,
        temp_name: &str,
        content: &[u8],
        access: Access,
    ) -> Result<()> {
        self.in_parent(path, |dir, _| {
            // If this fails, so does the creation.
            let _ = unlinkat(dir, temp_name, AtFlags::empty());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(dir, temp_name, flags, Mode::from_raw_mode(0o600))?);
            file.write_all(content)?;
            if let Some((owner, group)) = access.owner {
                let stat = fstat(&file)?;
                if (stat.st_uid, stat.st_gid) != (owner, group) {
                    // Without the permission to change it the owner stays; the preview has warned about that.
                    let _ = fchown(&file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
                }
            }
            fchmod(&file, Mode::from_raw_mode(access.mode))?;
            file.sync_all()
        })
    }

    /// Renames a temporary file to its final name. If it `is_new`, it must not replace an existing file.
    pub(super) fn rename_temp(&self, path: &str, temp_name: &str, is_new: bool) -> Result<()> {
        self.in_parent(path, |dir, name| {
            if is_new {
                match renameat_with(dir, temp_name, dir, name, RenameFlags::NOREPLACE) {
                    // Some file systems do not support NOREPLACE.
                    Err(Errno::INVAL | Errno::NOSYS) => {}
                    renamed => return Ok(renamed?),
                }
            }
            Ok(renameat(dir, temp_name, dir, name)?)
        })
    }

    /// Removes a file, if it exists.
    pub(super) fn remove_file(&self, path: &str) -> Result<()> {
        ignore_missing(self.in_parent(path, |dir, name| Ok(unlinkat(dir, name, AtFlags::empty())?)))
    }

    /// Removes a temporary file in the directory of `path`, if it exists.
    pub(super) fn remove_temp(&self, path: &str, temp_name: &str) -> Result<()> {
        match self.in_parent(path, |dir, _| Ok(unlinkat(dir, temp_name, AtFlags::empty())?)) {
            // A replaced directory contains no files of ours.
            Err(TreeError::Symlink(_) | TreeError::NotDirectory(_)) => Ok(()),
            removed => ignore_missing(removed),
        }
    }

    /// Makes the names in the directory of a path durable, if it exists.
    pub(super) fn sync_parent(&self, path: &str) -> Result<()> {
        ignore_missing(self.in_parent(path, |dir, _| Ok(fsync(dir)?)))
    }

    /// Lists the registered attempts, and whether each is in progress.
    fn attempts(&self) -> Result<Vec<(String, bool)>> {
        let Some(dir) = self.open_dir(ATTEMPTS_DIR)? else { return Ok(Vec::new()) };
        let list = || {
            let mut attempts = Vec::new();
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name == "." || name == ".." {
                    continue;
                }
                match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => {}
                    stat => attempts.push((name.to_owned(), stat?.st_size > 0)),
                }
            }
            Ok::<_, Errno>(attempts)
        };
        list().map_err(io_error(ATTEMPTS_DIR))
    }

    /// Registers an attempt, and unregisters those that are obsolete.
    pub(super) fn register(&self, key: &str, is_obsolete: impl Fn(&str) -> bool) -> Result<()> {
        for (other, _) in self.attempts()?.iter().filter(|(other, _)| is_obsolete(other)) {
            self.remove_attempt(other)?;
        }
        self.write_attempt(key, b"")
    }

    /// Marks an attempt as in progress. Other attempts must wait until it is unregistered.
    pub(super) fn mark_in_progress(&self, key: &str) -> Result<()> {
        self.write_attempt(key, b"in progress\n")
    }

    fn write_attempt(&self, key: &str, text: &[u8]) -> Result<()> {
        match mkdirat(&self.root, ATTEMPTS_DIR, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(io_error(ATTEMPTS_DIR)(errno)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.in_parent(&format!("{ATTEMPTS_DIR}/{key}"), |dir, name| {
            let mut file = File::from(openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
            if text.is_empty() {
                return Ok(());
            }
            file.write_all(text)?;
            file.sync_all()
        })
    }

    /// Whether an attempt is registered and not in progress.
    pub(super) fn is_registered(&self, key: &str) -> Result<bool> {
        Ok(self.attempts()?.iter().any(|(other, is_in_progress)| other == key && !is_in_progress))
    }

    /// Finds an attempt in progress that is not one of the caller's own.
    pub(super) fn find_in_progress(&self, is_own: impl Fn(&str) -> bool) -> Result<Option<String>> {
        let mut attempts = self.attempts()?.into_iter();
        Ok(attempts.find(|(key, is_in_progress)| *is_in_progress && !is_own(key)).map(|(key, _)| key))
    }

    /// Unregisters an attempt without the lock of the root, and therefore keeps the directory.
    pub(super) fn unregister_without_lock(root: &str, key: &str) -> Result<()> {
        Self { root: open(root, OPEN_DIR, Mode::empty()).map_err(io_error(root))? }.remove_attempt(key)
    }

    /// Unregisters an attempt, and removes the directory with the last one.
    pub(super) fn unregister(&self, key: &str) -> Result<()> {
        self.remove_attempt(key)?;
        self.remove_dir(ATTEMPTS_DIR)
    }

    fn remove_attempt(&self, key: &str) -> Result<()> {
        self.remove_file(&format!("{ATTEMPTS_DIR}/{key}"))
    }
}

/// A missing file or directory is no error.
fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(TreeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn check_regular(stat: &Stat, path: &str) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(TreeError::Symlink(path.to_owned())),
        _ => Err(TreeError::NotRegular(path.to_owned())),
    }
}

/// The path of the parent directory, and the name in it. The empty path is the root.
fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
