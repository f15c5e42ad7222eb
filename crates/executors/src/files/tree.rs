//! The tree below a root, reached by open folders only: one name at a time, never through a symbolic link. What is exchanged for
//! a link between a look and a change cannot lead out of the root, because the folder that was looked into stays the one that is
//! changed.
//!
//! Whoever has a [`Tree`] holds the lock of its root until it is dropped.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ade_domain::task::Digest;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, fchown, flock,
    fstat, fsync, mkdirat, open, openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::parameters::folders;
use crate::Failure;

/// Bytes of one file that is there already.
pub(super) const MOST_OF_ONE: u64 = 8 * 1_048_576;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// Why something in the tree cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error(
        "{0:?} is a symbolic link, and links are never followed; name the place where it leads, if that is allowed"
    )]
    Link(String),
    #[error("{0:?} is not a folder; move it away, or choose another path")]
    NotFolder(String),
    #[error("{0:?} is not a regular file; only those are changed")]
    NotFile(String),
    #[error("{0:?} has more than {MOST_OF_ONE} bytes, which is too much to keep for a way back")]
    TooBig(String),
    #[error("{path:?} cannot be used: {source}")]
    Io { path: String, source: io::Error },
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        match error {
            // Another time there may be room, or whatever is missing.
            TreeError::Io { .. } => Self::not_now(error.to_string()),
            _ => Self::refused(error.to_string()),
        }
    }
}

/// How the lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// Others may look too.
    Shared,
    /// Nobody else.
    Exclusive,
}

/// A file that is there.
#[derive(Debug)]
pub(super) struct Present {
    pub(super) content: Vec<u8>,
    pub(super) hash: Digest,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// It has hard links.
    pub(super) has_other_names: bool,
}

/// How a file is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) mode: u32,
    /// Its owner and group, as far as we may give it away.
    pub(super) owner: Option<(u32, u32)>,
}

/// A root whose lock is held.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
}

fn io_error(path: &str) -> impl Fn(Errno) -> TreeError {
    move |errno| TreeError::Io { path: path.to_owned(), source: errno.into() }
}

