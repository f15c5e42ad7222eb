//! Blobs: data that is too large for the database, as files in a folder. A blob is either there, complete and synced, or not at all.
//!
//! A key is one or more names of letters, digits, `-`, `_` and `.`, joined by `/`; nothing else ever becomes a path. The folder
//! contains an id, so that a file system that is no longer mounted is never mistaken for an empty folder, neither for writing nor for
//! reporting that a blob does not exist.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use ade_domain::Moment;
use uuid::Uuid;

use crate::data_folder::close_to_others;

/// In bytes.
const MAX_KEY_LEN: usize = 512;
/// The folder for files that are being written.
const TEMP_FOLDER: &str = ".unfinished";
/// The file with the id of the folder.
const ID_FILE: &str = ".store";
/// How many folders are remembered as synced.
const MAX_SYNCED: usize = 1_024;

type Result<T, E = BlobError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("blob {0} does not exist")]
    NotFound(String),
    #[error("invalid blob key {0:?}: use names of letters, digits, `-`, `_` and `.`, joined by `/`")]
    InvalidKey(String),
    #[error("cannot use the blob folder {}: {source}", folder.display())]
    Io { folder: PathBuf, source: io::Error },
    #[error("{} is not the blob folder that this process opened; mount it again", .0.display())]
    FolderReplaced(PathBuf),
    #[error("blob {key} is larger than {limit} bytes")]
    TooLarge { key: String, limit: u64 },
}

/// The blobs of a folder; clones share it. All calls block: make them on a blocking thread.
#[derive(Debug, Clone)]
pub struct Blobs {
    folder: PathBuf,
    id: Arc<str>,
    /// Folders whose directory entries are known to be synced.
    synced: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Blobs {
    /// Opens a folder, and creates it if it is missing.
    pub fn open_folder(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        let open = || -> io::Result<Self> {
            let missing: Vec<&Path> = folder.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
            DirBuilder::new().recursive(true).mode(0o700).create(folder.join(TEMP_FOLDER))?;
            if let Err(error) = close_to_others(&folder) {
                tracing::warn!(%error, "cannot close the blob folder {} to other users", folder.display());
            }
            for parent in missing.iter().filter_map(|folder| folder.parent()) {
                sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
            }
            // Canonical, so that the folder has the same path in every process.
            let folder = folder.canonicalize()?;
            let id = match read_id(&folder)? {
                Some(id) => id,
                None => create_id(&folder)?,
            };
            Ok(Self { folder, id: id.into(), synced: Arc::default() })
        };
        open().map_err(|source| BlobError::Io { folder: folder.clone(), source })
    }

    /// The id of the folder, which stays the same wherever it is mounted or moved to.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn io<T>(&self, result: io::Result<T>) -> Result<T> {
        result.map_err(|source| BlobError::Io { folder: self.folder.clone(), source })
    }

    /// Fails if another folder is in the place of the one that was opened.
    fn check_id(&self) -> Result<()> {
        match self.io(read_id(&self.folder))? {
            Some(id) if *id == *self.id => Ok(()),
            _ => Err(BlobError::FolderReplaced(self.folder.clone())),
        }
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        let is_name = |name: &str| {
            !name.is_empty()
                && !name.starts_with('.')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if key.len() <= MAX_KEY_LEN && key.split('/').all(is_name) {
            Ok(self.folder.join(key))
        } else {
            Err(BlobError::InvalidKey(key.to_owned()))
        }
    }

    /// A unique path for a temporary file, to be written, synced and then moved to its key.
    #[must_use]
    pub fn temp_path(&self, name: &str) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name: String = name.chars().take(MAX_KEY_LEN / 4).map(safe).collect();
        self.folder.join(TEMP_FOLDER).join(format!("{name}-{}", Uuid::new_v4().simple()))
    }

