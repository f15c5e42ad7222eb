//! Who waits for whom: holders and locks of a wait graph by number, who blocks others without waiting, and which waits form a cycle.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ade_client::wire::{HolderRef, WaitGraph, WaitGraphEdge};

/// Somebody who waits for nobody, and keeps others waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootBlocker {
    pub holder: HolderRef,
    /// The locks that others wait for.
    pub locks: Vec<String>,
    /// How many others wait because of it, also behind one another.
    pub blocked: usize,
}

/// Those who block the most others first.
#[must_use]
pub fn root_blockers(graph: &WaitGraph) -> Vec<RootBlocker> {
    Waits::of(graph).root_blockers()
}

/// A row of the table.
pub(super) struct WaitRow<'a> {
    pub(super) wait: &'a WaitGraphEdge,
    pub(super) is_cyclic: bool,
}

/// Holders that wait for one another in a circle.
pub(super) struct Deadlock<'w> {
    pub(super) members: Vec<&'w HolderRef>,
    /// How many of them hold a lock that another one waits for; the others are ahead of one in a queue.
    holding: usize,
    /// The locks that they hold and wait for: breaking one ends the circle.
    pub(super) locks: Vec<&'w str>,
}

impl Deadlock<'_> {
    pub(super) fn roles(&self) -> String {
        match (self.holding, self.members.len().saturating_sub(self.holding)) {
            (_, 0) => "Each holds a lock that another waits for".to_owned(),
            (holding, behind) => {
                let (hold, wait) =
                    (if holding == 1 { "holds" } else { "hold" }, if behind == 1 { "waits" } else { "wait" });
                format!("{holding} {hold} the locks, {behind} {wait} behind in the queues")
            }
        }
    }
}

/// The waits of a graph.
pub(super) struct Waits<'a> {
    waits: &'a [WaitGraphEdge],
    pub(super) holders: Vec<HolderRef>,
    pub(super) locks: Vec<&'a str>,
    /// By holder: the locks that it waits for.
    pub(super) awaits: Vec<BTreeSet<usize>>,
    /// By lock: the holders that wait for it.
    awaited_by: Vec<BTreeSet<usize>>,
    /// By holder: the locks that it keeps others from.
    holds: Vec<BTreeSet<usize>>,
    /// By lock: its holders.
    pub(super) held_by: Vec<BTreeSet<usize>>,
    /// By holder: those that it waits for, also those ahead of it in a queue.
    behind: Vec<BTreeSet<usize>>,
    /// By holder: those who wait for it directly.
    pub(super) blocks: Vec<BTreeSet<usize>>,
    /// By holder: the number of its cycle, if it is part of one.
    pub(super) cycle: Vec<Option<usize>>,
    pub(super) cycles: usize,
}

/// The number of a key, which is the next one for a new key.
fn number<K: Ord + Clone>(numbers: &mut BTreeMap<K, usize>, list: &mut Vec<K>, key: &K) -> usize {
    if let Some(known) = numbers.get(key) {
        return *known;
    }
    let new = list.len();
    list.push(key.clone());
    numbers.insert(key.clone(), new);
    new
}

fn reference(wait: &WaitGraphEdge) -> HolderRef {
    HolderRef { agent_id: wait.agent_id.clone(), holder_id: wait.holder_id.clone() }
}

/// Adds a value to the set with this number, which may be new.
fn add(sets: &mut Vec<BTreeSet<usize>>, at: usize, value: usize) {
    if sets.len() <= at {
        sets.resize_with(at + 1, BTreeSet::new);
    }
    if let Some(set) = sets.get_mut(at) {
        set.insert(value);
    }
}

fn numbers(sets: &[BTreeSet<usize>], at: usize) -> impl Iterator<Item = usize> {
    sets.get(at).into_iter().flatten().copied()
}

/// What can be reached from a number, without itself unless it is on a cycle.
fn reachable(sets: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut found, mut next) = (BTreeSet::new(), VecDeque::from([from]));
    while let Some(at) = next.pop_front() {
        for other in numbers(sets, at) {
            if found.insert(other) {
                next.push_back(other);
            }
        }
    }
    found
}

