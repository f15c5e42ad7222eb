//! The wait-for graph: finds cycles of holders that wait for each other, and chooses the victim that ends a deadlock.
//!
//! Nodes are holders and locks: a holder points to the locks it waits for, a lock points to its holders, and a wait points
//! to the nearest earlier waiters that are incompatible with it. Because a lock is a node of its own, the graph grows with
//! the number of waits plus holds, not with their product.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::NameHashBuilder;
use super::{Holder, LockName, RequestKey};
use crate::Moment;

/// One edge of a cycle: a holder and the lock it waits for. The holder of the next edge blocks it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WaitEdge {
    pub holder: Holder,
    pub waits_for: LockName,
    pub request: RequestKey,
}

/// Holders that wait for each other, in order; the last one waits for the first.
pub type Cycle = Vec<WaitEdge>;

/// A cycle that was resolved by aborting its victim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    pub cycle: Arc<Cycle>,
    pub victim: Holder,
    /// The locks that were taken from the victim.
    pub freed_locks: Vec<LockName>,
}

/// The edges of the graph, borrowed from the state of the locks. Iterators must have a deterministic order: among cycles of
/// the same length, the search returns the first one it meets.
pub trait WaitForGraph {
    fn waits(&self, holder: &Holder) -> impl Iterator<Item = PendingWait<'_>>;
    /// Whether anybody waits for a lock of this holder, or behind it in a queue. May be a false positive, to stay cheap.
    fn may_have_waiters(&self, holder: &Holder) -> bool;
    fn holds(&self, holder: &Holder, lock: &LockName) -> bool;
    fn holders(&self, lock: &LockName) -> impl Iterator<Item = &Holder>;
}

#[derive(Debug)]
pub struct PendingWait<'a> {
    pub holder: &'a Holder,
    pub lock: &'a LockName,
    pub request: RequestKey,
    /// The nearest earlier waiters that block this one.
    pub earlier_waiters: Vec<&'a Holder>,
}

/// How the search reached a holder: through this waiting holder, its lock and its request.
type Predecessor<'a> = (&'a Holder, &'a LockName, RequestKey);
type Predecessors<'a> = HashMap<&'a Holder, Predecessor<'a>, NameHashBuilder>;

/// The shortest cycle through `start`, beginning with it.
pub fn find_cycle_through(graph: &impl WaitForGraph, start: &Holder) -> Option<Cycle> {
    // Most waiters hold nothing that others want, and are the last of their queue: no path leads back to them.
    if !graph.may_have_waiters(start) {
        return None;
    }
    let mut predecessors = Predecessors::default();
    let mut visited_locks: HashSet<&LockName, NameHashBuilder> = HashSet::default();
    let mut pending = VecDeque::from([start]);
    while let Some(holder) = pending.pop_front() {
        for PendingWait { holder, lock, request, earlier_waiters } in graph.waits(holder) {
            // The holders of a lock are expanded once, for all its waiters. Only the edge back to the start depends on the
            // waiter, because the start does not wait for itself.
            if holder != start && (graph.holds(start, lock) || earlier_waiters.contains(&start)) {
                return Some(trace_back(&predecessors, (holder, lock, request)));
            }
            let holders = visited_locks.insert(lock).then(|| graph.holders(lock));
            for blocker in earlier_waiters.into_iter().chain(holders.into_iter().flatten()) {
                if blocker != start
                    && blocker != holder
                    && let Entry::Vacant(entry) = predecessors.entry(blocker)
                {
                    entry.insert((holder, lock, request));
                    pending.push_back(blocker);
                }
            }
        }
    }
    None
}

/// Follows the predecessors from the last edge back to the start, and returns the edges in forward order.
fn trace_back(predecessors: &Predecessors<'_>, last: Predecessor<'_>) -> Cycle {
    let mut edges = vec![last];
    while let Some(predecessor) = edges.last().and_then(|(holder, ..)| predecessors.get(*holder)) {
        edges.push(*predecessor);
    }
    let edge = |(holder, lock, request): &Predecessor<'_>| WaitEdge {
        holder: (*holder).clone(),
        waits_for: (*lock).clone(),
        request: *request,
    };
    edges.iter().rev().map(edge).collect()
}

