//! Blobs: what is too big for the record, kept in a folder under keys of our own making. What was put is there, whole and synced,
//! or not at all.
//!
//! A key is one or more names of letters, digits, `-`, `_` and `.`, joined by `/`; nothing else ever becomes a path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The longest key.
const LONGEST_KEY: usize = 512;
/// The folder for what is not whole yet.
const UNFINISHED: &str = ".unfinished";

/// Why a blob was not kept or not found.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is none under this key.
    #[error("there is no blob {0}")]
    Missing(String),
    /// It cannot be a key.
    #[error("{0:?} cannot be the key of a blob")]
    Key(String),
    /// The folder did not do as told.
    #[error("blobs cannot be kept in {}: {source}", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is longer than whoever asked can take.
    #[error("the blob {key} has more than {most} bytes")]
    TooLong {
        /// Which.
        key: String,
        /// How many were asked for.
        most: u64,
    },
}

/// Blobs in a folder; clones are the same ones. Calls block: they belong on a thread that may.
#[derive(Debug, Clone)]
pub struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    /// In a folder, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, BlobError> {
        let blobs = Self { folder: folder.into() };
        fs::create_dir_all(blobs.folder.join(UNFINISHED)).map_err(|source| blobs.broken(source))?;
        Ok(blobs)
    }

    fn broken(&self, source: io::Error) -> BlobError {
        BlobError::Folder { folder: self.folder.clone(), source }
    }

    fn path(&self, key: &str) -> Result<PathBuf, BlobError> {
        let is_name = |name: &str| {
            !name.is_empty()
                && !name.starts_with('.')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if key.len() <= LONGEST_KEY && key.split('/').all(is_name) {
            Ok(self.folder.join(key))
        } else {
            Err(BlobError::Key(key.to_owned()))
        }
    }

    /// A file that does not exist yet, to be written and then [kept](Self::keep).
    #[must_use]
    pub fn unfinished(&self, name: &str) -> PathBuf {
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        self.folder.join(UNFINISHED).join(name)
    }

    /// Keeps some bytes under a key; what was there before is gone.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.path(key)?;
        let unfinished = self.unfinished(key);
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|source| self.broken(source))?;
        self.keep(&unfinished, key)
    }

    /// Keeps a file that was written and synced under a key. The file is gone afterwards.
    ///
    /// # Errors
    /// It cannot be moved there.
    pub fn keep(&self, unfinished: &Path, key: &str) -> Result<(), BlobError> {
        let path = self.path(key)?;
        let parent = path.parent().unwrap_or(&self.folder);
        let keep = || -> io::Result<()> {
            fs::create_dir_all(parent)?;
            fs::rename(unfinished, &path)?;
            File::open(parent)?.sync_all()
        };
        keep().map_err(|source| self.broken(source))
    }

    /// What is kept under a key, if it is not longer than `most`.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn get(&self, key: &str, most: u64) -> Result<Vec<u8>, BlobError> {
        let file = match File::open(self.path(key)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::Missing(key.to_owned()));
            }
            opened => opened.map_err(|source| self.broken(source))?,
        };
        let mut bytes = Vec::new();
        let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
        if read.map_err(|source| self.broken(source))? as u64 > most {
            return Err(BlobError::TooLong { key: key.to_owned(), most });
        }
        Ok(bytes)
    }

    /// Removes what is kept under a key; whether there was something.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, key: &str) -> Result<bool, BlobError> {
        match fs::remove_file(self.path(key)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true).map_err(|source| self.broken(source)),
        }
    }

    /// The keys that begin with a name and `/`, with their sizes, in order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self, within: &str) -> Result<Vec<(String, u64)>, BlobError> {
        let mut found = Vec::new();
        let mut open = vec![(self.path(within)?, within.to_owned())];
        while let Some((folder, prefix)) = open.pop() {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|source| self.broken(source))?,
            };
            for entry in entries {
                let entry = entry.map_err(|source| self.broken(source))?;
                let about = entry.metadata().map_err(|source| self.broken(source))?;
                let key = format!("{prefix}/{}", entry.file_name().to_string_lossy());
                if about.is_dir() { open.push((entry.path(), key)) } else { found.push((key, about.len())) }
            }
        }
        found.sort();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_there_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::in_folder(folder.path().join("blobs")).expect("made");
        blobs.put("stash/1/2", b"before").expect("kept");
        blobs.put("stash/1/2", b"after").expect("kept again");
        assert_eq!(blobs.get("stash/1/2", 5).expect("there"), b"after");
        assert!(matches!(blobs.get("stash/1/2", 4), Err(BlobError::TooLong { .. })));
        assert_eq!(blobs.list("stash").expect("read"), [("stash/1/2".to_owned(), 5)]);
        assert!(blobs.remove("stash/1/2").expect("removed"));
        assert!(!blobs.remove("stash/1/2").expect("gone"));
        assert!(matches!(blobs.get("stash/1/2", 9), Err(BlobError::Missing(_))));
        assert_eq!(blobs.list("nothing").expect("read"), []);
    }

    #[test]
    fn nothing_else_becomes_a_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::in_folder(folder.path()).expect("made");
        for key in ["", "/a", "a//b", "../a", "a/..", "a/.b", "a b", "a\0", "ä", &"x".repeat(513)] {
            assert!(matches!(blobs.put(key, b""), Err(BlobError::Key(_))), "{key:?}");
        }
    }
}
