//! The locks in use and the locks with waiters, each ordered by name: what lists, the wait graph and counts read.
//!
//! Every server writes the net result of the changes that it caused, shortly afterwards: a lock that is given back
//! before that is never written. Nothing but reads for people depends on these indexes. A reader that
//! meets an entry without a lock removes it; the next heartbeat or the next visit of a queue restores a missing one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ade_domain::lock::{LockKind, LockName};
use ade_keyspace::RedisKey;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::command::{ChangeKind, ReportedChange};
use super::keys::LockKeys;
use super::query::{NO_ARGS, command};
use super::{Inner, Result, locked};
use crate::coordination::LockFilter;

/// How long a change may be missing from the indexes for the other servers.
const WRITE_DELAY: Duration = Duration::from_millis(50);
/// Names per command: bounds how long Redis is busy with one.
pub(super) const NAMES_PER_COMMAND: usize = 500;

#[derive(Debug, Clone, Copy)]
pub(super) enum NameIndex {
    /// Locks that somebody holds or waits for.
    Used,
    /// Locks that somebody waits for.
    Awaited,
}

/// What this server changed about a lock since it last wrote the indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UnwrittenChange {
    /// Holds that started, less those that ended.
    net_holds: i32,
    /// Whether the last change was the start of a hold or wait.
    is_used: bool,
    /// The same for waits only; `None` if none started or ended.
    is_awaited: Option<bool>,
}

impl UnwrittenChange {
    fn add(&mut self, kind: &ChangeKind) {
        match kind {
            ChangeKind::Granted { last_wait, .. } => {
                self.net_holds += 1;
                self.is_used = true;
                if *last_wait {
                    self.is_awaited = Some(false);
                }
            }
            ChangeKind::Queued { .. } => (self.is_used, self.is_awaited) = (true, Some(true)),
            ChangeKind::HoldEnded { .. } => {
                self.net_holds -= 1;
                self.is_used = false;
            }
            ChangeKind::WaitEnded { .. } => (self.is_used, self.is_awaited) = (false, Some(false)),
            ChangeKind::Claimed | ChangeKind::UpgradeLost | ChangeKind::QueueFull => {}
        }
    }

    /// Both changes in order.
    fn then(self, later: Self) -> Self {
        Self {
            net_holds: self.net_holds + later.net_holds,
            is_used: later.is_used,
            is_awaited: later.is_awaited.or(self.is_awaited),
        }
    }

    /// Whether the lock was taken and given back without a wait, so that the indexes need not know.
    const fn is_void(&self) -> bool {
        !self.is_used && self.net_holds == 0 && self.is_awaited.is_none()
    }
}

#[derive(Debug, Default)]
pub(super) struct NameIndexes {
    unwritten: Mutex<HashMap<LockName, UnwrittenChange>>,
    has_unwritten: Notify,
    /// Held while the indexes are written: a reader waits for it, so that it sees what its own server did before.
    writing: tokio::sync::Mutex<()>,
}

impl NameIndexes {
    pub(super) fn note(&self, name: &LockName, changes: &[ReportedChange]) {
        if changes.is_empty() {
            return;
        }
        let mut unwritten = locked(&self.unwritten);
        let was_empty = unwritten.is_empty();
        let mut change = unwritten.get(name).copied().unwrap_or_default();
        changes.iter().for_each(|reported| change.add(&reported.kind));
        if change.is_void() {
            unwritten.remove(name);
            return;
        }
        unwritten.insert(name.clone(), change);
        drop(unwritten);
        if was_empty {
            self.has_unwritten.notify_one();
        }
    }

    fn take(&self) -> HashMap<LockName, UnwrittenChange> {
        std::mem::take(&mut *locked(&self.unwritten))
    }

    /// What could not be written goes before what happened since.
    fn put_back(&self, earlier: HashMap<LockName, UnwrittenChange>) {
        let mut unwritten = locked(&self.unwritten);
        for (name, change) in earlier {
            let later = unwritten.get(&name).copied();
            unwritten.insert(name, later.map_or(change, |later| change.then(later)));
        }
        drop(unwritten);
        self.has_unwritten.notify_one();
    }
}

/// Writes the indexes whenever something changed, until it is aborted.
pub(super) async fn keep_name_indexes(inner: Arc<Inner>) {
    loop {
        inner.name_indexes.has_unwritten.notified().await;
        sleep(WRITE_DELAY).await;
        inner.write_name_indexes().await;
    }
}

/// Changes that are being written. What is not written, also because the caller was cancelled, is put back.
struct TakenChanges<'a> {
    indexes: &'a NameIndexes,
    changes: HashMap<LockName, UnwrittenChange>,
}

impl Drop for TakenChanges<'_> {
    fn drop(&mut self) {
        self.indexes.put_back(std::mem::take(&mut self.changes));
    }
}

