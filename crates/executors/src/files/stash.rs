//! What is kept before files are changed: each as it was and as it will be. That is enough to tell from the files alone how far
//! an attempt came, and to undo it.
//!
//! As bytes it is one line of JSON, followed by what the files contained, one after the other.

use ade_domain::task::Digest;
use serde::{Deserialize, Serialize};

use super::parameters::{Wanted, folders};
use super::tree::{Present, Tree, TreeError};

/// The present form of the bytes.
const VERSION: u32 = 1;
/// Bytes of all files that are there already.
const MOST_OF_ALL: u64 = 32 * 1_048_576;
/// Permissions of a new file if nothing else is said.
const NEW_MODE: u32 = 0o644;

/// Why what was kept cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("what was kept before the files were changed cannot be read ({0}); restore them from a backup")]
pub(super) struct Unreadable(String);

/// A file before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Was {
    pub(super) hash: Digest,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
    bytes: usize,
    #[serde(skip)]
    pub(super) content: Vec<u8>,
}

/// A file afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WillBe {
    pub(super) hash: Digest,
    pub(super) mode: u32,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) path: String,
    /// Nothing: it was not there.
    pub(super) before: Option<Was>,
    /// Nothing: it will not be there.
    pub(super) after: Option<WillBe>,
}

/// All files of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stash {
    version: u32,
    pub(super) entries: Vec<Entry>,
    /// Folders that have to be made, outer ones first.
    pub(super) folders: Vec<String>,
}

/// How a file is, compared with how it was and will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stands {
    /// As it was.
    Before,
    /// As it will be.
    After,
    /// As somebody else wanted it.
    Otherwise,
}

/// What may still be read.
#[derive(Debug)]
pub(super) struct Room(u64);

impl Default for Room {
    fn default() -> Self {
        Self(MOST_OF_ALL)
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes as u64).ok_or_else(|| {
            format!("the files that are there have more than {MOST_OF_ALL} bytes together; split the task")
        })?;
        Ok(())
    }
}

impl Entry {
    /// What becomes of a file that is as it is now.
    pub(super) fn plan(
        tree: &Tree,
        wanted: &Wanted,
        room: &mut Room,
    ) -> Result<(Self, Option<Present>), String> {
        let mut present = tree.look(&wanted.path).map_err(|error| error.to_string())?;
        let before = match &mut present {
            Some(present) => {
                room.take(present.content.len())?;
                let (owner, group, bytes) = (present.owner, present.group, present.content.len());
                let content = std::mem::take(&mut present.content);
                Some(Was { hash: present.hash, mode: present.mode, owner, group, bytes, content })
            }
            None if wanted.content.is_none() => {
                return Err(format!("{:?} is to be deleted and is not there", wanted.path));
            }
            None => None,
        };
        let after = wanted.content.as_ref().map(|content| {
            let hash = Digest::of_bytes(content.as_bytes());
            let as_it_is = before.as_ref().map_or(NEW_MODE, |was| {
                // Other content never inherits the right to act as its owner.
                if was.hash == hash { was.mode } else { was.mode & 0o777 }
            });
            WillBe { hash, mode: wanted.mode.unwrap_or(as_it_is) }
        });
        Ok((Self { path: wanted.path.clone(), before, after }, present))
    }

    /// Whether there is anything to do.
    pub(super) fn is_change(&self) -> bool {
        let bare = |was: &Was| WillBe { hash: was.hash, mode: was.mode };
        self.before.as_ref().map(bare) != self.after
    }

    /// How it is now. Content counts, and permissions where only they tell the two apart.
    pub(super) fn stands(&self, tree: &Tree) -> Result<Stands, TreeError> {
        let present = match tree.look(&self.path) {
            Ok(present) => present,
            Err(TreeError::Io { path, source }) => return Err(TreeError::Io { path, source }),
            Err(
                TreeError::Link(_) | TreeError::NotFile(_) | TreeError::NotFolder(_) | TreeError::TooBig(_),
            ) => {
                return Ok(Stands::Otherwise);
            }
        };
        let hash = present.as_ref().map(|present| present.hash);
        let was = self.before.as_ref().map(|was| was.hash);
        let will_be = self.after.map(|after| after.hash);
        let mode = present.map(|present| present.mode);
        Ok(if was == will_be && hash == was {
            if mode == self.before.as_ref().map(|was| was.mode) { Stands::Before } else { Stands::After }
        } else if hash == was {
            Stands::Before
        } else if hash == will_be {
            Stands::After
        } else {
            Stands::Otherwise
        })
    }

    /// Whether it is exactly as it was.
    pub(super) fn is_untouched(&self, tree: &Tree) -> Result<bool, TreeError> {
        let present = tree.look(&self.path)?;
        let now = present.map(|present| (present.hash, present.mode));
        Ok(now == self.before.as_ref().map(|was| (was.hash, was.mode)))
    }
}

impl Stash {
    /// How the files are now and will be.
    pub(super) fn make(tree: &Tree, wanted: &[Wanted]) -> Result<Self, String> {
        let (mut entries, mut missing, mut room) = (Vec::new(), Vec::new(), Room::default());
        for file in wanted {
            let (entry, _) = Entry::plan(tree, file, &mut room)?;
            for folder in folders(&file.path) {
                let known = missing.iter().any(|known| known == folder);
                if !known && !tree.has_folder(folder).map_err(|error| error.to_string())? {
                    missing.push(folder.to_owned());
                }
            }
            entries.push(entry);
        }
        Ok(Self { version: VERSION, entries, folders: missing })
    }

    /// As bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| Unreadable(error.to_string()))?;
        bytes.push(b'\n');
        for was in self.entries.iter().filter_map(|entry| entry.before.as_ref()) {
            bytes.extend_from_slice(&was.content);
        }
        Ok(bytes)
    }

    /// From bytes, whole and unchanged.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let broken = |why: &str| Unreadable(why.to_owned());
        let end =
            bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| broken("it has no first line"))?;
        let (line, mut rest) = bytes.split_at(end);
        let mut stash: Self = serde_json::from_slice(line).map_err(|error| Unreadable(error.to_string()))?;
        if stash.version != VERSION {
            return Err(Unreadable(format!("it has version {}, and {VERSION} is known", stash.version)));
        }
        rest = rest.get(1..).unwrap_or_default();
        for was in stash.entries.iter_mut().filter_map(|entry| entry.before.as_mut()) {
            let (content, more) = rest.split_at_checked(was.bytes).ok_or_else(|| broken("it is cut"))?;
            if Digest::of_bytes(content) != was.hash {
                return Err(broken("it was changed"));
            }
            was.content = content.to_vec();
            rest = more;
        }
        if rest.is_empty() { Ok(stash) } else { Err(broken("it has too much")) }
    }
}
