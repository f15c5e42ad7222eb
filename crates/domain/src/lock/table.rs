//! Many locks, and what must be found across them: by holder, by due time, in circles.
//!
//! Every index is derived from the changes of single locks, so a table is the same whether it lived through its commands
//! or was made again from its entries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::graph::{self, Candidate, Deadlock, Sight};
use super::name::ByMark;
use super::pairs::Pairs;
use super::{Change, Cycle, End, Hold, Holder, Lock, LockCommand, LockLimits, LockName, Outcome, Waiter};
use crate::Moment;

/// Idle locks that are kept for the requests they remember.
const MAX_IDLE: usize = 100_000;

/// One entry of what happened to a table; a journal keeps them in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A lock changed.
    Lock(LockName, Change),
    /// A holder gave way in a deadlock; until then it counts as old as it was, so that it does not give way for ever.
    Aged {
        /// Who.
        holder: Holder,
        /// When the oldest of its locks had been granted.
        since: Moment,
        /// When this is forgotten.
        until: Moment,
    },
}

/// What a table answers to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What the lock answers.
    pub outcome: Outcome,
    /// Cycles that were ended.
    pub deadlocks: Vec<Deadlock>,
}

/// Locks by name, with their indexes.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rules: LockLimits,
    /// Found by name at once; their order is in `names`.
    locks: HashMap<LockName, Box<Lock>, ByMark>,
    names: BTreeSet<LockName>,
    held: Pairs,
    waiting: Pairs,
    /// The same as `waiting`, found by holder at once: the search for cycles looks at every waiting holder. In the order of
    /// names, whoever queued first: which of several cycles is found must not depend on what is past.
    waits: HashMap<Holder, Vec<LockName>, ByMark>,
    due: BTreeSet<(Moment, LockName)>,
    ages: BTreeMap<Holder, (Moment, Moment)>,
}

impl Table {
    /// A table without locks.
    #[must_use]
    pub fn new(rules: LockLimits) -> Self {
        Self { rules, ..Self::default() }
    }

    /// What its locks go by.
    #[must_use]
    pub const fn rules(&self) -> &LockLimits {
        &self.rules
    }

    /// A lock that is held, waited for, or remembers something.
    #[must_use]
    pub fn lock(&self, name: &LockName) -> Option<&Lock> {
        self.locks.get(name).map(Box::as_ref)
    }