    /// Stores bytes under a key, and replaces an existing blob.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.write(key, |file| file.write_all(bytes))
    }

    /// Stores what `write` writes to a file, and replaces an existing blob.
    pub fn write(&self, key: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
        self.path(key)?;
        let temp_file = self.temp_path(key);
        let write_file = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp_file)?;
            write(&mut file)?;
            file.sync_all()
        };
        let kept = self.io(write_file()).and_then(|()| self.persist(&temp_file, key));
        if kept.is_err() {
            // If this fails as well, the file is removed later with those of crashed processes.
            let _ = fs::remove_file(&temp_file);
        }
        kept
    }

    /// Moves a complete and synced file to a key, and replaces an existing blob.
    pub fn persist(&self, temp_file: &Path, key: &str) -> Result<()> {
        let path = self.path(key)?;
        self.check_id()?;
        let parent = path.parent().unwrap_or(&self.folder);
        let rename = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            fs::rename(temp_file, &path)?;
            sync(parent)?;
            self.sync_ancestors(parent)
        };
        self.io(rename())
    }

    fn synced(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the directory entries of a folder and its ancestors: otherwise a power failure could lose the folder with its content.
    fn sync_ancestors(&self, folder: &Path) -> io::Result<()> {
        for ancestor in folder.ancestors().take_while(|ancestor| *ancestor != self.folder) {
            let is_synced = || self.synced().contains(ancestor);
            let Some(parent) = ancestor.parent().filter(|_| !is_synced()) else { continue };
            sync(parent)?;
            let mut synced = self.synced();
            if synced.len() >= MAX_SYNCED {
                synced.clear();
            }
            synced.insert(ancestor.to_owned());
        }
        Ok(())
    }

    /// Reads a blob of at most `limit` bytes.
    pub fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.open(key)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        if self.io(read)? as u64 > limit {
            return Err(BlobError::TooLarge { key: key.to_owned(), limit });
        }
        Ok(bytes)
    }

    pub fn open(&self, key: &str) -> Result<File> {
        match File::open(self.path(key)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_id()?;
                Err(BlobError::NotFound(key.to_owned()))
            }
            opened => self.io(opened),
        }
    }

    /// Removes a blob; `false` if it does not exist.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.was_removed(fs::remove_file(self.path(key)?))
    }

    /// Removes the blob with this key and all blobs whose keys begin with it and `/`; `false` if there are none.
    pub fn remove_prefix(&self, within: &str) -> Result<bool> {
        let path = self.path(within)?;
        // The next blob in it creates the folder again, which then has to be synced again.
        self.synced().remove(&path);
        let removed = match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
            removed => removed,
        };
        self.was_removed(removed)
    }

    fn was_removed(&self, removed: io::Result<()>) -> Result<bool> {
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.check_id().map(|()| false),
            removed => self.io(removed).map(|()| true),
        }
    }

    /// Removes temporary files of crashed processes, which were last written before `since`. Returns how many.
    pub fn remove_stale_temp_files(&self, since: Moment) -> Result<u64> {
        let (since, mut removed) = (UNIX_EPOCH + Duration::from_micros(since.micros()), 0);
        for entry in self.io(fs::read_dir(self.folder.join(TEMP_FOLDER)))? {
            let entry = self.io(entry)?;
            // A missing file became a blob meanwhile, or somebody else removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            let is_stale = metadata.is_file() && metadata.modified().is_ok_and(|at| at < since);
            removed += u64::from(is_stale && fs::remove_file(entry.path()).is_ok());
        }
        Ok(removed)
    }
}

/// The id of a folder; `None` if it has none yet.
fn read_id(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(ID_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read?.trim().to_owned()).filter(|id| !id.is_empty())),
    }
}

/// Gives a folder an id. If several processes do so at once, all return the same one.
fn create_id(folder: &Path) -> io::Result<String> {
    let id = Uuid::new_v4().to_string();
    let (temp_file, path) = (folder.join(TEMP_FOLDER).join(format!("id-{id}")), folder.join(ID_FILE));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp_file)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    file.sync_all()?;
    let linked = match fs::hard_link(&temp_file, &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no hard links. There the last process wins, and the others fail on their next access.
        Err(error) if is_unsupported(&error) => fs::rename(&temp_file, &path),
        linked => linked,
    };
    let _ = fs::remove_file(&temp_file);
    linked?;
    sync(folder)?;
    read_id(folder)?.ok_or_else(|| io::Error::other(format!("{} is empty", path.display())))
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

