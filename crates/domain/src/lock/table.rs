//! Many locks with the indexes that span them: by holder, by agent, by due time, and for the search for cycles.
//!
//! Every index is derived from the changes of single locks, so a table is the same whether it executed its commands or
//! replayed its journal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::graph::{self, Deadlock, PendingWait, VictimCandidate, WaitForGraph};
use super::holder_index::HolderIndex;
use super::name::NameHashBuilder;
use super::parted_map::PartedMap;
use super::sliced_snapshot::SlicedSnapshot;
use super::{
    Cycle, EndReason, Hold, Holder, Lock, LockChange, LockCommand, LockLimits, LockName, LockOutcome, Waiter,
};
use crate::Moment;

/// Idle locks that are kept only for their tombstones.
const MAX_IDLE_LOCKS: usize = 100_000;
/// Locks of one holder that are checked for waiters before the wait-for graph is searched; of more, some may have waiters.
const MAX_CHECKED_HOLDS: usize = 100;

/// One change of a table; a journal stores them in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableChange {
    /// A change of one lock.
    Lock(LockName, LockChange),
    /// The victim of a deadlock keeps its age for a while, so that it is not always the victim.
    VictimAge { holder: Holder, oldest_grant: Moment, expires_at: Moment },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockReply {
    pub outcome: LockOutcome,
    /// The cycles that the command closed; they are resolved.
    pub deadlocks: Vec<Deadlock>,
}

#[derive(Debug, Clone, Default)]
pub struct LockTable {
    limits: LockLimits,
    locks: PartedMap<Box<Lock>>,
    /// The keys of `locks` in order.
    pub(super) names: BTreeSet<LockName>,
    pub(super) held: HolderIndex,
    pub(super) waiting: HolderIndex,
    /// The same pairs as `waiting`, hashed by holder because the search for cycles visits every waiting holder. The names
    /// are sorted: which of several cycles is found must not depend on the order of arrival.
    awaited_locks: HashMap<Holder, Vec<LockName>, NameHashBuilder>,
    due: BTreeSet<(Moment, LockName)>,
    /// Locks that nobody uses, by the time at which nothing about them is worth keeping.
    idle: BTreeSet<(Moment, LockName)>,
    /// How many locks somebody holds or waits for.
    used_count: usize,
    victim_ages: BTreeMap<Holder, VictimAge>,
    /// A snapshot that is being taken.
    pub(super) snapshot: Option<SlicedSnapshot>,
    /// What commands have changed and nobody has taken yet.
    pub changes: Vec<TableChange>,
}

/// Whether a lock is used, and when something about it is to be done next.
#[derive(Debug, Clone, Copy, Default)]
struct Schedule {
    is_used: bool,
    due: Option<Moment>,
    idle: Option<Moment>,
}

impl Schedule {
    fn of(lock: &Lock, limits: &LockLimits) -> Self {
        let is_used = lock.mode().is_some() || lock.queue_length() > 0;
        Self { is_used, due: lock.next_due(limits), idle: lock.idle_until() }
    }
}

#[derive(Debug, Clone, Copy)]
struct VictimAge {
    oldest_grant: Moment,
    expires_at: Moment,
}

impl LockTable {
    pub fn new(limits: LockLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub const fn set_deadlock_detection(&mut self, is_enabled: bool) {
        self.limits.deadlock_detection = is_enabled;
    }

    pub const fn limits(&self) -> &LockLimits {
        &self.limits
    }

    /// `None` if the lock has no holders, no waiters and no tombstones.
    pub fn lock(&self, name: &LockName) -> Option<&Lock> {
        self.locks.get(name).map(Box::as_ref)
    }

    /// How many locks somebody holds or waits for.
    pub const fn used_count(&self) -> usize {
        self.used_count
    }

    pub fn wait_count(&self) -> usize {
        self.waiting.len()
    }

    /// How many locks an agent holds.
    pub fn held_count(&self, agent: &str) -> usize {
        let names: BTreeSet<&LockName> = self.held.by_agent(agent).map(|(_, name)| name).collect();
        names.len()
    }

    pub fn locks_held_by(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        self.held.by_holder(holder)
    }

    pub fn locks_awaited_by(&self, holder: &Holder) -> impl Iterator<Item = &LockName> {
        self.waiting.by_holder(holder)
    }

    pub fn locks_awaited_by_agent(&self, agent: &str) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.waiting.by_agent(agent)
    }