impl Inner {
    /// Writes what is not written yet. What another task is writing is written too when this returns. What cannot be
    /// written, for example because Redis is out of memory, is retried later.
    pub(super) async fn write_name_indexes(&self) {
        let _writing = self.name_indexes.writing.lock().await;
        let mut taken = TakenChanges { indexes: &self.name_indexes, changes: self.name_indexes.take() };
        match self.write_changes(&taken.changes).await {
            Ok(()) => taken.changes.clear(),
            Err(error) => {
                tracing::debug!(%error, "cannot write the indexes of locks by name; retrying");
            }
        }
    }

    async fn write_changes(&self, changes: &HashMap<LockName, UnwrittenChange>) -> Result<()> {
        let names = |is_wanted: fn(&UnwrittenChange) -> bool| -> Vec<LockName> {
            changes.iter().filter(|(_, change)| is_wanted(change)).map(|(name, _)| name.clone()).collect()
        };
        // What frees memory comes first.
        self.remove_unused_names(NameIndex::Used, &names(|change| !change.is_used)).await?;
        self.remove_unused_names(NameIndex::Awaited, &names(|change| change.is_awaited == Some(false)))
            .await?;
        self.add_names(NameIndex::Used, &names(|change| change.is_used)).await?;
        self.add_names(NameIndex::Awaited, &names(|change| change.is_awaited == Some(true))).await
    }

    const fn name_index(&self, index: NameIndex) -> &RedisKey {
        match index {
            NameIndex::Used => &self.keys.locks_by_name,
            NameIndex::Awaited => &self.keys.awaited_by_name,
        }
    }

    pub(super) async fn add_names(&self, index: NameIndex, names: &[LockName]) -> Result<()> {
        let add = |names: &[LockName]| {
            let members: Vec<(u8, &str)> = names.iter().map(|name| (0, name.as_str())).collect();
            command("ZADD", self.name_index(index), members)
        };
        self.run_all(names.chunks(NAMES_PER_COMMAND).map(add).collect()).await
    }

    /// Removes the names of locks that nobody uses or waits for. Somebody may begin to do so at any time, and may add
    /// the name before it is removed: therefore the locks are read after the removal.
    pub(super) async fn remove_unused_names(&self, index: NameIndex, names: &[LockName]) -> Result<()> {
        let remove = |names: &[LockName]| {
            let members: Vec<&str> = names.iter().map(LockName::as_str).collect();
            command("ZREM", self.name_index(index), members)
        };
        self.run_all(names.chunks(NAMES_PER_COMMAND).map(remove).collect()).await?;
        let used: Vec<LockName> = self.used_names(index, names).await?;
        self.add_names(index, &used).await
    }

    /// Those of the locks that belong in the index.
    pub(super) async fn used_names(&self, index: NameIndex, names: &[LockName]) -> Result<Vec<LockName>> {
        let exists = |keys: Arc<LockKeys>| match index {
            NameIndex::Used => command("EXISTS", keys.lock(), keys.queue().as_str()),
            NameIndex::Awaited => command("EXISTS", keys.queue(), NO_ARGS),
        };
        let checks = names.iter().map(|name| self.lock_keys(name).map(exists)).collect::<Result<_>>()?;
        let counts: Vec<usize> = self.query_all(checks).await?;
        let used = names.iter().zip(counts).filter(|(_, count)| *count > 0);
        Ok(used.map(|(name, _)| name.clone()).collect())
    }

    /// At most `limit` names of a range of an index in their order, after `after`. Leaves out what is no name of a lock.
    pub(super) async fn names_after(
        &self,
        index: NameIndex,
        range: &NameRange,
        after: Option<&NameCursor>,
        limit: usize,
    ) -> Result<NamePage> {
        let (mut names, mut rest) = (Vec::new(), limit);
        for (kind, prefix) in &range.prefixes {
            let from = match after {
                Some(after) if after.kind > *kind => continue,
                Some(after) if after.kind == *kind && *after.member > *prefix.as_bytes() => {
                    [b"(", &*after.member].concat()
                }
                _ => [b"[", prefix.as_bytes()].concat(),
            };
            // No name has a byte of this value: they are UTF-8.
            let until = [b"(", prefix.as_bytes(), b"\xff"].concat();
            let range = (from, until, "LIMIT", 0, rest);
            let found: Vec<Vec<u8>> = self.query("ZRANGEBYLEX", self.name_index(index), range).await?;
            rest -= found.len().min(rest);
            names.extend(found.iter().filter_map(|member| str::from_utf8(member).ok()?.parse().ok()));
            if rest == 0 {
                let last = found.into_iter().next_back();
                let next = last.map(|member| NameCursor { kind: *kind, member });
                return Ok(NamePage { names, next });
            }
        }
        Ok(NamePage { names, next: None })
    }

