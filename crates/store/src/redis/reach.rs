//! The part of the wait-for graph that matters to one holder, read from both of its ends: on to whom it waits for, and back to
//! those who wait for it.
//!
//! Locks are read whole, one after the other, so what is read never was at one moment: a cycle found here is a suspicion.
//! The indexes of agents lead from holder to lock; what they have lost is not found until the sweep has repaired them.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ade_domain::lock::graph;
use ade_domain::lock::{Cycle, Entry, Holder, LockLimits, LockName, Place, Table};
use ade_keyspace::RedisKey;
use futures_util::future::{try_join, try_join_all};
use redis::Value;

use super::keys::{AgentKeys, LockKeys};
use super::{Inner, encoding, foreign, step};
use crate::coordination::CoordinationError;

/// Locks that one search reads; what is beyond is not searched.
const MOST_LOCKS: usize = 5_000;
/// A lock that more holders than this may be found at is read without asking which of them are.
const FEW: usize = 4;

/// So many locks are read forwards before the word of the other end is taken that nobody stands behind: it knows that only
/// from the indexes of what agents hold, which may have lost something for a while.
const DOUBTED: usize = 64;

/// What was read of the graph.
struct Graph {
    table: Table,
    read: HashSet<LockName>,
    /// From where on everybody in a queue was met on the way back, and up to where on the way on.
    followed: HashMap<LockName, Option<Place>>,
    preceded: HashMap<LockName, Place>,
}

/// One end of a search: holders whose next locks are not read yet.
struct End {
    next: Vec<Holder>,
    met: HashSet<Holder>,
}

impl End {
    fn at(holder: &Holder) -> Self {
        Self { next: vec![holder.clone()], met: HashSet::from([holder.clone()]) }
    }

    /// Whether one of them was met from the other end too.
    fn meet(&mut self, holders: Vec<Holder>, other: &Self) -> bool {
        let mut both = false;
        for holder in holders {
            if self.met.insert(holder.clone()) {
                both |= other.met.contains(&holder);
                self.next.push(holder);
            }
        }
        both
    }
}

impl Graph {
    fn new(rules: &LockLimits) -> Self {
        let table = Table::new(rules.clone());
        Self { table, read: HashSet::new(), followed: HashMap::new(), preceded: HashMap::new() }
    }

    /// Who stands in a holder's way, and those in theirs at the same locks: whoever holds what it waits for or waits before
    /// it. All at once, so that a long queue is one step.
    fn blockers(&mut self, holder: &Holder) -> Vec<Holder> {
        let mut found = Vec::new();
        for name in self.table.waited_for_by(holder) {
            let Some((lock, place)) =
                self.table.lock(name).and_then(|lock| Some((lock, lock.wait_of(holder)?.place())))
            else {
                continue;
            };
            let before = self.preceded.get(name).copied();
            if before.is_none_or(|until| until < place) {
                self.preceded.insert(name.clone(), place);
                let ahead = lock.waiters().take_while(|waiter| waiter.place() < place);
                let ahead = ahead.skip_while(|waiter| before.is_some_and(|until| waiter.place() < until));
                found.extend(ahead.map(|waiter| waiter.holder.clone()));
            }
            if before.is_none() {
                found.extend(lock.holds().iter().map(|hold| hold.holder.clone()));
            }
        }
        found
    }

    /// In whose way a holder stands, and those behind them: whoever waits for what it holds or after it.
    fn followers(&mut self, holder: &Holder) -> Vec<Holder> {
        let held = self.table.held_by(holder).map(|name| (name, None));
        let place = |name| Some(self.table.lock(name)?.wait_of(holder)?.place());
        let waits = self.table.waited_for_by(holder).map(|name| (name, place(name)));
        let mut found = Vec::new();
        for (name, after) in held.chain(waits) {
            match self.followed.entry(name.clone()) {
                Slot::Occupied(mut from) if after < *from.get() => drop(from.insert(after)),
                Slot::Occupied(_) => continue,
                Slot::Vacant(free) => drop(free.insert(after)),
            }
            let waiters = self.table.lock(name).into_iter().flat_map(|lock| lock.waiters());
            let behind = waiters.filter(|waiter| after.is_none_or(|after| waiter.place() > after));
            found.extend(behind.map(|waiter| waiter.holder.clone()));
        }
        found
    }
}