    /// The first waiting holder after this one, or the first of all.
    pub fn next_waiting_holder(&self, after: Option<&Holder>) -> Option<&Holder> {
        let next = after.and_then(|after| self.waiting.next_holder(&after.upper_bound()));
        next.or_else(|| self.waiting.iter().next().map(|(holder, _)| holder))
    }

    pub fn all_waits(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.waiting.iter()
    }

    pub fn all_holds(&self) -> impl Iterator<Item = (&Holder, &LockName)> {
        self.held.iter()
    }

    /// Executes a command on one lock and resolves every deadlock that it causes. Appends what changed to `changes`.
    pub fn execute(&mut self, name: &LockName, command: &LockCommand, now: Moment) -> LockReply {
        let before = self.changes.len();
        let mut outcome = self.execute_one(name, command, now);
        let mut deadlocks = self.resolve_new_deadlocks(before, now);
        if !deadlocks.is_empty() && matches!(command, LockCommand::Acquire(_)) {
            // The abort may have granted the lock to this request, or this request was the victim.
            let before = self.changes.len();
            outcome = self.execute_one(name, command, now);
            deadlocks.extend(self.resolve_new_deadlocks(before, now));
        }
        LockReply { outcome, deadlocks }
    }

    /// Resolves every cycle that the changes since `before` closed. Aborting a victim processes what is due at its locks,
    /// which can close further cycles; those are resolved too.
    fn resolve_new_deadlocks(&mut self, before: usize, now: Moment) -> Vec<Deadlock> {
        let (mut deadlocks, mut checked) = (Vec::new(), before);
        while checked < self.changes.len() {
            let holders = self.possible_cycle_closers(self.changes.get(checked..).unwrap_or_default());
            checked = self.changes.len();
            for holder in holders {
                deadlocks.extend(self.resolve_cycles_through(&holder, now));
            }
        }
        deadlocks
    }

    /// The holders whose change may have closed a cycle: a new waiter, a waiting upgrade that lost its shared hold, and a
    /// waiting holder that got the last shared slot of a lock, because only then sharers block each other.
    fn possible_cycle_closers(&self, changes: &[TableChange]) -> BTreeSet<Holder> {
        let waits_for = |holder: &Holder, name: &LockName| {
            self.awaited_locks.get(holder).is_some_and(|names| names.binary_search(name).is_ok())
        };
        let is_full = |name: &LockName| {
            self.lock(name).is_some_and(|lock| lock.holds().len() >= self.limits.max_holders)
        };
        let closer = |change: &TableChange| match change {
            TableChange::Lock(
                name,
                LockChange::Queued(Waiter { holder, .. }) | LockChange::HoldEnded { holder, .. },
            ) => waits_for(holder, name).then(|| holder.clone()),
            TableChange::Lock(
                name,
                LockChange::Granted(Hold { holder, .. }) | LockChange::Promoted(Hold { holder, .. }),
            ) => (self.awaited_locks.contains_key(holder) && is_full(name)).then(|| holder.clone()),
            _ => None,
        };
        changes.iter().filter_map(closer).collect()
    }

