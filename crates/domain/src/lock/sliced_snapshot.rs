//! A snapshot of a table, taken in slices while commands go on: nobody waits for the copy of a million locks.
//!
//! It is exact: the table as it was when the snapshot began. A lock that changes before its slice is copied first.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{LockTable, TableChange};
use super::{LockChange, LockName};

#[derive(Debug, Clone, Default)]
pub(super) struct SlicedSnapshot {
    /// Everything up to this name is copied.
    copied: Option<LockName>,
    /// The later locks that have changed since, as they were. One that did not exist has no changes.
    preserved: BTreeMap<LockName, Vec<LockChange>>,
}

impl LockTable {
    /// Begins a snapshot. Returns the part of it that does not belong to any lock.
    pub fn begin_snapshot(&mut self) -> Vec<TableChange> {
        self.snapshot = Some(SlicedSnapshot::default());
        self.victim_ages().collect()
    }

    /// The next part of the snapshot: of at most `limit` locks, also of those that are gone meanwhile, and of fewer if they have so
    /// many holders and waiters that their changes reach the limit. `None` after its end.
    pub fn next_slice(&mut self, limit: usize) -> Option<Vec<TableChange>> {
        let SlicedSnapshot { copied, mut preserved } = self.snapshot.take()?;
        let present = self.locks_after(copied.as_ref()).map(|(name, _)| name).take(limit);
        let names: BTreeSet<LockName> = present.chain(preserved.keys().take(limit)).cloned().collect();
        let (mut slice, mut last, mut is_complete) =
            (Vec::with_capacity(2 * limit), None, names.len() < limit);
        for name in names.into_iter().take(limit) {
            if slice.len() >= limit {
                is_complete = false;
                break;
            }
            let preserved = preserved.remove(&name);
            let changes =
                preserved.or_else(|| Some(self.lock(&name)?.snapshot().collect())).unwrap_or_default();
            slice.extend(changes.into_iter().map(|change| TableChange::Lock(name.clone(), change)));
            last = Some(name);
        }
        self.snapshot = (!is_complete).then_some(SlicedSnapshot { copied: last, preserved });
        Some(slice)
    }

    /// Ends a snapshot, also one that is not complete.
    pub fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Copies a lock that is about to change and that the snapshot has not reached.
    pub(super) fn preserve(&mut self, name: &LockName) {
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.needs(name)) {
            let changes = self.lock(name).map(|lock| lock.snapshot().collect()).unwrap_or_default();
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.preserved.insert(name.clone(), changes);
            }
        }
    }
}

impl SlicedSnapshot {
    fn needs(&self, name: &LockName) -> bool {
        self.copied.as_ref().is_none_or(|copied| name > copied) && !self.preserved.contains_key(name)
    }
}