impl Inner {
    /// The shortest cycle through a holder that waits for `name`, and all that was read to find it; `is_last`: nobody waits
    /// behind it there.
    pub(super) async fn find_cycle(
        &self,
        through: &Holder,
        name: &LockName,
        is_last: bool,
    ) -> Result<Option<(Table, Cycle)>, CoordinationError> {
        let start = std::slice::from_ref(through);
        let here = HashSet::from([name.clone()]);
        // It may hold what it waits for, in the other mode.
        let (wanted, waits) =
            try_join(self.wanted_from(start, &HashSet::new()), self.not_alone_at(start, &here)).await?;
        if is_last && wanted.is_empty() && waits.is_empty() {
            // Most of those who queue hold nothing that others want: no way leads back to them.
            return Ok(None);
        }
        let mut behind = Some(wanted.into_iter().chain(waits).filter(|other| other != name).collect());
        let mut graph = Graph::new(self.rules());
        self.read_on(&mut graph, vec![name.clone()]).await?;
        let (mut on, mut back) = (End::at(through), End::at(through));
        on.next.clear();
        let mut both = on.meet(graph.blockers(through), &back);
        // Every cycle of so many locks has been read, and from how many the way on was read.
        let (mut complete, mut forwards) = (1, 1);
        loop {
            let is_over = on.next.is_empty()
                || (back.next.is_empty() && forwards >= DOUBTED)
                || graph.read.len() >= MOST_LOCKS;
            if both || is_over {
                let cycle = graph::cycle_through(&graph.table, through);
                match cycle {
                    Some(cycle) if is_over || cycle.len() <= complete => {
                        return Ok(Some((graph.table, cycle)));
                    }
                    // A longer one than may be hidden still: it is looked at again with every level.
                    cycle => both = cycle.is_some(),
                }
            }
            if is_over {
                return Ok(None);
            }
            if back.next.is_empty() || on.next.len() <= back.next.len() {
                let from = std::mem::take(&mut on.next);
                let names = self.where_they_wait(&from, &graph.read).await?;
                forwards += names.len();
                self.read_on(&mut graph, names).await?;
                let met = from.iter().flat_map(|holder| graph.blockers(holder)).collect();
                both |= on.meet(met, &back);
            } else {
                let from = std::mem::take(&mut back.next);
                let names = match behind.take() {
                    Some(names) => names,
                    None => self.where_others_wait(&from, &graph.read).await?,
                };
                self.read_on(&mut graph, names).await?;
                let met = from.iter().flat_map(|holder| graph.followers(holder)).collect();
                both |= back.meet(met, &on);
            }
            complete += 1;
        }
    }