    /// Executes a command on one lock without looking for deadlocks.
    pub fn execute_one(&mut self, name: &LockName, command: &LockCommand, now: Moment) -> LockOutcome {
        self.preserve(name);
        let name = self.intern(name);
        let lock = self.locks.get_or_default(&name);
        let before = Schedule::of(lock, &self.limits);
        let result = lock.execute(command, now, &self.limits);
        let can_be_dropped = lock.can_be_dropped(now);
        let after = if can_be_dropped { Schedule::default() } else { Schedule::of(lock, &self.limits) };
        self.reschedule(&name, before, after);
        if can_be_dropped {
            self.locks.remove(&name);
            self.names.remove(&name);
        }
        for change in result.changes {
            self.update_indexes(&name, &change);
            self.changes.push(TableChange::Lock(name.clone(), change));
        }
        result.outcome
    }

    /// Returns the stored copy of the name, so that all indexes share one text.
    fn intern(&mut self, name: &LockName) -> LockName {
        if let Some((stored, _)) = self.locks.get_key_value(name) {
            return stored.clone();
        }
        self.names.insert(name.clone());
        name.clone()
    }

    /// Replays one change of a journal.
    pub fn apply(&mut self, change: &TableChange) {
        match change {
            TableChange::Lock(name, change) => {
                self.preserve(name);
                let name = self.intern(name);
                let lock = self.locks.get_or_default(&name);
                let before = Schedule::of(lock, &self.limits);
                lock.apply(change, &self.limits);
                let after = Schedule::of(lock, &self.limits);
                self.reschedule(&name, before, after);
                self.update_indexes(&name, change);
            }
            TableChange::VictimAge { holder, oldest_grant, expires_at } => {
                let age = VictimAge { oldest_grant: *oldest_grant, expires_at: *expires_at };
                self.victim_ages.insert(holder.clone(), age);
            }
        }
    }

    /// After a restart: counts every server that serves waiters as alive now, so that its waiters can come back.
    pub fn reset_server_heartbeats(&mut self, now: Moment) {
        let mut heartbeats = Vec::new();
        let awaited: BTreeSet<&LockName> = self.waiting.iter().map(|(_, name)| name).collect();
        for (name, lock) in awaited.into_iter().filter_map(|name| Some((name, self.lock(name)?))) {
            let alive =
                |server| TableChange::Lock(name.clone(), LockChange::ServerHeartbeat { server, at: now });
            heartbeats.extend(lock.servers().map(alive));
        }
        heartbeats.into_iter().for_each(|change| self.record(change));
    }

    fn record(&mut self, change: TableChange) {
        self.apply(&change);
        self.changes.push(change);
    }

    /// The ages of victims as changes.
    pub(super) fn victim_ages(&self) -> impl Iterator<Item = TableChange> {
        self.victim_ages.iter().map(|(holder, age)| TableChange::VictimAge {
            holder: holder.clone(),
            oldest_grant: age.oldest_grant,
            expires_at: age.expires_at,
        })
    }

    pub fn evict_victim_ages(&mut self, now: Moment) {
        self.victim_ages.retain(|_, age| age.expires_at > now);
    }

    /// Drops at most `limit` idle locks; returns how many. Their number is bounded: beyond it, those that expire first are dropped
    /// early.
    pub fn drop_idle_locks(&mut self, now: Moment, limit: usize) -> usize {
        let excess = self.idle.len().saturating_sub(MAX_IDLE_LOCKS);
        let is_due = |(index, (until, _)): &(usize, &(Moment, LockName))| *until <= now || *index < excess;
        let due = self.idle.iter().enumerate().take_while(is_due).map(|(_, (_, name))| name);
        // A lock whose circuit is open stays even if there are too many.
        let is_dispensable =
            |name: &&LockName| self.lock(name).is_none_or(|lock| lock.has_only_tombstones(now));
        let dropped: Vec<LockName> = due.filter(is_dispensable).take(limit).cloned().collect();
        for name in &dropped {
            self.preserve(name);
            if let Some(lock) = self.locks.remove(name) {
                self.reschedule(name, Schedule::of(&lock, &self.limits), Schedule::default());
            }
            self.names.remove(name);
        }
        dropped.len()
    }

