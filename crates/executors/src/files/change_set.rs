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
use super::{StepHook, attempt_key};
use crate::{AttemptOutcome, Failure, Result, Run, SideEffects, StopSignal};

/// The changes of one attempt.
pub(super) struct ChangeSet {
    tree: Tree,
    /// The [`attempt_key`].
    key: String,
    snapshot: Snapshot,
    stop: StopSignal,
    step_hook: Option<StepHook>,
    /// Whether a file was replaced or deleted.
    has_changed: Cell<bool>,
    /// Whether the attempt was registered when it began. Only then may it unregister itself.
    was_registered: Cell<bool>,
}

impl ChangeSet {
    pub(super) fn new(tree: Tree, run: &Run, snapshot: Snapshot, step_hook: Option<StepHook>) -> Self {
        let (key, stop) = (attempt_key(&run.task_id, run.attempt), run.stop.clone());
        let (has_changed, was_registered) = (Cell::new(false), Cell::new(false));
        Self { tree, key, snapshot, stop, step_hook, has_changed, was_registered }
    }

    /// Changes all files or none. The attempt ends only with [`Self::finish`].
    pub(super) fn apply(&self, specs: &[FileSpec]) -> Result<()> {
        if !self.tree.is_registered(&self.key)? {
            // An attempt that recovery has marked as in progress stays registered: its outcome is not decided yet.
            let message = "another worker has recovered this attempt; nothing was changed by this worker";
            return Err(Failure::permanent(message));
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
        let (side_effects, message) = match self.restore() {
            Ok(()) if !self.has_changed.get() => return failure,
            Ok(()) => (SideEffects::RolledBack, format!("{failure}; everything was rolled back")),
            Err(error) => {
                (SideEffects::Remaining, format!("{failure}; the immediate rollback failed: {error}"))
            }
        };
        Failure { side_effects, message, is_retryable: false, ..failure }
    }

    /// Checks that nothing was changed since the snapshot.
    fn check_unchanged(&self, specs: &[FileSpec]) -> Result<()> {
        self.stop.check(SideEffects::None)?;
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

    fn change_files(&self, specs: &[FileSpec]) -> Result<()> {
        for dir in &self.snapshot.dirs {
            self.next_step()?;
            self.tree.create_dir(dir)?;
        }
        for (index, entry) in self.changed_entries() {
            let content = specs.get(index).and_then(|spec| spec.content.as_ref());
            if let (Some(after), Some(content)) = (entry.after, content) {
                self.next_step()?;
                let owner = entry.before.as_ref().map(|before| (before.owner, before.group));
                let access = Access { mode: after.mode, owner };
                self.tree.write_temp(&entry.path, &self.temp_name(index), content.as_bytes(), access)?;
            }
        }
        for (index, entry) in self.changed_entries().filter(|(_, entry)| entry.after.is_some()) {
            self.next_step()?;
            self.tree.rename_temp(&entry.path, &self.temp_name(index), entry.before.is_none())?;
            self.has_changed.set(true);
        }
        for (_, entry) in self.changed_entries().filter(|(_, entry)| entry.after.is_none()) {
            self.next_step()?;
            self.tree.remove_file(&entry.path)?;
            self.has_changed.set(true);
        }
        self.call_step_hook();
        Ok(self.sync_dirs()?)
    }

    /// Restores all files and ends the attempt. If somebody else has modified one of them, none is touched.
    pub(super) fn roll_back(&self) -> Result<()> {
        self.stop.check(SideEffects::Remaining)?;
        let restored = self.restore();
        let _ = self.tree.unregister(&self.key);
        restored.map_err(|failure| Failure::with_side_effects(SideEffects::Remaining, failure.message))
    }

    fn restore(&self) -> Result<()> {
        self.remove_temps()?;
        let mut modified = Vec::new();
        for (_, entry) in self.changed_entries() {
            if entry.state(&self.tree)? == FileState::Modified {
                modified.push(format!("{:?}", entry.path));
            }
        }
        if !modified.is_empty() {
            let modified = modified.join(", ");
            let message = format!("somebody else has modified {modified} since; restore the files by hand");
            return Err(Failure::permanent(message));
        }
        for (index, entry) in self.changed_entries() {
            if entry.is_unchanged(&self.tree)? {
                continue;
            }
            self.call_step_hook();
            match &entry.before {
                None => self.tree.remove_file(&entry.path)?,
                Some(before) => {
                    let access = Access { mode: before.mode, owner: Some((before.owner, before.group)) };
                    let temp_name = self.temp_name(index);
                    self.tree.write_temp(&entry.path, &temp_name, &before.content, access)?;
                    self.call_step_hook();
                    self.tree.rename_temp(&entry.path, &temp_name, false)?;
                }
            }
        }
        for dir in self.snapshot.dirs.iter().rev() {
            self.call_step_hook();
            self.tree.remove_dir(dir)?;
        }
        self.call_step_hook();
        Ok(self.sync_dirs()?)
    }

    /// Blocks the attempt and determines what it has changed.
    pub(super) fn resolve_outcome(&self) -> Result<AttemptOutcome> {
        // If this worker was suspended until another one has recovered the attempt, marking it again would block everybody.
        self.stop.check(SideEffects::None)?;
        // From here on the attempt is blocked, and others wait until its outcome is decided.
        self.tree.mark_in_progress(&self.key)?;
        self.remove_temps()?;
        let (mut is_before, mut is_after) = (true, true);
        for (_, entry) in self.changed_entries() {
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
            return Ok(AttemptOutcome::NotApplied);
        }
        Ok(if is_after { AttemptOutcome::Applied } else { AttemptOutcome::PartiallyApplied })
    }

    fn changed_entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.snapshot.entries.iter().enumerate().filter(|(_, entry)| entry.is_change())
    }

    fn remove_temps(&self) -> Result<(), TreeError> {
        let mut entries = self.snapshot.entries.iter().enumerate();
        entries.try_for_each(|(index, entry)| self.tree.remove_temp(&entry.path, &self.temp_name(index)))
    }

    /// Makes all created, renamed and deleted names durable.
    fn sync_dirs(&self) -> Result<(), TreeError> {
        let mut synced = BTreeSet::new();
        for path in self.changed_entries().map(|(_, entry)| &entry.path).chain(&self.snapshot.dirs) {
            if synced.insert(parent_dirs(path).last()) {
                self.tree.sync_parent(path)?;
            }
        }
        Ok(())
    }

    fn temp_name(&self, index: usize) -> String {
        format!("{TEMP_PREFIX}{}-{index}", self.key)
    }

    fn next_step(&self) -> Result<()> {
        self.stop.check(SideEffects::None)?;
        self.call_step_hook();
        Ok(())
    }

    fn call_step_hook(&self) {
        if let Some(hook) = &self.step_hook {
            hook();
        }
    }
}
