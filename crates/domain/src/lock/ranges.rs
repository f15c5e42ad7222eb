//! The locks of a table in the order of their names: all, of one kind or type, or of one agent. Each is read from where it begins.

use std::ops::Bound;

use super::table::LockTable;
use super::{Lock, LockKind, LockName};

impl LockTable {
    /// The locks whose names sort after `after`, in order.
    pub fn locks_after(&self, after: Option<&LockName>) -> impl Iterator<Item = (&LockName, &Lock)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.range((start, Bound::Unbounded));
        names.filter_map(|name| Some((name, self.lock(name)?)))
    }

    /// The same, of one kind and with a prefix of their names.
    pub fn locks_with_prefix<'a>(
        &'a self,
        kind: LockKind,
        prefix: &'a str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = (&'a LockName, &'a Lock)> {
        let first = LockName::prefix_bound(kind, prefix);
        let names = self.names.range((start_of(&first, after), Bound::Unbounded));
        let has_prefix = move |name: &&LockName| name.kind() == kind && name.as_str().starts_with(prefix);
        names.take_while(has_prefix).filter_map(|name| Some((name, self.lock(name)?)))
    }

    /// The same, of those that an agent holds or waits for; at most `limit`.
    pub fn locks_of_agent(
        &self,
        agent: &str,
        kind: Option<LockKind>,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> impl Iterator<Item = (&LockName, &Lock)> {
        let first = kind.map_or_else(LockName::lower_bound, |kind| LockName::prefix_bound(kind, prefix));
        let is_wanted = |name: &LockName| {
            kind.is_none_or(|kind| name.kind() == kind) && name.as_str().starts_with(prefix)
        };
        let [mut found, awaited] = [&self.held, &self.waiting]
            .map(|index| index.first_of_agent(agent, start_of(&first, after), is_wanted, limit));
        found.extend(awaited);
        found.into_iter().take(limit).filter_map(|name| Some((name, self.lock(name)?)))
    }
}

/// Where the names after `after` begin, but not before `first`.
fn start_of<'a>(first: &'a LockName, after: Option<&'a LockName>) -> Bound<&'a LockName> {
    after.filter(|after| *after >= first).map_or(Bound::Included(first), Bound::Excluded)
}
