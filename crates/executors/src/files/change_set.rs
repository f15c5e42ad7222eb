//! Changes files all or none, and restores them. Everything here happens under the lock of the root.
//!
//! All new content is first written to temporary files and synced. Then each file is renamed into place, one after the other, and
//! files to be deleted are deleted last. Wherever this is interrupted, each file has its old or its new content, and temporary
//! files have known names, so that the snapshot is enough to restore the old state. A failure reports whether everything was
//! restored.

use std::cell::Cell;
use std::collections::BTreeSet;

use ade_domain::task::Digest;

use super::parameters::{FileSpec, TEMP_PREFIX, parent_dirs};
use super::snapshot::{Entry, FileState, Snapshot};
use super::tree::{Access, Tree, TreeError};
use super::{AttemptKey, Steps};
use crate::{AttemptOutcome, Failure, Run, SideEffects, StopSignal};

/// The changes of one attempt.
pub(super) struct ChangeSet {
    tree: Tree,
    /// The [`AttemptKey`] as text.
    key: String,
    snapshot: Snapshot,
    stop: StopSignal,
    steps: Steps,
    /// Whether a file was replaced or deleted.
    has_changed: Cell<bool>,
    /// Whether the attempt was registered when it began. Only then may it unregister itself.
    was_registered: Cell<bool>,
}

impl ChangeSet {
    pub(super) fn new(tree: Tree, run: &Run, snapshot: Snapshot, steps: Steps) -> Self {
        let (key, stop) = (AttemptKey::of(run).to_string(), run.stop.clone());
        let (has_changed, was_registered) = (Cell::new(false), Cell::new(false));
        Self { tree, key, snapshot, stop, steps, has_changed, was_registered }
    }

    /// Changes all files or none. The attempt ends only with [`Self::finish`].
    pub(super) fn apply(&self, specs: &[FileSpec]) -> Result<(), Failure> {
        if !self.tree.is_registered(&self.key)? {
            // An attempt that recovery has marked as in progress stays registered: its outcome is not decided yet.
            return Err(Failure::permanent(
                "another worker has recovered this attempt; nothing was changed by this worker",
            ));
        }
        self.was_registered.set(true);
        self.check_unchanged(specs)?;
        // If this is interrupted, no other attempt changes anything before the recovery.
        self.tree.mark_in_progress(&self.key)?;
        self.change_files(specs).map_err(|failure| self.revert_after(failure))
    }

    /// Ends the attempt.
    pub(super) fn finish(&self) {
        if self.was_registered.get() {
            // After an error the attempt stays registered until its recovery.
            let _ = self.tree.unregister(&self.key);
        }
    }

    /// Restores all files after a failure, and adds the result to it.
    pub(super) fn revert_after(&self, failure: Failure) -> Failure {
        match self.restore() {
            Ok(()) if self.has_changed.get() => {
                let message = format!("{failure}; everything was rolled back");
                Failure { side_effects: SideEffects::RolledBack, is_retryable: false, message, ..failure }
            }
            Ok(()) => failure,
            Err(error) => {
                let message = format!("{failure}; the immediate rollback failed: {error}");
                Failure { side_effects: SideEffects::Remaining, is_retryable: false, message, ..failure }
            }
        }
    }

    /// Checks that nothing was changed since the snapshot.
    fn check_unchanged(&self, specs: &[FileSpec]) -> Result<(), Failure> {
        self.check_stop()?;
        let spec_hash =
            |spec: &FileSpec| spec.content.as_ref().map(|content| Digest::of_bytes(content.as_bytes()));
        let entry_hash = |entry: &Entry| entry.after.map(|after| after.hash);
        let expected = specs.iter().map(|spec| (&spec.path, spec_hash(spec)));
        if !expected.eq(self.snapshot.entries.iter().map(|entry| (&entry.path, entry_hash(entry)))) {
            return Err(Failure::permanent("the rollback data belongs to other files"));
        }
        let modified = |path: &str| {
            Failure::retryable(format!("{path:?} was modified since the preview; nothing was changed"))
        };
        for entry in &self.snapshot.entries {
            if !entry.is_unchanged(&self.tree)? {
                return Err(modified(&entry.path));
            }
        }
        for dir in &self.snapshot.dirs {
            if self.tree.has_dir(dir)? {
                return Err(modified(dir));
            }
        }
        Ok(())
    }