    /// The first lock that is due by `now`. A scheduled time is a lower bound that depends on history, so it is made exact
    /// first: the order in which locks are due must not depend on history. Each correction takes one from `budget`; `None` if
    /// that is used up, too.
    pub fn next_due_lock(&mut self, now: Moment, budget: &mut usize) -> Option<LockName> {
        while *budget > 0
            && let Some((scheduled, name)) = self.due.first().filter(|(due, _)| *due <= now).cloned()
        {
            let exact = self.locks.get_mut(&name).map_or_else(Schedule::default, |lock| {
                lock.refresh_next_expiry();
                Schedule::of(lock, &self.limits)
            });
            if exact.due == Some(scheduled) {
                return Some(name);
            }
            self.reschedule(&name, Schedule { due: Some(scheduled), ..exact }, exact);
            *budget -= 1;
        }
        None
    }

    /// Resolves every cycle through this holder, and the cycles that this closes.
    pub fn resolve_deadlocks(&mut self, holder: &Holder, now: Moment) -> Vec<Deadlock> {
        let before = self.changes.len();
        let mut deadlocks = self.resolve_cycles_through(holder, now);
        deadlocks.extend(self.resolve_new_deadlocks(before, now));
        deadlocks
    }

    fn resolve_cycles_through(&mut self, holder: &Holder, now: Moment) -> Vec<Deadlock> {
        let mut deadlocks = Vec::new();
        while self.limits.deadlock_detection
            && let Some(cycle) = graph::find_cycle_through(self, holder)
        {
            if self.process_due(&cycle, now) {
                continue;
            }
            let Some(victim) = self.choose_victim(&cycle, now) else { break };
            deadlocks.push(self.abort(victim, cycle, now));
        }
        deadlocks
    }

    /// Processes what is due at the locks of a cycle. Returns whether anything changed, which may have broken the cycle.
    fn process_due(&mut self, cycle: &Cycle, now: Moment) -> bool {
        let before = self.changes.len();
        for edge in cycle {
            self.execute_one(&edge.waits_for, &LockCommand::Tick, now);
        }
        self.changes.len() > before
    }

    pub fn choose_victim(&self, cycle: &Cycle, now: Moment) -> Option<VictimCandidate> {
        graph::choose_victim(cycle.iter().map(|edge| self.candidate(&edge.holder, &edge.waits_for, now)))
    }

    fn candidate(&self, holder: &Holder, waits_for: &LockName, now: Moment) -> VictimCandidate {
        let acquired_at = |name| Some(self.locks.get(name)?.hold_of(holder)?.acquired_at);
        let current = self.locks_held_by(holder).filter_map(acquired_at).min();
        let previous = self.victim_ages.get(holder).filter(|age| age.expires_at > now);
        let previous = previous.map(|age| age.oldest_grant);
        let waiter = self.locks.get(waits_for).and_then(|lock| lock.waiter_of(holder));
        VictimCandidate {
            holder: holder.clone(),
            oldest_grant: [current, previous].into_iter().flatten().min(),
            priority: waiter.map_or(0, |waiter| waiter.priority),
        }
    }

    /// The victim loses all its waits and all its locks.
    fn abort(&mut self, victim: VictimCandidate, cycle: Cycle, now: Moment) -> Deadlock {
        let VictimCandidate { holder, oldest_grant, .. } = victim;
        if let Some(oldest_grant) = oldest_grant {
            let expires_at = now.plus_ms(self.limits.idempotency_ttl_ms);
            self.record(TableChange::VictimAge { holder: holder.clone(), oldest_grant, expires_at });
        }
        let cycle = Arc::new(cycle);
        let freed_locks: Vec<LockName> = self.locks_held_by(&holder).cloned().collect();
        let awaited_locks: Vec<LockName> = self.locks_awaited_by(&holder).cloned().collect();
        let abort =
            LockCommand::Abort { holder: holder.clone(), expected_request: None, cycle: cycle.clone() };
        for name in awaited_locks.iter().chain(&freed_locks) {
            self.execute_one(name, &abort, now);
        }
        Deadlock { cycle, victim: holder, freed_locks }
    }

