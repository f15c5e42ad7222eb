//! Changing files, all or none, and changing them back. Everything here happens under the lock of the root.
//!
//! First all new content is written beside its place and synced; then each file is moved into its place, one after the other;
//! what is to go goes last. Wherever this ends, each file is as it was or as it will be, never between, and names tell what is
//! left over: what is kept in the stash is enough to go back. A failure that was changed back says so.

use std::cell::Cell;
use std::collections::BTreeSet;

use ade_domain::task::Digest;

use super::parameters::{NOTES, UNFINISHED, Wanted, folders};
use super::stash::{Entry, Stands, Stash};
use super::tree::{Access, Tree, TreeError};
use super::{Key, Pause};
use crate::{Changed, Failure, Halted, Settled, halt_failure};

/// One attempt at the files of a root.
pub(super) struct Change {
    tree: Tree,
    key: Key,
    stash: Stash,
    halted: Halted,
    pause: Pause,
    /// Whether a file came into its place, or went.
    touched: Cell<bool>,
    /// Whether its note was there when it began: only then is it this one's to take away.
    noted: Cell<bool>,
}

impl Change {
    pub(super) const fn new(tree: Tree, key: Key, stash: Stash, halted: Halted, pause: Pause) -> Self {
        Self { tree, key, stash, halted, pause, touched: Cell::new(false), noted: Cell::new(false) }
    }

    /// All files or none. The attempt is not over by that: [`Self::end`] is.
    pub(super) fn apply(&self, wanted: &[Wanted]) -> Result<(), Failure> {
        if !self.tree.is_noted(NOTES, &self.key.to_string())? {
            // A note that somebody else has marked stays: what it is about is not decided yet.
            return Err(Failure::refused(
                "this attempt was settled by another worker; nothing was changed by this one",
            ));
        }
        self.noted.set(true);
        self.may_begin(wanted)?;
        // If this ends in the middle, nobody else changes anything before it is settled.
        self.tree.mark(NOTES, &self.key.to_string())?;
        self.forward(wanted).map_err(|failure| self.undo(failure))
    }

    /// Nothing more happens in this attempt.
    pub(super) fn end(&self) {
        if self.noted.get() {
            // One that stays is in nobody's way for longer than until it is settled.
            let _ = self.tree.strike(NOTES, &self.key.to_string());
        }
    }

    /// Changes back at once what failed for this reason, and says so.
    pub(super) fn undo(&self, failure: Failure) -> Failure {
        match self.back() {
            Ok(()) if self.touched.get() => {
                let message = format!("{failure}; everything was changed back");
                Failure { changed: Changed::Undone, again: false, message, ..failure }
            }
            Ok(()) => failure,
            Err(undoing) => {
                let message = format!("{failure}; it could not be undone at once: {undoing}");
                Failure { changed: Changed::Something, again: false, message, ..failure }
            }
        }
    }

    /// Nothing was changed since it was kept.
    fn may_begin(&self, wanted: &[Wanted]) -> Result<(), Failure> {
        self.go_on()?;
        let hash = |file: &Wanted| file.content.as_ref().map(|content| Digest::of_bytes(content.as_bytes()));
        let kept = |entry: &Entry| entry.after.map(|after| after.hash);
        let asked = wanted.iter().map(|file| (&file.path, hash(file)));
        if !asked.eq(self.stash.entries.iter().map(|entry| (&entry.path, kept(entry)))) {
            return Err(Failure::refused("what was kept before the change belongs to other files"));
        }
        let moved =
            |path: &str| Failure::not_now(format!("{path:?} was changed meanwhile; nothing was changed"));
        for entry in &self.stash.entries {
            if !entry.is_untouched(&self.tree)? {
                return Err(moved(&entry.path));
            }
        }
        for folder in &self.stash.folders {
            if self.tree.has_folder(folder)? {
                return Err(moved(folder));
            }
        }
        Ok(())
    }

    fn forward(&self, wanted: &[Wanted]) -> Result<(), Failure> {
        for folder in &self.stash.folders {
            self.go_on()?;
            self.pause.step();
            self.tree.make_folder(folder)?;
        }
        let writes = || {
            let each = self.stash.entries.iter().zip(wanted).enumerate();
            each.filter(|(_, (entry, _))| entry.is_change())
        };
        for (number, (entry, file)) in writes() {
            if let (Some(after), Some(content)) = (entry.after, &file.content) {
                self.go_on()?;
                self.pause.step();
                let owner = entry.before.as_ref().map(|was| (was.owner, was.group));
                let access = Access { mode: after.mode, owner };
                let beside = self.beside(number);
                self.tree.write(&entry.path, &beside, content.as_bytes(), access)?;
            }
        }
        for (number, (entry, _)) in writes().filter(|(_, (entry, _))| entry.after.is_some()) {
            self.go_on()?;
            self.pause.step();
            self.tree.put(&entry.path, &self.beside(number), entry.before.is_none())?;
            self.touched.set(true);
        }
        for (_, (entry, _)) in writes().filter(|(_, (entry, _))| entry.after.is_none()) {
            self.go_on()?;
            self.pause.step();
            self.tree.remove(&entry.path)?;
            self.touched.set(true);
        }
        self.pause.step();
        Ok(self.sync()?)
    }