    /// All of them by name, from the first one after `after`.
    pub fn locks_after(&self, after: Option<&LockName>) -> impl Iterator<Item = (&LockName, &Lock)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let names = self.names.range((after.map_or(Unbounded, Excluded), Unbounded));
        names.filter_map(|name| Some((name, self.lock(name)?)))
    }

    /// How many grants are in force.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// What a holder holds.
    pub fn held_by(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        self.held.of(holder)
    }

    /// What a holder waits for.
    pub fn waited_for_by(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        self.waiting.of(holder)
    }

    /// What the holders of an agent hold.
    pub fn held_by_agent(&self, agent: &str) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.held.of_agent(agent)
    }

    /// What the holders of an agent wait for.
    pub fn waited_for_by_agent(&self, agent: &str) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.waiting.of_agent(agent)
    }

    /// Who waits, each with what for.
    pub fn all_waiting(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.waiting.iter()
    }

    /// Who holds, each with what.
    pub fn all_held(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.held.iter()
    }

    /// A command to one lock, and the end of every cycle that its waiting closed. What changed is added to `entries`.
    pub fn command(
        &mut self,
        name: &LockName,
        command: &LockCommand,
        now: Moment,
        entries: &mut Vec<Entry>,
    ) -> Answer {
        let before = entries.len();
        let mut outcome = self.step(name, command, now, entries);
        let mut deadlocks = self.end_new_deadlocks(before, now, entries);
        if !deadlocks.is_empty() && matches!(command, LockCommand::Acquire(_)) {
            // Somebody gave way: the request may hold the lock by now, or have been the one that gave way.
            let before = entries.len();
            outcome = self.step(name, command, now, entries);
            deadlocks.extend(self.end_new_deadlocks(before, now, entries));
        }
        Answer { outcome, deadlocks }
    }

    /// Ends every cycle that was closed by what happened since `before`, and by what ending them brings about: whoever is
    /// made to give way is taken off locks at which other things are due.
    fn end_new_deadlocks(&mut self, before: usize, now: Moment, entries: &mut Vec<Entry>) -> Vec<Deadlock> {
        let (mut ended, mut searched) = (Vec::new(), before);
        while searched < entries.len() {
            let holders = self.may_have_closed(entries.get(searched..).unwrap_or_default());
            searched = entries.len();
            for holder in holders {
                ended.extend(self.end_cycles(&holder, now, entries));
            }
        }
        ended
    }

    /// Who may have closed a cycle: who queued, who lost the place of an upgrade, and who took the last place among the holders
    /// of a lock, because sharers wait for each other only there. Who waits for nothing closes none.
    fn may_have_closed(&self, entries: &[Entry]) -> BTreeSet<Holder> {
        let waits_for = |holder: &Holder, name: &LockName| {
            self.waits.get(holder).is_some_and(|names| names.binary_search(name).is_ok())
        };
        let is_full = |name: &LockName| {
            self.lock(name).is_some_and(|lock| lock.holds().len() >= self.rules.max_holders)
        };
        let closed_by = |entry: &Entry| match entry {
            Entry::Lock(name, Change::Queued(Waiter { holder, .. }) | Change::Freed { holder, .. }) => {
                waits_for(holder, name).then(|| holder.clone())
            }
            Entry::Lock(name, Change::Granted(Hold { holder, .. })) => {
                (self.waits.contains_key(holder) && is_full(name)).then(|| holder.clone())
            }
            _ => None,
        };
        entries.iter().filter_map(closed_by).collect()
    }

    /// A command to one lock alone.
    pub fn step(
        &mut self,
        name: &LockName,
        command: &LockCommand,
        now: Moment,
        entries: &mut Vec<Entry>,
    ) -> Outcome {
        let name = self.name(name);
        let lock = self.locks.entry(name.clone()).or_default();
        let was_due = lock.next_due(&self.rules);
        let step = lock.step(command, now, &self.rules);
        let due = lock.next_due(&self.rules);
        let forget = lock.is_forgettable(now);
        self.is_due(&name, was_due, if forget { None } else { due });
        for change in &step.changes {
            self.index(&name, change);
        }
        if forget {
            self.locks.remove(&name);
            self.names.remove(&name);
        }
        entries.extend(step.changes.into_iter().map(|change| Entry::Lock(name.clone(), change)));
        step.outcome
    }

    /// The name as it is kept: every index shares one copy of its text.
    fn name(&mut self, name: &LockName) -> LockName {
        if let Some((kept, _)) = self.locks.get_key_value(name) {
            return kept.clone();
        }
        self.names.insert(name.clone());
        name.clone()
    }

    /// Makes an entry of a journal again.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Lock(name, change) => {
                let name = self.name(name);
                let lock = self.locks.entry(name.clone()).or_default();
                let was_due = lock.next_due(&self.rules);
                lock.apply(change, &self.rules);
                let due = lock.next_due(&self.rules);
                self.is_due(&name, was_due, due);
                self.index(&name, change);
            }
            Entry::Aged { holder, since, until } => {
                self.ages.insert(holder.clone(), (*since, *until));
            }
        }
    }

    /// Begins a new life: every server that served waiters counts as heard of now, so that its waiters may come back.
    pub fn revive(&mut self, now: Moment, entries: &mut Vec<Entry>) {
        let marks = |(name, lock): (&LockName, &Lock)| {
            lock.servers()
                .map(|server| Entry::Lock(name.clone(), Change::Marked { server, at: now }))
                .collect::<Vec<_>>()
        };
        let marked: Vec<Entry> = self.locks_after(None).flat_map(marks).collect();
        for entry in marked {
            self.apply(&entry);
            entries.push(entry);
        }
    }

    /// The table as the entries that make it.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let ages = self.ages.iter().map(|(holder, (since, until))| Entry::Aged {
            holder: holder.clone(),
            since: *since,
            until: *until,
        });
        let of_lock = |(name, lock): (&LockName, &Lock)| {
            lock.changes().map(|change| Entry::Lock(name.clone(), change)).collect::<Vec<_>>()
        };
        self.locks_after(None).flat_map(of_lock).chain(ages)
    }

    /// Forgets locks that remember nothing worth keeping, and ages that are over.
    pub fn forget(&mut self, now: Moment) {
        for lock in self.locks.values_mut() {
            lock.forget(now);
        }
        self.locks.retain(|_, lock| !lock.is_forgettable(now));
        let mut idle: Vec<(Moment, LockName)> = Vec::new();
        for (name, lock) in &self.locks {
            idle.extend(lock.droppable(now).map(|remembers_until| (remembers_until, name.clone())));
        }
        // What idle locks remember is bounded: those that would forget first do so early.
        if idle.len() > MAX_IDLE {
            idle.sort_unstable();
            for (_, name) in idle.iter().take(idle.len() - MAX_IDLE) {
                self.locks.remove(name);
            }
        }
        self.names.retain(|name| self.locks.contains_key(name));
        self.ages.retain(|_, (_, until)| *until > now);
    }

    /// The first lock at which something is due by `now`. Until a lock's turn comes it is only known before when nothing is
    /// due there, which depends on what is past; the order in which locks have their turn does not.
    pub fn first_due(&mut self, now: Moment) -> Option<LockName> {
        while let Some((noted, name)) = self.due.first().filter(|(due, _)| *due <= now).cloned() {
            let due = self.locks.get_mut(&name).and_then(|lock| {
                lock.find_next_expiry();
                lock.next_due(&self.rules)
            });
            if due == Some(noted) {
                return Some(name);
            }
            self.is_due(&name, Some(noted), due);
        }
        None
    }

    /// Ends every cycle through this holder, and those that are closed by that.
    pub fn end_deadlocks(
        &mut self,
        through: &Holder,
        now: Moment,
        entries: &mut Vec<Entry>,
    ) -> Vec<Deadlock> {
        let before = entries.len();
        let mut ended = self.end_cycles(through, now, entries);
        ended.extend(self.end_new_deadlocks(before, now, entries));
        ended
    }

    /// Whoever gives way loses its waits and all its locks.
    fn end_cycles(&mut self, through: &Holder, now: Moment, entries: &mut Vec<Entry>) -> Vec<Deadlock> {
        let mut ended = Vec::new();
        while self.rules.deadlock_detection
            && let Some(cycle) = graph::cycle_through(self, through)
        {
            if self.catch_up(&cycle, now, entries) {
                continue;
            }
            let Some(victim) = self.victim(&cycle, now) else { break };
            ended.push(self.abort(victim, cycle, now, entries));
        }
        ended
    }

    /// Lets happen what is due at the locks of a cycle; whether anything was, which may have opened it.
    fn catch_up(&mut self, cycle: &Cycle, now: Moment, entries: &mut Vec<Entry>) -> bool {
        let before = entries.len();
        for edge in cycle {
            self.step(&edge.waits_for, &LockCommand::Tick, now, entries);
        }
        entries.len() > before
    }

    /// Who gives way to end a cycle.
    #[must_use]
    pub fn victim(&self, cycle: &Cycle, now: Moment) -> Option<Candidate> {
        graph::victim(cycle.iter().map(|edge| self.candidate(&edge.holder, &edge.waits_for, now)))
    }

    fn candidate(&self, holder: &Holder, waits_for: &LockName, now: Moment) -> Candidate {
        let granted = |name| Some(self.locks.get(name)?.hold_of(holder)?.acquired_at);
        let oldest = self.held_by(holder).filter_map(granted).min();
        let first = self.ages.get(holder).filter(|(_, until)| *until > now).map(|(since, _)| *since);
        let waiter = self.locks.get(waits_for).and_then(|lock| lock.wait_of(holder));
        Candidate {
            holder: holder.clone(),
            oldest_grant: [oldest, first].into_iter().flatten().min(),
            priority: waiter.map_or(0, |waiter| waiter.priority),
        }
    }

    fn abort(&mut self, victim: Candidate, cycle: Cycle, now: Moment, entries: &mut Vec<Entry>) -> Deadlock {
        let Candidate { holder, oldest_grant, .. } = victim;
        if let Some(since) = oldest_grant {
            let until = now.plus_ms(self.rules.repeat_ms);
            let aged = Entry::Aged { holder: holder.clone(), since, until };
            self.apply(&aged);
            entries.push(aged);
        }
        let cycle = Arc::new(cycle);
        let freed: Vec<LockName> = self.held_by(&holder).cloned().collect();
        let waits: Vec<LockName> = self.waited_for_by(&holder).cloned().collect();
        for name in waits.iter().chain(&freed) {
            let (holder, cycle) = (holder.clone(), cycle.clone());
            self.step(name, &LockCommand::Abort { holder, waits_by: None, cycle }, now, entries);
        }
        Deadlock { cycle, victim: holder, freed }
    }

    fn is_due(&mut self, name: &LockName, was: Option<Moment>, due: Option<Moment>) {
        if was != due {
            if let Some(was) = was {
                self.due.remove(&(was, name.clone()));
            }
            if let Some(due) = due {
                self.due.insert((due, name.clone()));
            }
        }
    }

    fn stops_waiting(&mut self, holder: &Holder, name: &LockName) {
        if self.waiting.remove(holder, name)
            && let Some(names) = self.waits.get_mut(holder)
        {
            names.retain(|other| other != name);
            if names.is_empty() {
                self.waits.remove(holder);
            }
        }
    }

    fn index(&mut self, name: &LockName, change: &Change) {
        match change {
            Change::Queued(waiter) => {
                if self.waiting.insert(&waiter.holder, name) {
                    let names = self.waits.entry(waiter.holder.clone()).or_default();
                    if let Err(at) = names.binary_search(name) {
                        names.insert(at, name.clone());
                    }
                }
            }
            Change::Left { holder, .. } => self.stops_waiting(holder, name),
            Change::Granted(hold) => {
                self.stops_waiting(&hold.holder, name);
                self.held.insert(&hold.holder, name);
            }
            Change::Freed { holder, why, .. } => {
                self.held.remove(holder, name);
                if *why == End::Released {
                    self.ages.remove(holder);
                }
            }
            Change::Fenced(..)
            | Change::Served { .. }
            | Change::Joined { .. }
            | Change::Parted { .. }
            | Change::Silenced { .. }
            | Change::Claimed { .. }
            | Change::Extended { .. }
            | Change::Downgraded { .. }
            | Change::Gone { .. }
            | Change::Marked { .. }
            | Change::Crowded { .. } => {}
        }
    }
}

impl Sight for Table {
    fn waits(&self, holder: &Holder) -> impl Iterator<Item = graph::Wait<'_>> {
        let found = self.waits.get_key_value(holder);
        found.into_iter().flat_map(move |(holder, names)| {
            names.iter().filter_map(move |name| {
                let (waiter, ahead) = self.locks.get(name)?.wait_and_ahead(holder)?;
                let ahead = ahead.into_iter().map(|waiter| &waiter.holder).collect();
                Some(graph::Wait { holder, lock: name, request: waiter.request, ahead })
            })
        })
    }

    fn may_be_waited_for(&self, holder: &Holder) -> bool {
        let lock = |name| self.locks.get(name);
        self.held_by(holder).filter_map(lock).any(|lock| lock.queue_length() > 0)
            || self.waited_for_by(holder).filter_map(lock).any(|lock| !lock.is_last(holder))
    }

    fn held(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        self.held_by(holder)
    }

    fn holders(&self, lock: &LockName) -> impl Iterator<Item = &Holder> {
        let holds = self.lock(lock).map_or(&[] as &[Hold], Lock::holds);
        holds.iter().map(|hold| &hold.holder)
    }
}
