//! Blobs: what is too big for the record, kept in a folder under keys of our own making. What was put is there, whole and synced,
//! or not at all.
//!
//! A key is one or more names of letters, digits, `-`, `_` and `.`, joined by `/`; nothing else ever becomes a path. The folder has
//! an id of its own: a file system that is not mounted any more is never taken for an empty folder, neither to put something
//! there nor to say that something is gone.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use ade_domain::Moment;
use uuid::Uuid;

/// The longest key.
const LONGEST_KEY: usize = 512;
/// The folder for what is not whole yet.
const UNFINISHED: &str = ".unfinished";
/// The file with the id of the folder.
const ID: &str = ".store";
/// Folders that are remembered as synced.
const MOST_SYNCED: usize = 1_024;

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
    /// Another folder is in its place.
    #[error("{} is not the folder of blobs that it was when this process began; mount it again", .0.display())]
    Another(PathBuf),
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
    id: Arc<str>,
    /// Folders whose names are on the disk, so that it need not be asked for again.
    synced: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Blobs {
    /// In a folder, which is made if it is not there.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self, BlobError> {
        let folder = folder.into();
        let opened = || -> io::Result<Self> {
            let new: Vec<&Path> = folder.ancestors().take_while(|one| !one.exists()).collect();
            fs::create_dir_all(folder.join(UNFINISHED))?;
            for parent in new.iter().filter_map(|one| one.parent()) {
                sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
            }
            // However often it was moved: the same folder is always called the same in here.
            let folder = folder.canonicalize()?;
            let id = match read_id(&folder)? {
                Some(id) => id,
                None => make_id(&folder)?,
            };
            Ok(Self { folder, id: id.into(), synced: Arc::default() })
        };
        opened().map_err(|source| BlobError::Folder { folder: folder.clone(), source })
    }

    /// What the folder calls itself, wherever it is mounted or moved to.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn broken(&self, source: io::Error) -> BlobError {
        BlobError::Folder { folder: self.folder.clone(), source }
    }

    /// Refuses another folder than the one that was opened.
    fn same(&self) -> Result<(), BlobError> {
        let now = read_id(&self.folder).map_err(|source| self.broken(source))?;
        if now.as_deref() == Some(&*self.id) { Ok(()) } else { Err(BlobError::Another(self.folder.clone())) }
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

    /// A file that does not exist yet and is nobody else's, to be written and then [kept](Self::keep).
    #[must_use]
    pub fn unfinished(&self, name: &str) -> PathBuf {
        let name: String = name
            .chars()
            .take(LONGEST_KEY / 4)
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        self.folder.join(UNFINISHED).join(format!("{name}-{}", Uuid::new_v4().simple()))
    }

    /// Keeps some bytes under a key; what was there before is gone.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.write(key, |file| file.write_all(bytes))
    }

    /// The same with whatever is written into a file.
    pub fn write(&self, key: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), BlobError> {
        self.path(key)?;
        let unfinished = self.unfinished(key);
        let written = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            write(&mut file)?;
            file.sync_all()
        };
        let kept = written().map_err(|source| self.broken(source)).and_then(|()| self.keep(&unfinished, key));
        if kept.is_err() {
            // Whatever is left over goes with what crashes leave.
            let _ = fs::remove_file(&unfinished);
        }
        kept
    }

    /// Keeps a file that was written and synced under a key. The file is gone afterwards.
    pub fn keep(&self, unfinished: &Path, key: &str) -> Result<(), BlobError> {
        let path = self.path(key)?;
        self.same()?;
        let parent = path.parent().unwrap_or(&self.folder);
        let keep = || -> io::Result<()> {
            fs::create_dir_all(parent)?;
            fs::rename(unfinished, &path)?;
            sync(parent)?;
            self.sync_above(parent)
        };
        keep().map_err(|source| self.broken(source))
    }

    /// Every folder on the way down to this one is on the disk: else a loss of power takes all that is in it.
    fn sync_above(&self, folder: &Path) -> io::Result<()> {
        for one in folder.ancestors().take_while(|one| *one != self.folder) {
            let is_known = || self.synced.lock().unwrap_or_else(PoisonError::into_inner).contains(one);
            let Some(above) = one.parent().filter(|_| !is_known()) else { continue };
            sync(above)?;
            let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
            if synced.len() >= MOST_SYNCED {
                synced.clear();
            }
            synced.insert(one.to_owned());
        }
        Ok(())
    }

    /// What is kept under a key, if it is not longer than `most`.
    pub fn get(&self, key: &str, most: u64) -> Result<Vec<u8>, BlobError> {
        let mut bytes = Vec::new();
        let read = self.open(key)?.take(most.saturating_add(1)).read_to_end(&mut bytes);
        if read.map_err(|source| self.broken(source))? as u64 > most {
            return Err(BlobError::TooLong { key: key.to_owned(), most });
        }
        Ok(bytes)
    }

    /// What is kept under a key, to be read.
    pub fn open(&self, key: &str) -> Result<File, BlobError> {
        match File::open(self.path(key)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.same()?;
                Err(BlobError::Missing(key.to_owned()))
            }
            opened => opened.map_err(|source| self.broken(source)),
        }
    }

    /// Removes what is kept under a key; whether there was something.
    pub fn remove(&self, key: &str) -> Result<bool, BlobError> {
        self.removed(fs::remove_file(self.path(key)?))
    }

    /// Removes what is kept under a key, and everything whose key begins with it and `/`; whether there was something.
    pub fn remove_within(&self, within: &str) -> Result<bool, BlobError> {
        let path = self.path(within)?;
        // Whoever puts something there once more makes the folder anew.
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
        let removed = match fs::remove_dir_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
            removed => removed,
        };
        self.removed(removed)
    }

    fn removed(&self, removed: io::Result<()>) -> Result<bool, BlobError> {
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.same().map(|()| false),
            removed => removed.map(|()| true).map_err(|source| self.broken(source)),
        }
    }

    /// Removes what crashes left before it was whole: what nobody has written to since a moment. How many.
    pub fn remove_unfinished(&self, since: Moment) -> Result<u64, BlobError> {
        let broken = |source| self.broken(source);
        let (since, mut many) = (UNIX_EPOCH + Duration::from_micros(since.micros()), 0);
        for entry in fs::read_dir(self.folder.join(UNFINISHED)).map_err(broken)? {
            let entry = entry.map_err(broken)?;
            // One that is gone by now was kept, or somebody else removed it.
            let Ok(about) = entry.metadata() else { continue };
            let is_old = about.is_file() && about.modified().is_ok_and(|at| at < since);
            many += u64::from(is_old && fs::remove_file(entry.path()).is_ok());
        }
        Ok(many)
    }

    /// The keys that begin with a name and `/`, with their sizes, in order.
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

