//! The wait-for graph: who waits for whom, whether that closes a circle, and who gives way.
//!
//! Nodes are holders and locks: a holder leads to the locks it waits for, a lock to its holders, and a wait to the nearest
//! earlier waiters that it could not hold together with. A hot lock is a node of its own, so the graph grows with waits
//! and holds, not with their product.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Holder, LockName, RequestKey};
use crate::Moment;

/// One step of a cycle: a holder, and the lock that it waits for. The holder of the next edge is in its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    /// Who waits.
    pub holder: Holder,
    /// For which lock.
    pub waits_for: LockName,
    /// By which request.
    pub request: RequestKey,
}

/// Holders that wait for each other, in order; the last waits for the first.
pub type Cycle = Vec<Edge>;

/// A cycle that was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// Who waited for whom.
    pub cycle: Arc<Cycle>,
    /// Who gave way.
    pub victim: Holder,
    /// The locks that were taken from it.
    pub freed: Vec<LockName>,
}

/// What the search must be able to see.
pub trait Sight {
    /// The locks that a holder waits for, and by which request.
    fn waits(&self, holder: &Holder) -> Vec<(LockName, RequestKey)>;
    /// Whether a holder holds a lock.
    fn is_held_by(&self, lock: &LockName, holder: &Holder) -> bool;
    /// Who holds a lock.
    fn holders(&self, lock: &LockName) -> Vec<Holder>;
    /// The nearest earlier waiters in whose way this holder's wait is.
    fn ahead(&self, lock: &LockName, holder: &Holder) -> Vec<Holder>;
}

/// The shortest cycle through `start`, beginning with it, if its waiting closes one.
#[must_use]
pub fn cycle_through(sight: &impl Sight, start: &Holder) -> Option<Cycle> {
    // How each holder was reached: by whose wait for which lock.
    let mut reached: BTreeMap<Holder, Edge> = BTreeMap::new();
    let mut opened: BTreeSet<LockName> = BTreeSet::new();
    let mut next = VecDeque::from([start.clone()]);
    while let Some(holder) = next.pop_front() {
        for (lock, request) in sight.waits(&holder) {
            let edge = Edge { holder: holder.clone(), waits_for: lock.clone(), request };
            let ahead = sight.ahead(&lock, &holder);
            // The holders of a lock lead on once, whoever waits for it. Only the way back to the start depends on who
            // waits: the start does not wait for itself.
            if holder != *start && (ahead.contains(start) || sight.is_held_by(&lock, start)) {
                return Some(trace(&reached, edge));
            }
            let holders = if opened.insert(lock.clone()) { sight.holders(&lock) } else { Vec::new() };
            for blocker in ahead.into_iter().chain(holders) {
                if blocker != *start && blocker != holder && !reached.contains_key(&blocker) {
                    reached.insert(blocker.clone(), edge.clone());
                    next.push_back(blocker);
                }
            }
        }
    }
    None
}

/// From the last edge back to the start, then in order.
fn trace(reached: &BTreeMap<Holder, Edge>, last: Edge) -> Cycle {
    let mut cycle = vec![last];
    while let Some(edge) = cycle.last().and_then(|edge| reached.get(&edge.holder)) {
        cycle.push(edge.clone());
    }
    cycle.reverse();
    cycle
}

/// What decides who gives way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub holder: Holder,
    /// When the oldest of its locks was granted, or would have been if it had not given way before; never if it holds
    /// nothing.
    pub oldest_grant: Option<Moment>,
    /// How important its waiting request is.
    pub priority: i32,
}

/// Who gives way: the youngest, whose oldest lock was granted last; then the least important; then by name.
#[must_use]
pub fn victim(candidates: impl IntoIterator<Item = Candidate>) -> Option<Candidate> {
    let age = |candidate: &Candidate| candidate.oldest_grant.unwrap_or(Moment::from_micros(u64::MAX));
    candidates.into_iter().max_by(|a, b| {
        age(a).cmp(&age(b)).then_with(|| b.priority.cmp(&a.priority)).then_with(|| a.holder.cmp(&b.holder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, oldest_grant: Option<u64>, priority: i32) -> Candidate {
        let holder = Holder::new(name, None).expect("valid");
        Candidate { holder, oldest_grant: oldest_grant.map(Moment::from_micros), priority }
    }

    #[test]
    fn the_youngest_gives_way_then_the_least_important_then_by_name() {
        let chosen = |candidates: &[Candidate]| victim(candidates.to_vec()).map(|c| c.holder.to_string());
        let (old, young) = (candidate("old", Some(1), 0), candidate("young", Some(2), 9));
        assert_eq!(chosen(&[old.clone(), young.clone()]).as_deref(), Some("young"));
        assert_eq!(chosen(&[young, old.clone()]).as_deref(), Some("young"));
        assert_eq!(chosen(&[old.clone(), candidate("z", Some(1), 1)]).as_deref(), Some("old"));
        assert_eq!(chosen(&[old.clone(), candidate("z", Some(1), 0)]).as_deref(), Some("z"));
        assert_eq!(chosen(&[old, candidate("idle", None, 0)]).as_deref(), Some("idle"));
        assert_eq!(chosen(&[]), None);
    }
}
