//! The wait queue of one lock: strictly first come, first served, with upgrading holders ahead.
//!
//! No operation except `position` and `iter` walks the queue.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::name::NameHashBuilder;
use super::{Holder, LockMode, RequestKey, SharedStr};
use crate::Moment;

/// The smallest difference between two scores: half a microsecond, exact in a double.
const MIN_INCREMENT_MS: f64 = 1.0 / 2048.0;

/// The arrival time of a waiter in milliseconds. Scores of one lock are unique and never go backwards.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueScore(f64);

impl QueueScore {
    /// The score of a waiter that arrives at `now`, after the waiter with this score.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "microseconds stay below 2^53 until the year 2255")]
    pub fn next(self, now: Moment) -> Self {
        Self((self.0 + MIN_INCREMENT_MS).max(now.micros() as f64 / 1000.0))
    }

    pub const fn from_millis(millis: f64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch, with a fraction that breaks ties.
    pub const fn as_millis(self) -> f64 {
        self.0
    }
}

impl Eq for QueueScore {}

impl Ord for QueueScore {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for QueueScore {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The sort key of a waiter: upgrades first, then by score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey {
    is_regular: bool,
    score: QueueScore,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    pub holder: Holder,
    pub request: RequestKey,
    pub mode: LockMode,
    pub score: QueueScore,
    /// Whether it already holds the lock in shared mode, and therefore waits ahead of the others.
    pub is_upgrade: bool,
    /// Informational; the order does not depend on it.
    pub priority: i32,
    pub purpose: SharedStr,
    pub requested_at: Moment,
    /// The wait times out at this moment.
    pub deadline: Moment,
    /// The server that keeps the caller's connection open; `None` for a ticket.
    pub served_by: Option<SharedStr>,
    /// How long the lease is if a grant may start it at once; `None` while the request has more locks to acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// See [`Acquisition::leave_tombstone`](super::Acquisition::leave_tombstone).
    pub leave_tombstone: bool,
}

impl Waiter {
    pub fn queue_key(&self) -> QueueKey {
        QueueKey { is_regular: !self.is_upgrade, score: self.score }
    }
}

/// Most locks have no waiters; an empty queue is a null pointer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct WaitQueue {
    inner: Option<Box<Inner>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Inner {
    waiters: BTreeMap<QueueKey, Waiter>,
    exclusive: BTreeSet<QueueKey>,
    by_holder: HashMap<Holder, QueueKey, NameHashBuilder>,
    by_deadline: BTreeSet<(Moment, QueueKey)>,
}

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.waiters.len())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.inner.is_none()
    }

    pub(super) fn head(&self) -> Option<&Waiter> {
        self.inner.as_ref()?.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    pub(super) fn tail(&self) -> Option<&Waiter> {
        self.inner.as_ref()?.waiters.last_key_value().map(|(_, waiter)| waiter)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.inner.iter().flat_map(|inner| inner.waiters.values())
    }

    pub(super) fn get(&self, holder: &Holder) -> Option<&Waiter> {
        let inner = self.inner.as_ref()?;
        inner.waiters.get(inner.by_holder.get(holder)?)
    }

    /// The head is 1.
    pub(super) fn position(&self, waiter: &Waiter) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.waiters.range(..=waiter.queue_key()).count())
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.inner.as_ref()?.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// The waiter with the earliest deadline.
    pub(super) fn next_to_time_out(&self) -> Option<&Waiter> {
        let inner = self.inner.as_ref()?;
        inner.waiters.get(&inner.by_deadline.first()?.1)
    }

    /// Replaces an earlier wait of the same holder, because a holder waits once.
    pub(super) fn insert(&mut self, waiter: Waiter) {
        let key = waiter.queue_key();
        self.remove(&waiter.holder);
        let inner = self.inner.get_or_insert_default();
        inner.by_holder.insert(waiter.holder.clone(), key);
        inner.by_deadline.insert((waiter.deadline, key));
        if waiter.mode == LockMode::Exclusive {
            inner.exclusive.insert(key);
        }
        inner.waiters.insert(key, waiter);
    }

    pub(super) fn remove(&mut self, holder: &Holder) -> Option<Waiter> {
        let inner = self.inner.as_mut()?;
        let key = inner.by_holder.remove(holder)?;
        let waiter = inner.waiters.remove(&key)?;
        inner.by_deadline.remove(&(waiter.deadline, key));
        inner.exclusive.remove(&key);
        if inner.waiters.is_empty() {
            self.inner = None;
        }
        Some(waiter)
    }

    /// A holder's wait, and the nearest earlier waiters that are incompatible with it. Farther ones are reached through
    /// these.
    pub(super) fn waiter_and_blockers(&self, holder: &Holder) -> Option<(&Waiter, Vec<&Waiter>)> {
        let inner = self.inner.as_ref()?;
        let key = *inner.by_holder.get(holder)?;
        // A single reverse iteration from its own key: one descent of the tree instead of several.
        let mut backwards = inner.waiters.range(..=key).rev().map(|(_, waiter)| waiter);
        let own = backwards.next()?;
        if own.mode == LockMode::Shared {
            let nearest = inner.exclusive.range(..key).next_back();
            return Some((own, nearest.and_then(|key| inner.waiters.get(key)).into_iter().collect()));
        }
        let mut blockers = Vec::new();
        for waiter in backwards {
            blockers.push(waiter);
            if waiter.mode == LockMode::Exclusive {
                break;
            }
        }
        Some((own, blockers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_unique_and_never_go_backwards() {
        let now = Moment::from_micros(1_794_744_000_000_123);
        let first = QueueScore::default().next(now);
        assert!((first.as_millis() - 1_794_744_000_000.123).abs() < 0.001);
        let mut last = first;
        for _ in 0..10_000 {
            let next = last.next(now);
            assert!(next > last);
            last = next;
        }
        assert!(last.next(Moment::from_micros(1)) > last);
        assert!(first.next(Moment::from_micros(now.micros() + 1)) > first);
    }
}