    /// All files as they were. If one is as somebody else wanted it, none is touched.
    pub(super) fn roll_back(&self) -> Result<(), Failure> {
        self.go_on().map_err(|failure| Failure { changed: Changed::Something, ..failure })?;
        let done = self.back().map_err(|error| Failure::after(Changed::Something, error));
        let _ = self.tree.strike(NOTES, &self.key.to_string());
        done
    }

    fn back(&self) -> Result<(), String> {
        let said = |error: TreeError| error.to_string();
        self.tidy().map_err(said)?;
        let mut foreign = Vec::new();
        for entry in self.changes() {
            if entry.stands(&self.tree).map_err(said)? == Stands::Otherwise {
                foreign.push(format!("{:?}", entry.path));
            }
        }
        if !foreign.is_empty() {
            return Err(format!(
                "somebody else has changed {} since; put back by hand what is to be put back",
                foreign.join(", ")
            ));
        }
        for (number, entry) in self.stash.entries.iter().enumerate().filter(|(_, entry)| entry.is_change()) {
            if entry.is_untouched(&self.tree).map_err(said)? {
                continue;
            }
            self.pause.step();
            match &entry.before {
                None => self.tree.remove(&entry.path).map_err(said)?,
                Some(was) => {
                    let access = Access { mode: was.mode, owner: Some((was.owner, was.group)) };
                    let beside = self.beside(number);
                    self.tree.write(&entry.path, &beside, &was.content, access).map_err(said)?;
                    self.pause.step();
                    self.tree.put(&entry.path, &beside, false).map_err(said)?;
                }
            }
        }
        for folder in self.stash.folders.iter().rev() {
            self.pause.step();
            self.tree.remove_folder(folder).map_err(said)?;
        }
        self.pause.step();
        self.sync().map_err(said)
    }

    /// What the attempt left, which cannot go on any more.
    pub(super) fn settle(&self) -> Result<Settled, Failure> {
        // Whoever was stopped until somebody else has settled it would hold up everybody after that.
        self.go_on()?;
        // From here on that attempt is shut out, and whoever else wants to change something waits until it is decided what becomes
        // of what it left.
        self.tree.mark(NOTES, &self.key.to_string())?;
        self.tidy()?;
        let (mut before, mut after) = (true, true);
        for entry in self.changes() {
            let stands = entry.stands(&self.tree)?;
            before &= stands == Stands::Before;
            after &= stands == Stands::After;
        }
        for folder in &self.stash.folders {
            // Something in its way is not ours.
            before &= !self.tree.has_folder(folder).unwrap_or(false);
        }
        // A set in which nothing was to be done is as it was.
        if before {
            self.tree.strike(NOTES, &self.key.to_string())?;
        }
        Ok(match (before, after) {
            (true, _) => Settled::Nothing,
            (false, true) => Settled::Everything,
            (false, false) => Settled::Part,
        })
    }

    fn changes(&self) -> impl Iterator<Item = &Entry> {
        self.stash.entries.iter().filter(|entry| entry.is_change())
    }

    /// Removes what was written and not put into its place.
    fn tidy(&self) -> Result<(), TreeError> {
        let mut each = self.stash.entries.iter().enumerate();
        each.try_for_each(|(number, entry)| self.tree.remove_beside(&entry.path, &self.beside(number)))
    }

    /// Makes all names last.
    fn sync(&self) -> Result<(), TreeError> {
        let mut seen = BTreeSet::new();
        for path in self
            .changes()
            .map(|entry| entry.path.as_str())
            .chain(self.stash.folders.iter().map(String::as_str))
        {
            if seen.insert(folders(path).last()) {
                self.tree.sync_folder_of(path)?;
            }
        }
        Ok(())
    }

    /// The name under which a file waits for its place.
    fn beside(&self, number: usize) -> String {
        format!("{UNFINISHED}{}-{number}", self.key)
    }

    fn go_on(&self) -> Result<(), Failure> {
        self.halted.now().map_or(Ok(()), |halt| Err(halt_failure(halt)))
    }
}