/// Finds at least one holder of every cycle that is reachable from `starts`, in one depth-first search over all starts.
///
/// The result may contain holders without a cycle, because the search treats all waiters of a lock alike: confirm each of
/// them with [`find_cycle_through`].
pub fn find_cycle_candidates<'a, G: WaitForGraph>(
    graph: &'a G,
    starts: impl IntoIterator<Item = &'a Holder>,
) -> Vec<&'a Holder> {
    let mut candidates: HashSet<&Holder, NameHashBuilder> = HashSet::default();
    let mut visited: HashMap<Node<'_>, Visit> = HashMap::new();
    for start in starts {
        // Each entry is a node and the state that it enters when it is popped.
        let mut stack = vec![(Node::Holder(start), Visit::OnPath)];
        while let Some((node, visit)) = stack.pop() {
            if visit == Visit::Finished {
                visited.insert(node, Visit::Finished);
                continue;
            }
            if visited.contains_key(&node) {
                continue;
            }
            visited.insert(node, Visit::OnPath);
            stack.push((node, Visit::Finished));
            for next in successors(graph, node) {
                match visited.get(&next) {
                    None => stack.push((next, Visit::OnPath)),
                    // A back edge. Every cycle has one, and one end of it is a holder.
                    Some(Visit::OnPath) => {
                        let ((Node::Holder(holder), _) | (_, Node::Holder(holder))) = (next, node) else {
                            continue;
                        };
                        candidates.insert(holder);
                    }
                    Some(Visit::Finished) => {}
                }
            }
        }
    }
    let mut candidates: Vec<&Holder> = candidates.into_iter().collect();
    candidates.sort();
    candidates
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node<'a> {
    Holder(&'a Holder),
    Lock(&'a LockName),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// The node is on the path from the start to the current node.
    OnPath,
    Finished,
}

fn successors<'a, G: WaitForGraph>(graph: &'a G, node: Node<'a>) -> Vec<Node<'a>> {
    match node {
        Node::Lock(lock) => graph.holders(lock).map(Node::Holder).collect(),
        Node::Holder(holder) => {
            let mut nodes = Vec::new();
            for wait in graph.waits(holder) {
                nodes.push(Node::Lock(wait.lock));
                nodes.extend(wait.earlier_waiters.into_iter().map(Node::Holder));
            }
            nodes
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimCandidate {
    pub holder: Holder,
    /// When the oldest of its locks was granted, also before an earlier abort; `None` if it holds nothing.
    pub oldest_grant: Option<Moment>,
    /// Of its waiting request.
    pub priority: i32,
}

/// The youngest candidate, whose oldest lock was granted last; then the one with the lowest priority; then the last by name.
pub fn choose_victim(candidates: impl IntoIterator<Item = VictimCandidate>) -> Option<VictimCandidate> {
    let oldest_grant =
        |candidate: &VictimCandidate| candidate.oldest_grant.unwrap_or(Moment::from_micros(u64::MAX));
    candidates.into_iter().max_by(|a, b| {
        let by_age = oldest_grant(a).cmp(&oldest_grant(b));
        by_age.then_with(|| b.priority.cmp(&a.priority)).then_with(|| a.holder.cmp(&b.holder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, oldest_grant: Option<u64>, priority: i32) -> VictimCandidate {
        let holder = Holder::new(name, None).expect("valid");
        VictimCandidate { holder, oldest_grant: oldest_grant.map(Moment::from_micros), priority }
    }

    #[test]
    fn victim_is_the_youngest_then_the_lowest_priority_then_the_last_name() {
        let victim_of =
            |candidates: &[VictimCandidate]| choose_victim(candidates.to_vec()).map(|c| c.holder.to_string());
        let (old, young) = (candidate("old", Some(1), 0), candidate("young", Some(2), 9));
        assert_eq!(victim_of(&[old.clone(), young.clone()]).as_deref(), Some("young"));
        assert_eq!(victim_of(&[young, old.clone()]).as_deref(), Some("young"));
        assert_eq!(victim_of(&[old.clone(), candidate("z", Some(1), 1)]).as_deref(), Some("old"));
        assert_eq!(victim_of(&[old.clone(), candidate("z", Some(1), 0)]).as_deref(), Some("z"));
        assert_eq!(victim_of(&[old, candidate("idle", None, 0)]).as_deref(), Some("idle"));
        assert_eq!(victim_of(&[]), None);
    }
}