impl Tree {
    /// The tree, if nobody holds its lock.
    pub(super) fn try_lock(root: &str, lock: Lock) -> Result<Option<Self>, TreeError> {
        let fd = match open(root, FOLDER, Mode::empty()) {
            // What has both flags tells a link by either error.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let is_link = std::fs::symlink_metadata(root).is_ok_and(|about| about.is_symlink());
                let path = root.to_owned();
                return Err(if is_link { TreeError::Link(path) } else { TreeError::NotFolder(path) });
            }
            opened => opened.map_err(io_error(root))?,
        };
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&fd, operation) {
            Ok(()) => Ok(Some(Self { root: fd })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(io_error(root)(errno)),
        }
    }

    /// One step down. A single name cannot lead elsewhere unless it is a link, and that is refused by all of these flags.
    fn step(folder: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(folder, name, FOLDER, Mode::empty(), resolve) {
            // Kernels and sandboxes that do not know it.
            Err(Errno::NOSYS | Errno::PERM) => openat(folder, name, FOLDER, Mode::empty()),
            opened => opened,
        }
    }

    /// A folder, if it is there; the root itself has no name.
    fn folder(&self, path: &str) -> Result<Option<OwnedFd>, TreeError> {
        let mut here =
            self.root.try_clone().map_err(|source| TreeError::Io { path: path.to_owned(), source })?;
        let outer = folders(path).chain(Some(path).filter(|path| !path.is_empty()));
        for (part, name) in outer.zip(path.split('/')) {
            here = match Self::step(here.as_fd(), name) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let about = statat(&here, name, AtFlags::SYMLINK_NOFOLLOW);
                    let is_link = about.is_ok_and(|about| file_type(&about) == FileType::Symlink);
                    let part = part.to_owned();
                    return Err(if is_link { TreeError::Link(part) } else { TreeError::NotFolder(part) });
                }
                Err(errno) => return Err(io_error(part)(errno)),
            };
        }
        Ok(Some(here))
    }

    /// The folder that a path lies in, which must be there.
    fn folder_of(&self, path: &str) -> Result<OwnedFd, TreeError> {
        self.folder(parent(path))?.ok_or_else(|| io_error(path)(Errno::NOENT))
    }

    /// Whether there is a folder.
    pub(super) fn has_folder(&self, path: &str) -> Result<bool, TreeError> {
        self.folder(path).map(|folder| folder.is_some())
    }

    /// A file as it is now, if it is there, and not longer than what may still be read.
    pub(super) fn look(&self, path: &str) -> Result<Option<Present>, TreeError> {
        let Some(folder) = self.folder(parent(path))? else { return Ok(None) };
        let fail = io_error(path);
        // Looked at before it is opened: opening a device may do something.
        match statat(&folder, name(path), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
            Ok(about) => regular(&about, path)?,
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&folder, name(path), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(TreeError::Link(path.to_owned())),
            opened => opened.map_err(&fail)?,
        };
        let about = fstat(&file).map_err(&fail)?;
        regular(&about, path)?;
        let mut content = Vec::new();
        let read = File::from(file).take(MOST_OF_ONE + 1).read_to_end(&mut content);
        if read.map_err(|source| TreeError::Io { path: path.to_owned(), source })? as u64 > MOST_OF_ONE {
            return Err(TreeError::TooBig(path.to_owned()));
        }
        Ok(Some(Present {
            hash: Digest::of_bytes(&content),
            content,
            mode: about.st_mode & 0o7777,
            owner: about.st_uid,
            group: about.st_gid,
            has_other_names: about.st_nlink > 1,
        }))
    }

    /// Makes one folder, which must not be there.
    pub(super) fn make_folder(&self, path: &str) -> Result<(), TreeError> {
        let folder = self.folder_of(path)?;
        mkdirat(&folder, name(path), Mode::from_raw_mode(0o755)).map_err(io_error(path))
    }

    /// Removes a folder if it is there and empty.
    pub(super) fn remove_folder(&self, path: &str) -> Result<(), TreeError> {
        let Some(folder) = self.folder(parent(path))? else { return Ok(()) };
        match unlinkat(&folder, name(path), AtFlags::REMOVEDIR) {
            // Not empty: somebody else needs it. Not a folder: it is not the one that was made.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) | Ok(()) => Ok(()),
            Err(errno) => Err(io_error(path)(errno)),
        }
    }

    /// Writes a file beside the place where it will be, whole and synced. One of the same name is a rest of ours.
    pub(super) fn write(
        &self,
        path: &str,
        beside: &str,
        content: &[u8],
        access: Access,
    ) -> Result<(), TreeError> {
        let folder = self.folder_of(path)?;
        let fail = io_error(path);
        remove(&folder, beside).map_err(&fail)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&folder, beside, flags, Mode::from_raw_mode(0o600)).map_err(&fail)?);
        let source = |source| TreeError::Io { path: path.to_owned(), source };
        file.write_all(content).map_err(source)?;
        if let Some((owner, group)) = access.owner {
            let about = fstat(&file).map_err(&fail)?;
            if (about.st_uid, about.st_gid) != (owner, group) {
                let (owner, group) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(group));
                // Who may not give files away keeps them; the preview has said so.
                let _ = fchown(&file, Some(owner), Some(group));
            }
        }
        fchmod(&file, Mode::from_raw_mode(access.mode)).map_err(&fail)?;
        file.sync_all().map_err(source)
    }

    /// Puts a file that was written beside its place into it. Only a `new` one refuses to take the place of another.
    pub(super) fn put(&self, path: &str, beside: &str, new: bool) -> Result<(), TreeError> {
        let folder = self.folder_of(path)?;
        let fail = io_error(path);
        if new {
            match renameat_with(&folder, beside, &folder, name(path), RenameFlags::NOREPLACE) {
                // File systems that do not know it.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                renamed => return renamed.map_err(fail),
            }
        }
        renameat(&folder, beside, &folder, name(path)).map_err(fail)
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, path: &str) -> Result<(), TreeError> {
        let Some(folder) = self.folder(parent(path))? else { return Ok(()) };
        remove(&folder, name(path)).map_err(io_error(path))
    }

    /// Removes what was written beside a place, if it is there.
    pub(super) fn remove_beside(&self, path: &str, beside: &str) -> Result<(), TreeError> {
        match self.folder(parent(path)) {
            Ok(Some(folder)) => remove(&folder, beside).map_err(io_error(path)),
            // Behind something that is not our folder there is nothing of ours.
            Ok(None) | Err(TreeError::Link(_) | TreeError::NotFolder(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the names in the folder of a path last, if it is there.
    pub(super) fn sync_folder_of(&self, path: &str) -> Result<(), TreeError> {
        let Some(folder) = self.folder(parent(path))? else { return Ok(()) };
        fsync(&folder).map_err(io_error(path))
    }

    /// Every note, and whether it is marked.
    fn notes(&self, notes: &str) -> Result<Vec<(String, bool)>, TreeError> {
        let fail = io_error(notes);
        let Some(folder) = self.folder(notes)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in Dir::read_from(&folder).map_err(&fail)? {
            let entry = entry.map_err(&fail)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(about) => found.push((name.to_owned(), about.st_size > 0)),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(found)
    }

    /// Notes a name in a folder of the root that is for notes only, and strikes out those that are over.
    pub(super) fn note(&self, notes: &str, name: &str, over: impl Fn(&str) -> bool) -> Result<(), TreeError> {
        for (noted, _) in self.notes(notes)?.iter().filter(|(noted, _)| over(noted)) {
            let folder = self.folder(notes)?.ok_or_else(|| io_error(notes)(Errno::NOENT))?;
            remove(&folder, noted).map_err(io_error(notes))?;
        }
        self.write_note(notes, name, b"")
    }

    /// Marks a note: what is noted is under way, and nothing else may be done before it is struck out.
    pub(super) fn mark(&self, notes: &str, name: &str) -> Result<(), TreeError> {
        self.write_note(notes, name, b"under way\n")
    }

    fn write_note(&self, notes: &str, name: &str, text: &[u8]) -> Result<(), TreeError> {
        let fail = io_error(notes);
        match mkdirat(&self.root, notes, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let folder = self.folder(notes)?.ok_or_else(|| fail(Errno::NOENT))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, name, flags, Mode::from_raw_mode(0o600)).map_err(&fail)?;
        if text.is_empty() {
            return Ok(());
        }
        let mut file = File::from(file);
        let written = file.write_all(text).and_then(|()| file.sync_all());
        written.map_err(|source| TreeError::Io { path: notes.to_owned(), source })
    }

    /// Whether a name is noted, and not marked.
    pub(super) fn is_noted(&self, notes: &str, name: &str) -> Result<bool, TreeError> {
        Ok(self.notes(notes)?.iter().any(|(noted, marked)| noted == name && !marked))
    }

    /// A marked note that is none of these.
    pub(super) fn under_way(
        &self,
        notes: &str,
        own: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, TreeError> {
        let all = self.notes(notes)?;
        Ok(all.into_iter().find(|(noted, marked)| *marked && !own(noted)).map(|(noted, _)| noted))
    }

    /// Strikes out a name without the lock of the root: its folder stays.
    pub(super) fn strike_at(root: &str, notes: &str, name: &str) -> Result<(), TreeError> {
        let tree = Self { root: open(root, FOLDER, Mode::empty()).map_err(io_error(root))? };
        let Some(folder) = tree.folder(notes)? else { return Ok(()) };
        remove(&folder, name).map_err(io_error(notes))
    }

    /// Strikes out a name, and the folder with the last one.
    pub(super) fn strike(&self, notes: &str, name: &str) -> Result<(), TreeError> {
        let Some(folder) = self.folder(notes)? else { return Ok(()) };
        remove(&folder, name).map_err(io_error(notes))?;
        self.remove_folder(notes)
    }
}

fn remove(folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

fn file_type(about: &rustix::fs::Stat) -> FileType {
    FileType::from_raw_mode(about.st_mode)
}

fn regular(about: &rustix::fs::Stat, path: &str) -> Result<(), TreeError> {
    match file_type(about) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(TreeError::Link(path.to_owned())),
        _ => Err(TreeError::NotFile(path.to_owned())),
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