/// Syncs the directory entries of a folder.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_replaces_and_removes_blobs() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::open_folder(folder.path().join("blobs")).expect("created");
        blobs.put("rollback_data/1/2", b"before").expect("stored");
        blobs.put("rollback_data/1/2", b"after").expect("replaced");
        assert_eq!(blobs.get("rollback_data/1/2", 5).expect("there"), b"after");
        assert!(matches!(blobs.get("rollback_data/1/2", 4), Err(BlobError::TooLarge { .. })));
        assert!(blobs.remove("rollback_data/1/2").expect("removed"));
        assert!(!blobs.remove("rollback_data/1/2").expect("gone"));
        assert!(matches!(blobs.get("rollback_data/1/2", 9), Err(BlobError::NotFound(_))));
    }

    #[test]
    fn rejects_invalid_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::open_folder(folder.path()).expect("created");
        for key in ["", "/a", "a//b", "../a", "a/..", "a/.b", "a b", "a\0", "ä", &"x".repeat(513)] {
            assert!(matches!(blobs.put(key, b""), Err(BlobError::InvalidKey(_))), "{key:?}");
        }
    }

    #[test]
    fn detects_a_folder_that_was_unmounted() {
        let parent = tempfile::tempdir().expect("a folder");
        let (first, second) = (parent.path().join("first"), parent.path().join("second"));
        let open = |folder: &Path| Blobs::open_folder(folder).expect("opens");
        let opened: Vec<Blobs> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&first))).collect();
            threads.into_iter().map(|thread| thread.join().expect("opens")).collect()
        });
        let blobs = opened.first().expect("one").clone();
        assert!(opened.iter().all(|other| other.id() == blobs.id()), "all see the same id");
        assert_ne!(blobs.id(), open(&second).id());
        blobs.put("rollback_data/1", b"x").expect("stored");
        fs::rename(&first, parent.path().join("moved")).expect("moved");
        // An unmounted file system looks like a missing folder, or like an empty one.
        for _ in 0..2 {
            assert!(matches!(blobs.get("rollback_data/1", 9), Err(BlobError::FolderReplaced(_))));
            assert!(matches!(
                blobs.put("rollback_data/2", b"y"),
                Err(BlobError::FolderReplaced(_) | BlobError::Io { .. })
            ));
            assert!(matches!(blobs.remove_prefix("rollback_data"), Err(BlobError::FolderReplaced(_))));
            fs::create_dir_all(first.join(TEMP_FOLDER)).expect("created");
        }
        assert_eq!(fs::read_dir(first.join(TEMP_FOLDER)).expect("read").count(), 0, "nothing is left over");
        let moved = open(&parent.path().join("moved"));
        assert_eq!(
            (moved.id(), moved.get("rollback_data/1", 9).expect("there")),
            (blobs.id(), b"x".to_vec())
        );
    }

    #[test]
    fn removes_only_stale_temporary_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::open_folder(folder.path()).expect("created");
        let (old, young) = (blobs.temp_path("output-1"), blobs.temp_path("output-1"));
        let hour = |hour: u64| UNIX_EPOCH + Duration::from_secs(1_794_744_000 + hour * 3_600);
        for (file, at) in [(&old, hour(1)), (&young, hour(3))] {
            File::create(file).and_then(|file| file.set_modified(at)).expect("created");
        }
        let since = Moment::from_micros(1_794_744_000_000_000 + 2 * 3_600_000_000);
        assert_eq!(blobs.remove_stale_temp_files(since).expect("removed"), 1);
        assert!(!old.exists() && young.exists());
        blobs.persist(&young, "output/1/1").expect("stored");
        blobs.put("output/1/2", b"x").expect("stored");
        assert!(blobs.remove_prefix("output/1").expect("removed"));
        assert!(!blobs.remove_prefix("output/1").expect("gone"));
        assert!(matches!(blobs.get("output/1/1", 9), Err(BlobError::NotFound(_))));
        assert!(matches!(blobs.get("output/1/2", 9), Err(BlobError::NotFound(_))));
        blobs.put("output/1/1", b"again").expect("stored");
    }
}
