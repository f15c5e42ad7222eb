//! Reads the part of the wait-for graph around one holder from both directions: forward to the holders it waits for,
//! and backward to the holders that wait for it.
//!
//! Locks are read one after the other, so the result is not a snapshot: a cycle found here is only a suspicion. Agent
//! indexes lead from holders to locks; what an index has lost is found only after the sweep repaired it.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ade_domain::lock::graph;
use ade_domain::lock::{Cycle, Holder, LockLimits, LockName, LockTable, QueueKey, TableChange};
use ade_keyspace::RedisKey;
use futures_util::future::{try_join, try_join_all};
use redis::Value;

use super::keys::{AgentKeys, LockKeys};
use super::query::command;
use super::{Inner, Result, encoding};

/// Locks that one search reads; the graph beyond is not searched.
const MAX_LOCKS: usize = 5_000;
/// With more candidate holders than this, a lock is read without checking which of them it has.
const MAX_CHECKED_HOLDERS: usize = 4;

/// Locks to read forward before an empty backward frontier ends the search. The backward direction relies on the
/// indexes of held locks, which may lack entries for a while.
const MIN_FORWARD_LOCKS: usize = 64;

struct WaitGraph {
    table: LockTable,
    read: HashSet<LockName>,
    /// Per queue: from which position on all waiters were visited backward, and up to which position forward.
    visited_behind: HashMap<LockName, Option<QueueKey>>,
    visited_ahead: HashMap<LockName, QueueKey>,
}

/// One direction of a search: holders whose next locks are not read yet.
struct Frontier {
    next: Vec<Holder>,
    visited: HashSet<Holder>,
}

impl Frontier {
    fn new(holder: &Holder) -> Self {
        Self { next: vec![holder.clone()], visited: HashSet::from([holder.clone()]) }
    }

    /// Returns whether the other direction has met one of them too.
    fn add(&mut self, holders: Vec<Holder>, other: &Self) -> bool {
        let mut is_meeting = false;
        for holder in holders {
            if self.visited.insert(holder.clone()) {
                is_meeting |= other.visited.contains(&holder);
                self.next.push(holder);
            }
        }
        is_meeting
    }
}

impl WaitGraph {
    fn new(limits: &LockLimits) -> Self {
        let table = LockTable::new(limits.clone());
        Self { table, read: HashSet::new(), visited_behind: HashMap::new(), visited_ahead: HashMap::new() }
    }

    /// Everyone who directly or indirectly blocks a holder at the locks it waits for: holders and earlier waiters.
    /// Taken together, so that a long queue is one level.
    fn blockers(&mut self, holder: &Holder) -> Vec<Holder> {
        let mut found = Vec::new();
        for name in self.table.locks_awaited_by(holder) {
            let Some((lock, place)) =
                self.table.lock(name).and_then(|lock| Some((lock, lock.waiter_of(holder)?.queue_key())))
            else {
                continue;
            };
            let visited = self.visited_ahead.get(name).copied();
            if visited.is_none_or(|until| until < place) {
                self.visited_ahead.insert(name.clone(), place);
                let ahead = lock.waiters().take_while(|waiter| waiter.queue_key() < place);
                let ahead =
                    ahead.skip_while(|waiter| visited.is_some_and(|until| waiter.queue_key() < until));
                found.extend(ahead.map(|waiter| waiter.holder.clone()));
            }
            if visited.is_none() {
                found.extend(lock.holds().iter().map(|hold| hold.holder.clone()));
            }
        }
        found
    }

    /// Everyone whom a holder directly or indirectly blocks: waiters for its locks, and waiters behind it.
    fn blocked(&mut self, holder: &Holder) -> Vec<Holder> {
        let held = self.table.locks_held_by(holder).map(|name| (name, None));
        let place = |name| Some(self.table.lock(name)?.waiter_of(holder)?.queue_key());
        let waits = self.table.locks_awaited_by(holder).map(|name| (name, place(name)));
        let mut found = Vec::new();
        for (name, after) in held.chain(waits) {
            match self.visited_behind.entry(name.clone()) {
                MapEntry::Occupied(mut visited) if after < *visited.get() => drop(visited.insert(after)),
                MapEntry::Occupied(_) => continue,
                MapEntry::Vacant(vacant) => drop(vacant.insert(after)),
            }
            let waiters = self.table.lock(name).into_iter().flat_map(|lock| lock.waiters());
            let behind = waiters.filter(|waiter| after.is_none_or(|after| waiter.queue_key() > after));
            found.extend(behind.map(|waiter| waiter.holder.clone()));
        }
        found
    }
}