    fn change_files(&self, specs: &[FileSpec]) -> Result<(), Failure> {
        for dir in &self.snapshot.dirs {
            self.next_step()?;
            self.tree.create_dir(dir)?;
        }
        let changes = || {
            let entries = self.snapshot.entries.iter().zip(specs).enumerate();
            entries.filter(|(_, (entry, _))| entry.is_change())
        };
        for (index, (entry, spec)) in changes() {
            if let (Some(after), Some(content)) = (entry.after, &spec.content) {
                self.next_step()?;
                let owner = entry.before.as_ref().map(|before| (before.owner, before.group));
                let access = Access { mode: after.mode, owner };
                let temp_name = self.temp_name(index);
                self.tree.write_temp(&entry.path, &temp_name, content.as_bytes(), access)?;
            }
        }
        for (index, (entry, _)) in changes().filter(|(_, (entry, _))| entry.after.is_some()) {
            self.next_step()?;
            self.tree.rename_temp(&entry.path, &self.temp_name(index), entry.before.is_none())?;
            self.has_changed.set(true);
        }
        for (_, (entry, _)) in changes().filter(|(_, (entry, _))| entry.after.is_none()) {
            self.next_step()?;
            self.tree.remove_file(&entry.path)?;
            self.has_changed.set(true);
        }
        self.steps.next();
        Ok(self.sync_dirs()?)
    }

    /// Restores all files and ends the attempt. If somebody else has modified one of them, none is touched.
    pub(super) fn roll_back(&self) -> Result<(), Failure> {
        self.check_stop().map_err(Failure::not_rolled_back)?;
        let restored =
            self.restore().map_err(|error| Failure::with_side_effects(SideEffects::Remaining, error));
        let _ = self.tree.unregister(&self.key);
        restored
    }

    fn restore(&self) -> Result<(), String> {
        let text = |error: TreeError| error.to_string();
        self.remove_temps().map_err(text)?;
        let mut modified = Vec::new();
        for entry in self.changed_entries() {
            if entry.state(&self.tree).map_err(text)? == FileState::Modified {
                modified.push(format!("{:?}", entry.path));
            }
        }
        if !modified.is_empty() {
            return Err(format!(
                "somebody else has modified {} since; restore the files by hand",
                modified.join(", ")
            ));
        }
        for (index, entry) in self.snapshot.entries.iter().enumerate().filter(|(_, entry)| entry.is_change())
        {
            if entry.is_unchanged(&self.tree).map_err(text)? {
                continue;
            }
            self.steps.next();
            match &entry.before {
                None => self.tree.remove_file(&entry.path).map_err(text)?,
                Some(before) => {
                    let access = Access { mode: before.mode, owner: Some((before.owner, before.group)) };
                    let temp_name = self.temp_name(index);
                    self.tree.write_temp(&entry.path, &temp_name, &before.content, access).map_err(text)?;
                    self.steps.next();
                    self.tree.rename_temp(&entry.path, &temp_name, false).map_err(text)?;
                }
            }
        }
        for dir in self.snapshot.dirs.iter().rev() {
            self.steps.next();
            self.tree.remove_dir(dir).map_err(text)?;
        }
        self.steps.next();
        self.sync_dirs().map_err(text)
    }

    /// Blocks the attempt and determines what it has changed.
    pub(super) fn resolve_outcome(&self) -> Result<AttemptOutcome, Failure> {
        // If this worker was suspended until another one has recovered the attempt, marking it again would block everybody.
        self.check_stop()?;
        // From here on the attempt is blocked, and others wait until its outcome is decided.
        self.tree.mark_in_progress(&self.key)?;
        self.remove_temps()?;
        let (mut is_before, mut is_after) = (true, true);
        for entry in self.changed_entries() {
            let state = entry.state(&self.tree)?;
            is_before &= state == FileState::Before;
            is_after &= state == FileState::After;
        }
        for dir in &self.snapshot.dirs {
            // An error means that something else is in its place.
            is_before &= !self.tree.has_dir(dir).unwrap_or(false);
        }
        // A set without effective changes counts as not applied.
        if is_before {
            self.tree.unregister(&self.key)?;
        }
        Ok(match (is_before, is_after) {
            (true, _) => AttemptOutcome::NotApplied,
            (false, true) => AttemptOutcome::Applied,
            (false, false) => AttemptOutcome::PartiallyApplied,
        })
    }

    fn changed_entries(&self) -> impl Iterator<Item = &Entry> {
        self.snapshot.entries.iter().filter(|entry| entry.is_change())
    }

    fn remove_temps(&self) -> Result<(), TreeError> {
        let mut entries = self.snapshot.entries.iter().enumerate();
        entries.try_for_each(|(index, entry)| self.tree.remove_temp(&entry.path, &self.temp_name(index)))
    }

    /// Makes all created, renamed and deleted names durable.
    fn sync_dirs(&self) -> Result<(), TreeError> {
        let mut synced = BTreeSet::new();
        for path in self
            .changed_entries()
            .map(|entry| entry.path.as_str())
            .chain(self.snapshot.dirs.iter().map(String::as_str))
        {
            if synced.insert(parent_dirs(path).last()) {
                self.tree.sync_parent(path)?;
            }
        }
        Ok(())
    }

    fn temp_name(&self, index: usize) -> String {
        format!("{TEMP_PREFIX}{}-{index}", self.key)
    }

    fn next_step(&self) -> Result<(), Failure> {
        self.check_stop()?;
        self.steps.next();
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Failure> {
        self.stop.reason().map_or(Ok(()), |reason| Err(Failure::stopped(reason, SideEffects::None)))
    }
}
