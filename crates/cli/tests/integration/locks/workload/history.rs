//! The responses of a server as recorded by all agents, and the checks that they never contradict each other.
//!
//! A grant ends no earlier than its release is sent or its last known lease expires.

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire::{Grant, Lock, LockMode, LockWaiter, Ticket};
use jiff::{SignedDuration, Timestamp};

/// Tolerance between the clocks of two processes on one machine.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_millis(20);

#[derive(Debug, Clone)]
pub(crate) struct RecordedGrant {
    pub(crate) holder: String,
    pub(crate) mode: LockMode,
    pub(crate) acquired_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) release_sent: Option<Timestamp>,
}

impl RecordedGrant {
    fn ends_at(&self) -> Timestamp {
        self.release_sent.map_or(self.expires_at, |sent| sent.min(self.expires_at))
    }

    /// Whether a request sent before `now` must still find this grant.
    pub(crate) fn is_alive(&self, now: Timestamp) -> bool {
        self.release_sent.is_none() && self.expires_at > now + MAX_CLOCK_SKEW
    }
}

/// A counter with fencing: it rejects tokens below the highest one it has seen.
#[derive(Debug, Default)]
pub(crate) struct FencedCounter {
    highest: u64,
    pub(crate) value: u64,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
}

impl FencedCounter {
    pub(crate) fn read(&mut self, token: u64) -> Option<u64> {
        self.admits(token).then_some(self.value)
    }

    pub(crate) fn write(&mut self, token: u64, value: u64) {
        if self.admits(token) {
            self.value = value;
            self.accepted += 1;
        }
    }

    fn admits(&mut self, token: u64) -> bool {
        let admitted = token >= self.highest;
        self.highest = self.highest.max(token);
        self.rejected += u64::from(!admitted);
        admitted
    }
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// By lock and fencing token.
    pub(crate) grants: BTreeMap<(String, u64), RecordedGrant>,
    /// Last known state of the tickets that wait or can be claimed, by holder.
    pub(crate) tickets: BTreeMap<String, Ticket>,
    /// Last known queue of each lock.
    pub(crate) queues: BTreeMap<String, Vec<LockWaiter>>,
    /// Holders that left a queue without a grant.
    pub(crate) left: BTreeSet<String>,
    pub(crate) counters: BTreeMap<String, FencedCounter>,
}

impl History {
    pub(crate) fn record_grants(&mut self, holder: &str, grants: &[Grant]) {
        for grant in grants {
            let held = RecordedGrant {
                holder: holder.to_owned(),
                mode: grant.mode,
                acquired_at: grant.acquired_at.0,
                expires_at: grant.expires_at.0,
                release_sent: None,
            };
            let key = (grant.lock.clone(), grant.fencing_token);
            let known = self.grants.entry(key).or_insert_with(|| held.clone());
            assert_eq!(known.holder, held.holder, "two holders have the same token: {grant:?}");
            known.expires_at = known.expires_at.max(held.expires_at);
        }
    }

    /// Call this before the release is sent.
    pub(crate) fn record_release(&mut self, lock: &str, token: u64, at: Timestamp) {
        if let Some(held) = self.grants.get_mut(&(lock.to_owned(), token)) {
            held.release_sent = Some(held.release_sent.map_or(at, |before| before.min(at)));
        }
    }

    /// After a restart every waiter is still queued in the same order, or left for a known reason.
    pub(crate) fn check_queue(&self, lock: &Lock, now: Timestamp) {
        let Some(before) = self.queues.get(&lock.lock) else { return };
        let position = |waiter: &LockWaiter| lock.queue.iter().position(|w| w.holder_id == waiter.holder_id);
        let positions: Vec<usize> = before.iter().filter_map(position).collect();
        assert!(
            positions.is_sorted(),
            "queue of {} was reordered from {before:?} to {:?}",
            lock.lock,
            lock.queue
        );
        for waiter in before.iter().filter(|waiter| position(waiter).is_none()) {
            let id = &waiter.holder_id;
            let promoted = lock.holders.iter().any(|holder| holder.holder_id == *id);
            let was_granted = self.grants.values().any(|held| held.holder == *id);
            let gave_up = waiter.deadline.0 <= now + MAX_CLOCK_SKEW || self.left.contains(id);
            assert!(promoted || was_granted || gave_up, "{waiter:?} was lost: {lock:?}");
        }
    }

    /// Exclusive grants never overlap, tokens increase over time, and no counter update is lost.
    pub(crate) fn check_all(&self) {
        let mut locks: BTreeMap<&str, Vec<(u64, &RecordedGrant)>> = BTreeMap::new();
        for ((lock, token), held) in &self.grants {
            locks.entry(lock).or_default().push((*token, held));
        }
        for (lock, grants) in locks {
            // The grants are ordered by token.
            for (index, (token, held)) in grants.iter().enumerate() {
                for (later_token, later) in grants.iter().skip(index + 1) {
                    assert!(
                        later.acquired_at >= held.acquired_at,
                        "{lock}: token {later_token} was granted before {token}: {later:?} {held:?}"
                    );
                    let are_shared = held.mode == LockMode::Shared && later.mode == LockMode::Shared;
                    assert!(
                        are_shared || later.acquired_at + MAX_CLOCK_SKEW >= held.ends_at(),
                        "{lock}: conflicting grants overlap: {token} {held:?} and {later_token} {later:?}"
                    );
                }
            }
        }
        for (lock, counter) in &self.counters {
            assert_eq!(counter.value, counter.accepted, "{lock}: updates were lost");
        }
    }
}
