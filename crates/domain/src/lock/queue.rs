//! The queue of one lock: strictly first come, first served, with upgrading holders ahead.
//!
//! Finding the head, a holder's place, the nearest exclusive waiter and the next deadline never walks the queue.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::name::ByMark;
use super::{Holder, Mode, RequestKey, Text};
use crate::Moment;

/// The smallest difference between two scores, in milliseconds: half a microsecond, exact in a double.
const STEP: f64 = 1.0 / 2048.0;

/// When a waiter came, in milliseconds: never twice the same, never backwards.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Score(f64);

impl Score {
    /// The score of a waiter that comes at `now`, after this one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "microseconds stay below 2^53 until the year 2255")]
    pub fn next(self, now: Moment) -> Self {
        Self((self.0 + STEP).max(now.micros() as f64 / 1000.0))
    }

    /// A score that a backend kept.
    #[must_use]
    pub const fn from_millis(millis: f64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch, with a fraction that breaks ties.
    #[must_use]
    pub const fn millis(self) -> f64 {
        self.0
    }
}

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A place in the queue. Upgrading holders come first, then everybody by score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    usual: bool,
    score: Score,
}

/// Someone who waits for a lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    /// Who waits.
    pub holder: Holder,
    /// The request that waits.
    pub request: RequestKey,
    /// What it wants.
    pub mode: Mode,
    /// When it came.
    pub score: Score,
    /// Whether it holds the lock in shared mode already, and so stands ahead of the others.
    pub upgrade: bool,
    /// Carried and shown; the order does not depend on it.
    pub priority: i32,
    /// What for.
    pub purpose: Text,
    /// When it asked.
    pub requested_at: Moment,
    /// When it gives up.
    pub deadline: Moment,
    /// The server that holds the request open; none for a ticket.
    pub served_by: Option<Text>,
    /// Whether the request has an id of its caller's, and so must not come back once it is over.
    pub remember: bool,
}

impl Waiter {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { usual: !self.upgrade, score: self.score }
    }
}

/// Waiters in order. Most locks have none, and then this is a null pointer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Queue {
    line: Option<Box<Line>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    waiters: BTreeMap<Place, Waiter>,
    exclusive: BTreeSet<Place>,
    places: HashMap<Holder, Place, ByMark>,
    deadlines: BTreeSet<(Moment, Place)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.waiters.len())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.line.is_none()
    }

    pub(super) fn first(&self) -> Option<&Waiter> {
        self.line.as_ref()?.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    pub(super) fn last(&self) -> Option<&Waiter> {
        self.line.as_ref()?.waiters.last_key_value().map(|(_, waiter)| waiter)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.line.iter().flat_map(|line| line.waiters.values())
    }

    pub(super) fn of(&self, holder: &Holder) -> Option<&Waiter> {
        let line = self.line.as_ref()?;
        line.waiters.get(line.places.get(holder)?)
    }

    /// How many stand ahead of it, and it: the head is 1.
    pub(super) fn position(&self, waiter: &Waiter) -> usize {
        self.line.as_ref().map_or(0, |line| line.waiters.range(..=waiter.place()).count())
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.line.as_ref()?.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The waiter whose deadline comes first.
    pub(super) fn first_to_give_up(&self) -> Option<&Waiter> {
        let line = self.line.as_ref()?;
        line.waiters.get(&line.deadlines.first()?.1)
    }

    /// Adds a waiter. A holder waits once: an earlier wait of it is replaced.
    pub(super) fn push(&mut self, waiter: Waiter) {
        let place = waiter.place();
        self.remove(&waiter.holder);
        let line = self.line.get_or_insert_default();
        line.places.insert(waiter.holder.clone(), place);
        line.deadlines.insert((waiter.deadline, place));
        if waiter.mode == Mode::Exclusive {
            line.exclusive.insert(place);
        }
        line.waiters.insert(place, waiter);
    }

    pub(super) fn remove(&mut self, holder: &Holder) -> Option<Waiter> {
        let line = self.line.as_mut()?;
        let place = line.places.remove(holder)?;
        let waiter = line.waiters.remove(&place)?;
        line.deadlines.remove(&(waiter.deadline, place));
        line.exclusive.remove(&place);
        if line.waiters.is_empty() {
            self.line = None;
        }
        Some(waiter)
    }

    /// A holder's wait, and the nearest earlier waiters that it could not hold together with. Farther ones are reached
    /// through these.
    pub(super) fn wait_and_ahead(&self, holder: &Holder) -> Option<(&Waiter, Vec<&Waiter>)> {
        let line = self.line.as_ref()?;
        let place = *line.places.get(holder)?;
        // Going back from its own place: one walk down the tree finds all of them.
        let mut back = line.waiters.range(..=place).rev().map(|(_, waiter)| waiter);
        let own = back.next()?;
        if own.mode == Mode::Shared {
            let nearest = line.exclusive.range(..place).next_back();
            return Some((own, nearest.and_then(|place| line.waiters.get(place)).into_iter().collect()));
        }
        let mut ahead = Vec::new();
        for waiter in back {
            ahead.push(waiter);
            if waiter.mode == Mode::Exclusive {
                break;
            }
        }
        Some((own, ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_milliseconds_that_never_tie_and_never_go_back() {
        let now = Moment::from_micros(1_794_744_000_000_123);
        let first = Score::default().next(now);
        assert!((first.millis() - 1_794_744_000_000.123).abs() < 0.001);
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