    /// Everything that can be reached from the waits of an agent: its waits, the agents of all who hold or wait there, what
    /// they wait for, and so on; and whether that is everything.
    pub(super) async fn reach(
        &self,
        agent: &str,
    ) -> Result<(Table, BTreeSet<String>, bool), CoordinationError> {
        let mut graph = Graph::new(self.rules());
        let mut agents = BTreeSet::from([agent.to_owned()]);
        let mut next = agents.clone();
        while !next.is_empty() && graph.read.len() < MOST_LOCKS {
            let waits = try_join_all(next.iter().map(|agent| self.waited_for_by(agent))).await?;
            let names: BTreeSet<LockName> =
                waits.into_iter().flatten().filter(|name| !graph.read.contains(name)).collect();
            let names: Vec<LockName> = names.into_iter().collect();
            self.read_on(&mut graph, names.clone()).await?;
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

    async fn read_on(&self, graph: &mut Graph, mut names: Vec<LockName>) -> Result<(), CoordinationError> {
        names.truncate(MOST_LOCKS.saturating_sub(graph.read.len()));
        for (name, seen) in names.iter().zip(self.see_all(&names, usize::MAX).await?) {
            seen.changes().for_each(|change| graph.table.apply(&Entry::Lock(name.clone(), change)));
        }
        graph.read.extend(names);
        Ok(())
    }

    /// Locks that the holders wait for, and that were not read yet.
    async fn where_they_wait(
        &self,
        holders: &[Holder],
        read: &HashSet<LockName>,
    ) -> Result<Vec<LockName>, CoordinationError> {
        let waits = self.of_their_agents(holders, read, |keys| &keys.waitfor).await?;
        self.where_found(waits, |keys| (keys.waiting(), "")).await
    }

    /// Locks that the holders hold while somebody waits, or where they do not wait alone, and that were not read yet.
    async fn where_others_wait(
        &self,
        holders: &[Holder],
        read: &HashSet<LockName>,
    ) -> Result<Vec<LockName>, CoordinationError> {
        let both = try_join(self.wanted_from(holders, read), self.not_alone_at(holders, read)).await?;
        let found: BTreeSet<LockName> = both.0.into_iter().chain(both.1).collect();
        Ok(found.into_iter().collect())
    }

    async fn wanted_from(
        &self,
        holders: &[Holder],
        read: &HashSet<LockName>,
    ) -> Result<Vec<LockName>, CoordinationError> {
        let held = self.of_their_agents(holders, read, |keys| &keys.by_agent).await?;
        self.with_queue(&self.where_held(held).await?).await
    }

    async fn not_alone_at(
        &self,
        holders: &[Holder],
        read: &HashSet<LockName>,
    ) -> Result<Vec<LockName>, CoordinationError> {
        let waits = self.where_they_wait(holders, read).await?;
        let lengths = self.queue_lengths(&waits).await?;
        Ok(waits.into_iter().zip(lengths).filter(|(_, length)| *length > 1).map(|(name, _)| name).collect())
    }

    /// Locks that a holder itself holds, and not only somebody else of its agent.
    pub(super) async fn held_by(&self, holder: &Holder) -> Result<Vec<LockName>, CoordinationError> {
        let holders = std::slice::from_ref(holder);
        self.where_held(self.of_their_agents(holders, &HashSet::new(), |keys| &keys.by_agent).await?).await
    }

    /// Locks that a holder itself holds or waits for, or that cannot tell now. Waits are looked up first: what is granted
    /// meanwhile is found by either of both.
    pub(super) async fn all_of_holder(
        &self,
        holder: &Holder,
    ) -> Result<BTreeSet<LockName>, CoordinationError> {
        let keys = self.agent_keys(holder.agent_id())?;
        let mut names = self.members(&keys.waitfor).await?;
        names.extend(self.members(&keys.by_agent).await?);
        let who = encoding::who(holder);
        let mut questions = Vec::with_capacity(2 * names.len());
        for name in &names {
            let keys = self.lock_keys(name)?;
            for (key, field) in [(keys.waiting(), who.clone()), (keys.lock(), format!("h:{who}"))] {
                let mut ask = redis::cmd("HEXISTS");
                ask.arg(key.as_str()).arg(field);
                questions.push((key.clone(), ask));
            }
        }
        let is_there = |answer: &Result<Value, CoordinationError>| {
            answer.as_ref().map_or(true, |found| !matches!(found, Value::Int(0) | Value::Boolean(false)))
        };
        let answers = self.link.ask_all(questions).await;
        let (pairs, _) = answers.as_chunks::<2>();
        let found = names.into_iter().zip(pairs).filter(|(_, pair)| pair.iter().any(is_there));
        Ok(found.map(|(name, _)| name).collect())
    }

    async fn where_held(
        &self,
        held: BTreeMap<LockName, Vec<&Holder>>,
    ) -> Result<Vec<LockName>, CoordinationError> {
        self.where_found(held, |keys| (keys.lock(), "h:")).await
    }

    async fn waited_for_by(&self, agent: &str) -> Result<Vec<LockName>, CoordinationError> {
        self.members(&self.agent_keys(agent)?.waitfor).await
    }

    /// What an index of the holders' agents names, each with those of the holders who may be meant.
    async fn of_their_agents<'a>(
        &self,
        holders: &'a [Holder],
        read: &HashSet<LockName>,
        index: impl Fn(&AgentKeys) -> &RedisKey,
    ) -> Result<BTreeMap<LockName, Vec<&'a Holder>>, CoordinationError> {
        let mut by_agent: BTreeMap<&str, Vec<&Holder>> = BTreeMap::new();
        for holder in holders {
            by_agent.entry(holder.agent_id()).or_default().push(holder);
        }
        let indexes: Vec<RedisKey> = by_agent
            .keys()
            .map(|agent| Ok(index(&*self.agent_keys(agent)?).clone()))
            .collect::<Result<_, CoordinationError>>()?;
        let members = try_join_all(indexes.iter().map(|index| self.members(index))).await?;
        let mut found: BTreeMap<LockName, Vec<&Holder>> = BTreeMap::new();
        for (names, holders) in members.into_iter().zip(by_agent.into_values()) {
            for name in names.into_iter().filter(|name| !read.contains(name)) {
                found.entry(name).or_default().extend(&holders);
            }
        }
        Ok(found)
    }

    /// Those of the locks at which one of the holders has a field in a hash.
    async fn where_found(
        &self,
        candidates: BTreeMap<LockName, Vec<&Holder>>,
        hash: impl Fn(&LockKeys) -> (&RedisKey, &'static str),
    ) -> Result<Vec<LockName>, CoordinationError> {
        let (mut found, mut asked, mut questions) = (Vec::new(), Vec::new(), Vec::new());
        for (name, holders) in candidates {
            if holders.len() > FEW {
                found.push(name);
                continue;
            }
            let keys = self.lock_keys(&name)?;
            let (key, prefix) = hash(&keys);
            let mut ask = redis::cmd("HMGET");
            ask.arg(key.as_str());
            for holder in holders {
                ask.arg(format!("{prefix}{}", encoding::who(holder)));
            }
            questions.push((key.clone(), ask));
            asked.push(name);
        }
        for (name, answer) in asked.into_iter().zip(self.ask_each(questions).await?) {
            if step::list(&answer).map_err(foreign)?.iter().any(|field| *field != Value::Nil) {
                found.push(name);
            }
        }
        Ok(found)
    }
}