impl<'a> Waits<'a> {
    pub(super) fn of(graph: &'a WaitGraph) -> Self {
        let (mut holder_numbers, mut holders) = (BTreeMap::new(), Vec::new());
        let (mut lock_numbers, mut locks) = (BTreeMap::new(), Vec::new());
        let (mut awaits, mut awaited_by) = (Vec::new(), Vec::new());
        let (mut holds, mut held_by) = (Vec::new(), Vec::new());
        let (mut behind, mut blocks) = (Vec::new(), Vec::new());
        for wait in &graph.waits {
            let waiter = number(&mut holder_numbers, &mut holders, &reference(wait));
            let lock = number(&mut lock_numbers, &mut locks, &wait.waits_for.as_str());
            add(&mut awaits, waiter, lock);
            add(&mut awaited_by, lock, waiter);
            for by in &wait.holders {
                let by = number(&mut holder_numbers, &mut holders, by);
                add(&mut held_by, lock, by);
                add(&mut holds, by, lock);
            }
            for other in wait.holders.iter().chain(&wait.ahead) {
                let other = number(&mut holder_numbers, &mut holders, other);
                if other != waiter {
                    add(&mut behind, waiter, other);
                    add(&mut blocks, other, waiter);
                }
            }
        }
        for sets in [&mut awaits, &mut holds, &mut behind, &mut blocks] {
            sets.resize_with(holders.len(), BTreeSet::new);
        }
        for sets in [&mut awaited_by, &mut held_by] {
            sets.resize_with(locks.len(), BTreeSet::new);
        }
        let mut waits = Self {
            waits: &graph.waits,
            cycle: vec![None; holders.len()],
            holders,
            locks,
            awaits,
            awaited_by,
            holds,
            held_by,
            behind,
            blocks,
            cycles: 0,
        };
        waits.find_cycles();
        waits
    }

    /// A holder is on a cycle if it waits for itself in the end. Two are on the same one if each waits for the other.
    fn find_cycles(&mut self) {
        let mut candidates = self.without_ends();
        while let Some(first) = candidates.pop_first() {
            let (after, before) = (reachable(&self.behind, first), reachable(&self.blocks, first));
            if !after.contains(&first) {
                continue;
            }
            for member in after.intersection(&before) {
                candidates.remove(member);
                if let Some(cycle) = self.cycle.get_mut(*member) {
                    *cycle = Some(self.cycles);
                }
            }
            self.cycles += 1;
        }
    }

    /// The holders without those that wait for nobody or that nobody waits for, nor for those that are left.
    fn without_ends(&self) -> BTreeSet<usize> {
        let mut left: BTreeSet<usize> = (0..self.holders.len()).collect();
        let degrees = |sets: &[BTreeSet<usize>]| sets.iter().map(BTreeSet::len).collect::<Vec<_>>();
        let mut degrees = [degrees(&self.behind), degrees(&self.blocks)];
        let is_end = |at: &usize| degrees.iter().any(|of| of.get(*at).is_none_or(|degree| *degree == 0));
        let mut ends: Vec<usize> = left.iter().copied().filter(is_end).collect();
        while let Some(end) = ends.pop() {
            if !left.remove(&end) {
                continue;
            }
            // Those that it was behind block one less; those that it blocked are behind one less.
            let [behind, blocks] = &mut degrees;
            for (others, of) in [(&self.behind, blocks), (&self.blocks, behind)] {
                for other in numbers(others, end) {
                    let Some(degree) = of.get_mut(other) else { continue };
                    *degree = degree.saturating_sub(1);
                    if *degree == 0 {
                        ends.push(other);
                    }
                }
            }
        }
        left
    }

    fn root_blockers(&self) -> Vec<RootBlocker> {
        let is_root = |at: &usize| {
            numbers(&self.awaits, *at).next().is_none() && numbers(&self.blocks, *at).next().is_some()
        };
        let mut locks: HashMap<usize, Vec<String>> = HashMap::new();
        for (lock, name) in self.locks.iter().enumerate() {
            for by in numbers(&self.held_by, lock) {
                locks.entry(by).or_default().push((*name).to_owned());
            }
        }
        let root = |at: usize| {
            let (holder, locks) = (self.holders.get(at)?.clone(), locks.remove(&at).unwrap_or_default());
            Some(RootBlocker { holder, locks, blocked: reachable(&self.blocks, at).len() })
        };
        let mut roots: Vec<RootBlocker> = (0..self.holders.len()).filter(is_root).filter_map(root).collect();
        roots.sort_by(|one, other| {
            other.blocked.cmp(&one.blocked).then_with(|| one.holder.cmp(&other.holder))
        });
        roots
    }

    pub(super) fn is_cyclic(&self, holder: usize) -> bool {
        self.cycle.get(holder).is_some_and(Option::is_some)
    }