impl Inner {
    /// The shortest cycle through a holder that waits for `name`, with everything that was read to find it.
    /// `is_last`: nobody waits behind it.
    pub(super) async fn find_cycle(
        &self,
        through: &Holder,
        name: &LockName,
        is_last: bool,
    ) -> Result<Option<(LockTable, Cycle)>> {
        let start = std::slice::from_ref(through);
        let here = HashSet::from([name.clone()]);
        // It may hold the lock it waits for, in the other mode.
        let (contended, shared_waits) =
            try_join(self.contended_holds(start, &HashSet::new()), self.shared_waits(start, &here)).await?;
        if is_last && contended.is_empty() && shared_waits.is_empty() {
            // Most waiters hold nothing that others want: no path leads back to them.
            return Ok(None);
        }
        let mut first_backward =
            Some(contended.into_iter().chain(shared_waits).filter(|other| other != name).collect());
        let mut graph = WaitGraph::new(self.limits());
        self.read_into(&mut graph, vec![name.clone()]).await?;
        let (mut forward, mut backward) = (Frontier::new(through), Frontier::new(through));
        forward.next.clear();
        let mut is_meeting = forward.add(graph.blockers(through), &backward);
        // The length up to which all cycles have been read, and the locks read forward.
        let (mut complete_length, mut forward_locks) = (1, 1);
        loop {
            let is_exhausted = forward.next.is_empty()
                || (backward.next.is_empty() && forward_locks >= MIN_FORWARD_LOCKS)
                || graph.read.len() >= MAX_LOCKS;
            if is_meeting || is_exhausted {
                let cycle = graph::find_cycle_through(&graph.table, through);
                match cycle {
                    Some(cycle) if is_exhausted || cycle.len() <= complete_length => {
                        return Ok(Some((graph.table, cycle)));
                    }
                    // A shorter cycle may still be hidden: check again after every level.
                    cycle => is_meeting = cycle.is_some(),
                }
            }
            if is_exhausted {
                return Ok(None);
            }
            if backward.next.is_empty() || forward.next.len() <= backward.next.len() {
                let from = std::mem::take(&mut forward.next);
                let names = self.awaited_locks(&from, &graph.read).await?;
                forward_locks += names.len();
                self.read_into(&mut graph, names).await?;
                let blockers = from.iter().flat_map(|holder| graph.blockers(holder)).collect();
                is_meeting |= forward.add(blockers, &backward);
            } else {
                let from = std::mem::take(&mut backward.next);
                let names = match first_backward.take() {
                    Some(names) => names,
                    None => self.contended_locks(&from, &graph.read).await?,
                };
                self.read_into(&mut graph, names).await?;
                let blocked = from.iter().flat_map(|holder| graph.blocked(holder)).collect();
                is_meeting |= backward.add(blocked, &forward);
            }
            complete_length += 1;
        }
    }

    /// Everything reachable from an agent's waits: the agents that hold or wait there, what they wait for, and so on.
    /// Also returns the agents, and whether the read is complete.
    pub(super) async fn reachable_from(&self, agent: &str) -> Result<(LockTable, BTreeSet<String>, bool)> {
        let mut graph = WaitGraph::new(self.limits());
        let mut agents = BTreeSet::from([agent.to_owned()]);
        let mut next = agents.clone();
        while !next.is_empty() && graph.read.len() < MAX_LOCKS {
            let waits = next
                .iter()
                .map(async |agent| self.index_members(&self.agent_keys(agent)?.awaited_locks).await);
            let waits = try_join_all(waits).await?;
            let names: BTreeSet<LockName> =
                waits.into_iter().flatten().filter(|name| !graph.read.contains(name)).collect();
            let names: Vec<LockName> = names.into_iter().collect();
            self.read_into(&mut graph, names.clone()).await?;
            next.clear();
            for lock in names.iter().filter_map(|name| graph.table.lock(name)) {
                let holders = lock.holds().iter().map(|hold| &hold.holder);
                for holder in holders.chain(lock.waiters().map(|waiter| &waiter.holder)) {
                    if !agents.contains(holder.agent_id()) {
                        agents.insert(holder.agent_id().to_owned());
                        next.insert(holder.agent_id().to_owned());
                    }
                }
            }
        }
        Ok((graph.table, agents, next.is_empty()))
    }

    async fn read_into(&self, graph: &mut WaitGraph, mut names: Vec<LockName>) -> Result<()> {
        names.truncate(MAX_LOCKS.saturating_sub(graph.read.len()));
        for (name, snapshot) in names.iter().zip(self.read_locks(&names, usize::MAX).await?) {
            snapshot.changes().for_each(|change| graph.table.apply(&TableChange::Lock(name.clone(), change)));
        }
        graph.read.extend(names);
        Ok(())
    }

    /// Unread locks that the holders wait for.
    async fn awaited_locks(&self, holders: &[Holder], read: &HashSet<LockName>) -> Result<Vec<LockName>> {
        let waits = self.index_entries(holders, read, |keys| &keys.awaited_locks).await?;
        self.filter_with_field(waits, |keys| (keys.waiting(), "")).await
    }

