//! The wait-for graph: who waits for whom, whether that closes a circle, and who gives way.
//!
//! Nodes are holders and locks: a holder leads to the locks it waits for, a lock to its holders, and a wait to the nearest
//! earlier waiters that it could not hold together with. A hot lock is a node of its own, so the graph grows with waits
//! and holds, not with their product.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::ByMark;
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// Who waited for whom.
    pub cycle: Arc<Cycle>,
    /// Who gave way.
    pub victim: Holder,
    /// The locks that were taken from it.
    pub freed: Vec<LockName>,
}

/// What the search must be able to see. It looks at every holder that can be reached, so it borrows what it sees. Of several
/// cycles that are as short it takes the one that it sees first: a sight has an order that follows from what is seen.
pub trait Sight {
    /// The waits of a holder.
    fn waits(&self, holder: &Holder) -> impl Iterator<Item = Wait<'_>>;
    /// Whether anybody waits for something that a holder holds, or waits behind it. A cheap yes is allowed to be wrong.
    fn may_be_waited_for(&self, holder: &Holder) -> bool;
    /// The locks that a holder holds.
    fn held(&self, holder: &Holder) -> impl Iterator<Item = &LockName>;
    /// Who holds a lock.
    fn holders(&self, lock: &LockName) -> impl Iterator<Item = &Holder>;
}

/// One wait as the search sees it.
#[derive(Debug)]
pub struct Wait<'a> {
    /// Who waits.
    pub holder: &'a Holder,
    /// For which lock.
    pub lock: &'a LockName,
    /// By which request.
    pub request: RequestKey,
    /// The nearest earlier waiters that are in its way.
    pub ahead: Vec<&'a Holder>,
}

/// A step of the search: by whose wait for which lock somebody was reached.
type Step<'a> = (&'a Holder, &'a LockName, RequestKey);

/// The shortest cycle through `start`, beginning with it, if its waiting closes one.
#[must_use]
pub fn cycle_through(sight: &impl Sight, start: &Holder) -> Option<Cycle> {
    // Most of those who queue hold nothing that others want, and are the last of their queue: no way leads back to them.
    if !sight.may_be_waited_for(start) {
        return None;
    }
    let own: HashSet<&LockName> = sight.held(start).collect();
    // How each holder was reached.
    let mut reached: HashMap<&Holder, Step<'_>, ByMark> = HashMap::default();
    let mut opened: HashSet<&LockName, ByMark> = HashSet::default();
    let mut next = VecDeque::from([start]);
    while let Some(holder) = next.pop_front() {
        for Wait { holder, lock, request, ahead } in sight.waits(holder) {
            // The holders of a lock lead on once, whoever waits for it. Only the way back to the start depends on who
            // waits: the start does not wait for itself.
            if holder != start && (own.contains(lock) || ahead.contains(&start)) {
                return Some(trace(&reached, (holder, lock, request)));
            }
            let holders = opened.insert(lock).then(|| sight.holders(lock));
            for blocker in ahead.into_iter().chain(holders.into_iter().flatten()) {
                if blocker != start
                    && blocker != holder
                    && let Entry::Vacant(place) = reached.entry(blocker)
                {
                    place.insert((holder, lock, request));
                    next.push_back(blocker);
                }
            }
        }
    }
    None
}

/// From the last step back to the start, then in order.
fn trace(reached: &HashMap<&Holder, Step<'_>, ByMark>, last: Step<'_>) -> Cycle {
    let mut steps = vec![last];
    while let Some(step) = steps.last().and_then(|(holder, ..)| reached.get(*holder)) {
        steps.push(*step);
    }
    let edge = |(holder, lock, request): &Step<'_>| Edge {
        holder: (*holder).clone(),
        waits_for: (*lock).clone(),
        request: *request,
    };
    steps.iter().rev().map(edge).collect()
}

/// Holders to search cycles through, of those that can be reached from `starts`: at least one of every cycle. Some may turn
/// out to wait for themselves alone, because a lock is walked through as one, whoever waits for it. Every holder and every
/// lock is looked at once, however many the starts are.
#[must_use]
pub fn suspects<'a, S: Sight>(sight: &'a S, starts: impl IntoIterator<Item = &'a Holder>) -> Vec<&'a Holder> {
    let mut found: HashSet<&Holder, ByMark> = HashSet::default();
    // Whether what was met is still on the way from the start to where the walk is.
    let mut on_the_way: HashMap<Node<'_>, bool> = HashMap::new();
    for start in starts {
        let mut way = vec![(Node::Holder(start), false)];
        while let Some((node, is_done)) = way.pop() {
            if is_done {
                on_the_way.insert(node, false);
                continue;
            }
            if on_the_way.contains_key(&node) {
                continue;
            }
            on_the_way.insert(node, true);
            way.push((node, true));
            for next in nodes_after(sight, node) {
                match on_the_way.get(&next) {
                    None => way.push((next, false)),
                    // The walk is back where it was. Every cycle has such a step, and one end of it is a holder.
                    Some(true) => {
                        let ((Node::Holder(holder), _) | (_, Node::Holder(holder))) = (next, node) else {
                            continue;
                        };
                        found.insert(holder);
                    }
                    Some(false) => {}
                }
            }
        }
    }
    let mut found: Vec<&Holder> = found.into_iter().collect();
    found.sort();
    found
}

/// Either kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node<'a> {
    Holder(&'a Holder),
    Lock(&'a LockName),
}

fn nodes_after<'a, S: Sight>(sight: &'a S, node: Node<'a>) -> Vec<Node<'a>> {
    match node {
        Node::Lock(lock) => sight.holders(lock).map(Node::Holder).collect(),
        Node::Holder(holder) => {
            let mut after = Vec::new();
            for wait in sight.waits(holder) {
                after.push(Node::Lock(wait.lock));
                after.extend(wait.ahead.into_iter().map(Node::Holder));
            }
            after
        }
    }
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