    /// Whether a wait for a lock closes a cycle: waiter and some holder are on the same one.
    pub(super) fn is_cyclic_wait(&self, waiter: usize, lock: usize) -> bool {
        let cycle = self.cycle.get(waiter).copied().flatten();
        cycle.is_some()
            && numbers(&self.held_by, lock).any(|by| self.cycle.get(by).copied().flatten() == cycle)
    }

    /// Whether a wait for this lock closes a cycle.
    pub(super) fn is_cyclic_lock(&self, lock: usize) -> bool {
        self.waiters(lock).any(|waiter| self.is_cyclic_wait(waiter, lock))
    }

    /// The holders that wait for a lock.
    pub(super) fn waiters(&self, lock: usize) -> impl Iterator<Item = usize> + '_ {
        numbers(&self.awaited_by, lock)
    }

    /// The locks that a holder keeps others from.
    pub(super) fn holds(&self, holder: usize) -> impl Iterator<Item = usize> + '_ {
        numbers(&self.holds, holder)
    }

    pub(super) fn is_same_cycle(&self, one: usize, other: usize) -> bool {
        let cycle = |of: usize| self.cycle.get(of).copied().flatten();
        cycle(one).is_some() && cycle(one) == cycle(other)
    }

    /// Each waiter with those that are directly ahead of it in a queue.
    pub(super) fn queued_behind(&self) -> BTreeSet<(usize, usize)> {
        let holders: BTreeMap<&HolderRef, usize> =
            self.holders.iter().enumerate().map(|(at, holder)| (holder, at)).collect();
        let holders = &holders;
        let pairs = self.waits.iter().flat_map(|wait| {
            let waiter = holders.get(&reference(wait)).copied();
            wait.ahead.iter().filter_map(move |ahead| Some((waiter?, *holders.get(ahead)?)))
        });
        pairs.filter(|(waiter, ahead)| waiter != ahead).collect()
    }

    /// The circles, with the locks in them.
    pub(super) fn deadlocks(&self) -> Vec<Deadlock<'_>> {
        let members = self.cycle_members().into_iter().enumerate();
        let deadlock = |(number, members)| {
            let is_in = |holder: usize| self.cycle.get(holder).copied().flatten() == Some(number);
            let holders = |lock: usize| numbers(&self.held_by, lock).filter(|by| is_in(*by));
            let locks: Vec<usize> = (0..self.locks.len())
                .filter(|lock| self.waiters(*lock).any(is_in) && holders(*lock).next().is_some())
                .collect();
            let holding: BTreeSet<usize> = locks.iter().flat_map(|lock| holders(*lock)).collect();
            let locks = locks.iter().filter_map(|lock| self.locks.get(*lock).copied()).collect();
            Deadlock { members, holding: holding.len(), locks }
        };
        members.map(deadlock).collect()
    }

    /// The holders of each cycle.
    pub(super) fn cycle_members(&self) -> Vec<Vec<&HolderRef>> {
        let mut members = vec![Vec::new(); self.cycles];
        for (holder, cycle) in self.holders.iter().zip(&self.cycle) {
            if let Some(list) = cycle.and_then(|cycle| members.get_mut(cycle)) {
                list.push(holder);
            }
        }
        members
    }

    /// The first rows of the table, those of cycles first, and how many are left out.
    pub(super) fn rows(&self, limit: usize) -> (Vec<WaitRow<'a>>, usize) {
        let holder_numbers: BTreeMap<&HolderRef, usize> =
            self.holders.iter().enumerate().map(|(at, holder)| (holder, at)).collect();
        let lock_numbers: BTreeMap<&str, usize> =
            self.locks.iter().enumerate().map(|(at, lock)| (*lock, at)).collect();
        let row = |wait: &'a WaitGraphEdge| {
            let waiter = holder_numbers.get(&reference(wait));
            let lock = lock_numbers.get(wait.waits_for.as_str());
            let is_cyclic =
                waiter.zip(lock).is_some_and(|(waiter, lock)| self.is_cyclic_wait(*waiter, *lock));
            WaitRow { wait, is_cyclic }
        };
        let mut rows: Vec<WaitRow<'a>> = self.waits.iter().map(row).collect();
        rows.sort_by_key(|row| !row.is_cyclic);
        let left_out = rows.len().saturating_sub(limit);
        rows.truncate(limit);
        (rows, left_out)
    }
}