    /// Unread locks that the holders hold while others wait, or where they wait together with others.
    async fn contended_locks(&self, holders: &[Holder], read: &HashSet<LockName>) -> Result<Vec<LockName>> {
        let (held, awaited) =
            try_join(self.contended_holds(holders, read), self.shared_waits(holders, read)).await?;
        let found: BTreeSet<LockName> = held.into_iter().chain(awaited).collect();
        Ok(found.into_iter().collect())
    }

    async fn contended_holds(&self, holders: &[Holder], read: &HashSet<LockName>) -> Result<Vec<LockName>> {
        let held = self.index_entries(holders, read, |keys| &keys.held_locks).await?;
        self.with_waiters(&self.filter_held(held).await?).await
    }

    async fn shared_waits(&self, holders: &[Holder], read: &HashSet<LockName>) -> Result<Vec<LockName>> {
        let waits = self.awaited_locks(holders, read).await?;
        let lengths = self.queue_lengths(&waits).await?;
        Ok(waits.into_iter().zip(lengths).filter(|(_, length)| *length > 1).map(|(name, _)| name).collect())
    }

    /// Locks that this holder has, as opposed to another holder of its agent.
    pub(super) async fn held_by(&self, holder: &Holder) -> Result<Vec<LockName>> {
        let holders = std::slice::from_ref(holder);
        self.filter_held(self.index_entries(holders, &HashSet::new(), |keys| &keys.held_locks).await?).await
    }

    /// Locks that this holder has or waits for, including those that cannot be checked now. Waits are read first, so
    /// that a lock granted meanwhile is found in either index.
    pub(super) async fn locks_of(&self, holder: &Holder) -> Result<BTreeSet<LockName>> {
        let keys = self.agent_keys(holder.agent_id())?;
        let mut names = self.index_members(&keys.awaited_locks).await?;
        names.extend(self.index_members(&keys.held_locks).await?);
        let digest = encoding::holder_digest(holder);
        let mut commands = Vec::with_capacity(2 * names.len());
        for name in &names {
            let keys = self.lock_keys(name)?;
            for (key, field) in [(keys.waiting(), digest.clone()), (keys.lock(), format!("h:{digest}"))] {
                commands.push(command("HEXISTS", key, field));
            }
        }
        let results = self.client.query_all(commands).await;
        let may_exist = |result: &Result<_>| !matches!(result, Ok(Value::Int(0) | Value::Boolean(false)));
        let (pairs, _) = results.as_chunks::<2>();
        let found = names.into_iter().zip(pairs).filter(|(_, pair)| pair.iter().any(may_exist));
        Ok(found.map(|(name, _)| name).collect())
    }

    async fn filter_held(&self, held: BTreeMap<LockName, Vec<&Holder>>) -> Result<Vec<LockName>> {
        self.filter_with_field(held, |keys| (keys.lock(), "h:")).await
    }

    /// The entries of an index of the holders' agents, each with the holders that may be meant.
    async fn index_entries<'a>(
        &self,
        holders: &'a [Holder],
        read: &HashSet<LockName>,
        index: impl Fn(&AgentKeys) -> &RedisKey,
    ) -> Result<BTreeMap<LockName, Vec<&'a Holder>>> {
        let mut by_agent: BTreeMap<&str, Vec<&Holder>> = BTreeMap::new();
        for holder in holders {
            by_agent.entry(holder.agent_id()).or_default().push(holder);
        }
        let members =
            by_agent.keys().map(async |agent| self.index_members(index(&*self.agent_keys(agent)?)).await);
        let members = try_join_all(members).await?;
        let mut found: BTreeMap<LockName, Vec<&Holder>> = BTreeMap::new();
        for (names, holders) in members.into_iter().zip(by_agent.into_values()) {
            for name in names.into_iter().filter(|name| !read.contains(name)) {
                found.entry(name).or_default().extend(&holders);
            }
        }
        Ok(found)
    }

    /// The locks that have a field for one of the holders in the given hash.
    async fn filter_with_field(
        &self,
        candidates: BTreeMap<LockName, Vec<&Holder>>,
        hash: impl Fn(&LockKeys) -> (&RedisKey, &'static str),
    ) -> Result<Vec<LockName>> {
        let (mut found, mut checked, mut commands) = (Vec::new(), Vec::new(), Vec::new());
        for (name, holders) in candidates {
            if holders.len() > MAX_CHECKED_HOLDERS {
                found.push(name);
                continue;
            }
            let keys = self.lock_keys(&name)?;
            let (key, prefix) = hash(&keys);
            let field = |holder| format!("{prefix}{}", encoding::holder_digest(holder));
            commands.push(command("HMGET", key, holders.into_iter().map(field).collect::<Vec<_>>()));
            checked.push(name);
        }
        let replies: Vec<Vec<Option<Value>>> = self.query_all(commands).await?;
        let with_field =
            checked.into_iter().zip(replies).filter(|(_, fields)| fields.iter().any(Option::is_some));
        found.extend(with_field.map(|(name, _)| name));
        Ok(found)
    }
}
