//! What the server has answered, from which it can be told whether it ever contradicted itself.
//!
//! A grant counts as over at the earliest when its release was sent, or when the last lease that was answered ran out.

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire::{Grant, Lock, LockWaiter, Mode, Ticket};
use jiff::{SignedDuration, Timestamp};

/// Clocks of two processes of a machine may be apart by a little.
const SKEW: SignedDuration = SignedDuration::from_millis(20);

/// A grant that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) holder: String,
    pub(crate) mode: Mode,
    pub(crate) acquired_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) release_sent: Option<Timestamp>,
}

impl Held {
    fn over_at(&self) -> Timestamp {
        self.release_sent.map_or(self.expires_at, |sent| sent.min(self.expires_at))
    }

    /// Whether it must still be there, when it was looked for before `now`.
    pub(crate) fn lives(&self, now: Timestamp) -> bool {
        self.release_sent.is_none() && self.expires_at > now + SKEW
    }
}

/// A counter that refuses whoever comes with a token below the highest that it has seen.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    highest: u64,
    pub(crate) value: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

impl Counter {
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
        self.refused += u64::from(!admitted);
        admitted
    }
}

/// Everything that was answered.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// By lock and token.
    pub(crate) grants: BTreeMap<(String, u64), Held>,
    /// Tickets that wait or may be claimed, as they were last seen.
    pub(crate) tickets: BTreeMap<String, Ticket>,
    /// Queues as they were last seen.
    pub(crate) queues: BTreeMap<String, Vec<LockWaiter>>,
    /// Who has left a queue by itself.
    pub(crate) left: BTreeSet<String>,
    pub(crate) counters: BTreeMap<String, Counter>,
}

impl History {
    pub(crate) fn granted(&mut self, holder: &str, grants: &[Grant]) {
        for grant in grants {
            let held = Held {
                holder: holder.to_owned(),
                mode: grant.mode,
                acquired_at: grant.acquired_at.0,
                expires_at: grant.expires_at.0,
                release_sent: None,
            };
            let key = (grant.lock.clone(), grant.fencing_token);
            let known = self.grants.entry(key).or_insert_with(|| held.clone());
            assert_eq!(known.holder, held.holder, "one token, two holders: {grant:?}");
            known.expires_at = known.expires_at.max(held.expires_at);
        }
    }

    /// The release of a grant is being sent.
    pub(crate) fn releasing(&mut self, lock: &str, token: u64, at: Timestamp) {
        if let Some(held) = self.grants.get_mut(&(lock.to_owned(), token)) {
            held.release_sent = Some(held.release_sent.map_or(at, |before| before.min(at)));
        }
    }

    /// After a restart: who waited still waits, in the same order, or has a reason not to.
    pub(crate) fn check_queue(&self, lock: &Lock, now: Timestamp) {
        let Some(before) = self.queues.get(&lock.lock) else { return };
        let place = |waiter: &LockWaiter| lock.queue.iter().position(|w| w.holder_id == waiter.holder_id);
        let places: Vec<usize> = before.iter().filter_map(place).collect();
        assert!(places.is_sorted(), "{} was reordered: {before:?} became {:?}", lock.lock, lock.queue);
        for waiter in before.iter().filter(|waiter| place(waiter).is_none()) {
            let id = &waiter.holder_id;
            let promoted = lock.holders.iter().any(|by| by.holder_id == *id);
            let was_granted = self.grants.values().any(|held| held.holder == *id);
            let gave_up = waiter.deadline.0 <= now + SKEW || self.left.contains(id);
            assert!(promoted || was_granted || gave_up, "{waiter:?} was lost: {lock:?}");
        }
    }

    /// At the end: no lock was held by two of whom one wanted it alone, and tokens only grew.
    pub(crate) fn check(&self) {
        let mut locks: BTreeMap<&str, Vec<(u64, &Held)>> = BTreeMap::new();
        for ((lock, token), held) in &self.grants {
            locks.entry(lock).or_default().push((*token, held));
        }
        for (lock, grants) in locks {
            // By token.
            for (at, (token, held)) in grants.iter().enumerate() {
                for (later_token, later) in grants.iter().skip(at + 1) {
                    assert!(
                        later.acquired_at >= held.acquired_at,
                        "{lock}: token {later_token} is older than {token}: {later:?} {held:?}"
                    );
                    let together = held.mode == Mode::Shared && later.mode == Mode::Shared;
                    assert!(
                        together || later.acquired_at + SKEW >= held.over_at(),
                        "{lock} was held twice: {token} {held:?} and {later_token} {later:?}"
                    );
                }
            }
        }
        for (lock, counter) in &self.counters {
            assert_eq!(counter.value, counter.accepted, "updates of {lock} were lost");
        }
    }
}