/// What a folder calls itself, if it does.
fn read_id(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join(ID)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read?.trim().to_owned()).filter(|id| !id.is_empty())),
    }
}

/// Of many who do so at once, one names the folder.
fn make_id(folder: &Path) -> io::Result<String> {
    let id = Uuid::new_v4().to_string();
    let (unfinished, path) = (folder.join(UNFINISHED).join(format!("id-{id}")), folder.join(ID));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&unfinished)?;
    file.write_all(format!("{id}\n").as_bytes())?;
    file.sync_all()?;
    let linked = match fs::hard_link(&unfinished, &path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no links. There, whoever is last names the folder, and whoever was first is told.
        Err(error) if is_unsupported(&error) => fs::rename(&unfinished, &path),
        linked => linked,
    };
    let _ = fs::remove_file(&unfinished);
    linked?;
    sync(folder)?;
    read_id(folder)?.ok_or_else(|| io::Error::other(format!("{} is empty", path.display())))
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

/// The names in a folder are on the disk.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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

    #[test]
    fn a_folder_is_known_by_its_id_wherever_it_is() {
        let around = tempfile::tempdir().expect("a folder");
        let (one, two) = (around.path().join("one"), around.path().join("two"));
        let open = |folder: &Path| Blobs::in_folder(folder).expect("opens");
        let all: Vec<Blobs> = std::thread::scope(|scope| {
            let begun: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&one))).collect();
            begun.into_iter().map(|one| one.join().expect("opens")).collect()
        });
        let blobs = all.first().expect("one").clone();
        assert!(all.iter().all(|one| one.id() == blobs.id()), "all of them call it the same");
        assert_ne!(blobs.id(), open(&two).id());
        blobs.put("stash/1", b"x").expect("kept");
        fs::rename(&one, around.path().join("moved")).expect("moved");
        // What is not mounted looks like an empty folder, or like none.
        for _ in 0..2 {
            assert!(matches!(blobs.get("stash/1", 9), Err(BlobError::Another(_))));
            assert!(matches!(
                blobs.put("stash/2", b"y"),
                Err(BlobError::Another(_) | BlobError::Folder { .. })
            ));
            assert!(matches!(blobs.remove_within("stash"), Err(BlobError::Another(_))));
            fs::create_dir_all(one.join(UNFINISHED)).expect("made");
        }
        assert_eq!(fs::read_dir(one.join(UNFINISHED)).expect("read").count(), 0, "nothing is left over");
        let moved = open(&around.path().join("moved"));
        assert_eq!((moved.id(), moved.get("stash/1", 9).expect("there")), (blobs.id(), b"x".to_vec()));
    }

    #[test]
    fn what_crashes_left_goes_and_what_is_being_written_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::in_folder(folder.path()).expect("made");
        let (old, young) = (blobs.unfinished("output-1"), blobs.unfinished("output-1"));
        let hour = |hour: u64| UNIX_EPOCH + Duration::from_secs(1_794_744_000 + hour * 3_600);
        for (file, at) in [(&old, hour(1)), (&young, hour(3))] {
            File::create(file).and_then(|file| file.set_modified(at)).expect("made");
        }
        let since = Moment::from_micros(1_794_744_000_000_000 + 2 * 3_600_000_000);
        assert_eq!(blobs.remove_unfinished(since).expect("removed"), 1);
        assert!(!old.exists() && young.exists());
        blobs.keep(&young, "output/1/1").expect("kept");
        blobs.put("output/1/2", b"x").expect("kept");
        assert!(blobs.remove_within("output/1").expect("removed"));
        assert!(!blobs.remove_within("output/1").expect("gone"));
        assert_eq!(blobs.list("output").expect("read"), []);
        blobs.put("output/1/1", b"again").expect("kept");
    }
}