    /// Checks the next names of an index, and removes those without a lock. Returns where to continue; `None` at the end.
    pub(super) async fn check_names(
        &self,
        index: NameIndex,
        after: Option<&NameCursor>,
    ) -> Result<Option<NameCursor>> {
        let NamePage { mut names, next } =
            self.names_after(index, &NameRange::of(&LockFilter::default()), after, NAMES_PER_COMMAND).await?;
        let used: HashSet<LockName> = self.used_names(index, &names).await?.into_iter().collect();
        names.retain(|name| !used.contains(name));
        self.remove_unused_names(index, &names).await?;
        Ok(next)
    }
}

/// Some names of an index, in their order, and where to continue; `None` at the end.
#[derive(Debug)]
pub(super) struct NamePage {
    pub(super) names: Vec<LockName>,
    pub(super) next: Option<NameCursor>,
}

/// A member of an index, which need not be the name of a lock: others may write to it.
#[derive(Debug, Clone)]
pub(super) struct NameCursor {
    kind: LockKind,
    member: Vec<u8>,
}

impl From<&LockName> for NameCursor {
    fn from(name: &LockName) -> Self {
        Self { kind: name.kind(), member: name.as_str().into() }
    }
}

/// A part of the names, in their order.
#[derive(Debug)]
pub(super) struct NameRange {
    prefixes: Vec<(LockKind, String)>,
}

impl NameRange {
    /// The names that the filter allows.
    pub(super) fn of(filter: &LockFilter) -> Self {
        let kinds = [LockKind::Task, LockKind::Resource];
        let kinds = kinds.into_iter().filter(|kind| filter.kind.is_none_or(|wanted| wanted == *kind));
        let prefix = |kind: LockKind| match (&filter.resource_type, kind) {
            (None, _) => Some((kind, format!("{}:", kind.as_str()))),
            (Some(of), LockKind::Resource) => Some((kind, format!("{}:{of}:", kind.as_str()))),
            (Some(_), LockKind::Task) => None,
        };
        Self { prefixes: kinds.filter_map(prefix).collect() }
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::Moment;
    use ade_domain::lock::{FencingToken, Grant, Holder, LockMode};

    use super::*;

    const fn granted(last_wait: bool) -> ChangeKind {
        let (token, at) = (FencingToken::from_number(1), Moment::from_micros(1));
        let grant =
            Grant { mode: LockMode::Exclusive, token, acquired_at: at, expires_at: at, claimed: true };
        ChangeKind::Granted {
            grant,
            is_promotion: last_wait,
            is_unreported: false,
            requests: Vec::new(),
            last_wait,
        }
    }

    const GRANT: ChangeKind = granted(false);
    const PROMOTION: ChangeKind = granted(true);
    const QUEUED: ChangeKind = ChangeKind::Queued { is_alone: true };
    const END: ChangeKind =
        ChangeKind::HoldEnded { token: FencingToken::from_number(1), reason: "released", last_hold: true };

    #[test]
    fn writes_only_the_net_result() {
        let name: LockName = "task:1".parse().expect("valid");
        let used = |is_awaited| Some((true, is_awaited));
        let unused = |is_awaited| Some((false, is_awaited));
        let cases: [(&[ChangeKind], _); 7] = [
            (&[GRANT], used(None)),
            (&[GRANT, END], None),
            (&[GRANT, END, GRANT, END], None),
            (&[END], unused(None)),
            (&[END, GRANT, END], unused(None)),
            (&[QUEUED, END, PROMOTION], used(Some(false))),
            (&[GRANT, QUEUED, END], unused(Some(true))),
        ];
        for (kinds, expected) in cases {
            let indexes = NameIndexes::default();
            let holder = Holder::new("ann", None).expect("valid");
            let change = |kind: &ChangeKind| ReportedChange { holder: holder.clone(), kind: kind.clone() };
            kinds.iter().for_each(|kind| indexes.note(&name, &[change(kind)]));
            let found = indexes.take().get(&name).map(|change| (change.is_used, change.is_awaited));
            assert_eq!(found, expected, "{kinds:?}");
        }
    }

    #[test]
    fn retries_what_could_not_be_written_before_what_happened_since() {
        let name: LockName = "task:1".parse().expect("valid");
        let indexes = NameIndexes::default();
        let holder = Holder::new("ann", None).expect("valid");
        let note = |kind| indexes.note(&name, &[ReportedChange { holder: holder.clone(), kind }]);
        note(GRANT);
        let unwritten = indexes.take();
        note(END);
        indexes.put_back(unwritten);
        let left = indexes.take();
        assert_eq!(left.get(&name).map(|change| change.is_used), Some(false), "it may have been written");
    }
}