    fn reschedule(&mut self, name: &LockName, before: Schedule, after: Schedule) {
        self.used_count = self.used_count + usize::from(after.is_used) - usize::from(before.is_used);
        let moves = [(&mut self.due, before.due, after.due), (&mut self.idle, before.idle, after.idle)];
        for (index, before, after) in moves.into_iter().filter(|(_, before, after)| before != after) {
            if let Some(before) = before {
                index.remove(&(before, name.clone()));
            }
            if let Some(after) = after {
                index.insert((after, name.clone()));
            }
        }
    }

    fn remove_wait(&mut self, holder: &Holder, name: &LockName) {
        if self.waiting.remove(holder, name)
            && let Some(names) = self.awaited_locks.get_mut(holder)
        {
            names.retain(|other| other != name);
            if names.is_empty() {
                self.awaited_locks.remove(holder);
            }
        }
    }

    fn update_indexes(&mut self, name: &LockName, change: &LockChange) {
        match change {
            LockChange::Queued(waiter) => {
                if self.waiting.insert(&waiter.holder, name) {
                    let names = self.awaited_locks.entry(waiter.holder.clone()).or_default();
                    if let Err(index) = names.binary_search(name) {
                        names.insert(index, name.clone());
                    }
                }
            }
            LockChange::WaitEnded { holder, .. } => self.remove_wait(holder, name),
            LockChange::Granted(hold) | LockChange::Promoted(hold) => {
                self.remove_wait(&hold.holder, name);
                self.held.insert(&hold.holder, name);
            }
            LockChange::HoldEnded { holder, reason, .. } => {
                self.held.remove(holder, name);
                if *reason == EndReason::Released {
                    self.victim_ages.remove(holder);
                }
            }
            LockChange::CountersAdvanced(..)
            | LockChange::WaitRenewed { .. }
            | LockChange::RequestJoined { .. }
            | LockChange::RequestDetached { .. }
            | LockChange::ServerRemoved { .. }
            | LockChange::Claimed { .. }
            | LockChange::Extended { .. }
            | LockChange::Downgraded { .. }
            | LockChange::TombstoneAdded { .. }
            | LockChange::ServerHeartbeat { .. }
            | LockChange::RefusalCounted(_) => {}
        }
    }
}

impl WaitForGraph for LockTable {
    fn waits(&self, holder: &Holder) -> impl Iterator<Item = PendingWait<'_>> {
        let entry = self.awaited_locks.get_key_value(holder);
        entry.into_iter().flat_map(move |(holder, names)| {
            names.iter().filter_map(move |lock| {
                let (waiter, blockers) = self.locks.get(lock)?.waiter_and_blockers(holder)?;
                let earlier_waiters = blockers.into_iter().map(|blocker| &blocker.holder).collect();
                Some(PendingWait { holder, lock, request: waiter.request, earlier_waiters })
            })
        })
    }

    fn may_have_waiters(&self, holder: &Holder) -> bool {
        let lock = |name| self.locks.get(name);
        let mut held = self.locks_held_by(holder);
        let has_waiters =
            held.by_ref().take(MAX_CHECKED_HOLDS).filter_map(lock).any(|lock| lock.queue_length() > 0);
        has_waiters
            || held.next().is_some()
            || self.locks_awaited_by(holder).filter_map(lock).any(|lock| !lock.is_last_waiter(holder))
    }

    fn holds(&self, holder: &Holder, lock: &LockName) -> bool {
        self.lock(lock).is_some_and(|lock| lock.hold_of(holder).is_some())
    }

    fn holders(&self, lock: &LockName) -> impl Iterator<Item = &Holder> {
        let holds = self.lock(lock).map_or(&[] as &[Hold], Lock::holds);
        holds.iter().map(|hold| &hold.holder)
    }
}
