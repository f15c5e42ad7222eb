//! Locks, in this process: commands, sweeps and views.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{
    Deadlock, EndReason, Holder, Lock, LockCommand, LockKind, LockLimits, LockName, LockReply, LockTable,
    RequestKey,
};
use tokio::sync::broadcast;

use super::EmbeddedCoordination;
use super::state::State;
use crate::coordination::{
    AsyncResult, LockCounts, LockEvent, LockFilter, LockView, Locks, Result, Subscription, WaitView,
};

/// Commands that are executed before the mutex is released for others.
const BATCH_SIZE: usize = 100;
/// Holders and waiters of each lock in a list.
const MAX_LISTED_HOLDERS: usize = 20;
/// How often waits of silent agents are cancelled, and a few waits searched for cycles.
const MAINTENANCE_INTERVAL_MS: u64 = 1_000;
/// How often the waits of one agent are searched for cycles.
const CYCLE_CHECK_INTERVAL_MS: u64 = 30_000;
/// Waits that are searched per maintenance. Cycles are found when they are closed; this search is only a safety net.
const CYCLE_CHECKS_PER_MAINTENANCE: usize = 1;
/// How often expired state is dropped.
const EVICTION_INTERVAL_MS: u64 = 60_000;

impl EmbeddedCoordination {
    fn execute_all(&self, commands: &[(LockName, LockCommand)]) -> Result<Vec<LockReply>> {
        let mut replies = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH_SIZE) {
            let (mut state, now) = self.enter()?;
            replies.extend(batch.iter().map(|(name, command)| state.table.execute(name, command, now)));
            if let Err(error) = self.commit(&mut state, now) {
                // The caller gets no replies, but the deadlocks are resolved: the next sweep returns them.
                state.add_unreported(replies.drain(..).flat_map(|reply| reply.deadlocks).collect());
                return Err(error);
            }
        }
        Ok(replies)
    }

    fn sweep_all(&self) -> Result<Vec<Deadlock>> {
        loop {
            let (mut state, now) = self.enter()?;
            let (mut swept, mut resolved) = (0, Vec::new());
            for returned in self.inner.subscriptions.take_returned() {
                let command = returned.return_command();
                resolved.extend(state.table.execute(&returned.lock, &command, now).deadlocks);
            }
            while swept < BATCH_SIZE
                && let Some(name) = state.table.next_due_lock(now)
            {
                resolved.extend(state.table.execute(&name, &LockCommand::Sweep, now).deadlocks);
                swept += 1;
            }
            state.add_unreported(resolved);
            let dropped = state.table.drop_idle_locks(now, BATCH_SIZE);
            let is_finished = swept.max(dropped) < BATCH_SIZE;
            if is_finished && state.last_maintenance.plus_ms(MAINTENANCE_INTERVAL_MS) <= now {
                state.last_maintenance = now;
                maintain(&mut state, now);
            }
            let reported = if is_finished { state.take_unreported() } else { Vec::new() };
            if let Err(error) = self.commit(&mut state, now) {
                state.add_unreported(reported);
                return Err(error);
            }
            if is_finished {
                return Ok(reported);
            }
        }
    }
}

/// Cancels waits of silent agents, searches a few waits for cycles, and drops expired state.
fn maintain(state: &mut State, now: Moment) {
    for (name, holder, request) in silent_waits(&state.table, state, now) {
        let command =
            LockCommand::Cancel { holder, request, reason: EndReason::AgentOffline, include_claimed: false };
        let resolved = state.table.execute(&name, &command, now).deadlocks;
        state.add_unreported(resolved);
    }
    let is_due = |holder: &Holder| {
        let last = state.checked_for_cycles.get(holder.agent_id());
        last.is_none_or(|last| last.plus_ms(CYCLE_CHECK_INTERVAL_MS) <= now)
    };
    let waiting = state.table.all_waits().map(|(holder, _)| holder);
    let due = waiting.filter(|holder| is_due(holder)).take(CYCLE_CHECKS_PER_MAINTENANCE);
    for holder in due.cloned().collect::<Vec<_>>() {
        let resolved = state.table.resolve_deadlocks(&holder, now);
        state.add_unreported(resolved);
        state.checked_for_cycles.insert(holder.agent_id().to_owned(), now);
    }
    if state.last_eviction.plus_ms(EVICTION_INTERVAL_MS) <= now {
        state.last_eviction = now;
        state.table.evict_victim_ages(now);
        state.rates.retain(|_, window| !window.is_expired(now));
        state.checked_for_cycles.retain(|_, last| last.plus_ms(CYCLE_CHECK_INTERVAL_MS) > now);
        state.evict_idle_agents(now);
    }
    state.evict_requests(now);
}

/// Waits with a ticket of agents whose heartbeat is missing. A wait with an open connection needs no heartbeat.
fn silent_waits(table: &LockTable, state: &State, now: Moment) -> Vec<(LockName, Holder, RequestKey)> {
    let is_silent = |holder: &Holder| {
        let last = state.agents.get(holder.agent_id()).map(|agent| agent.last_heartbeat);
        last.is_none_or(|last| last.plus_ms(OFFLINE_AFTER_MS) <= now)
    };
    let ticket = |(holder, name): (&Holder, &LockName)| {
        let waiter = table.lock(name)?.waiter_of(holder)?;
        waiter.served_by.is_none().then(|| (name.clone(), holder.clone(), waiter.request))
    };
    table.all_waits().filter(|(holder, _)| is_silent(holder)).filter_map(ticket).collect()
}

impl Locks for EmbeddedCoordination {
    fn execute_commands(&self, commands: Vec<(LockName, LockCommand)>) -> AsyncResult<'_, Vec<LockReply>> {
        Box::pin(async move { self.execute_all(&commands) })
    }

    fn lock_view(&self, lock: LockName) -> AsyncResult<'_, LockView> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.table.lock(&lock).is_some() {
                let resolved = state.table.execute(&lock, &LockCommand::Tick, now).deadlocks;
                state.add_unreported(resolved);
            }
            let view = LockView::new(&lock, state.table.lock(&lock), usize::MAX);
            self.commit(&mut state, now)?;
            Ok(view)
        })
    }

    fn list_locks(
        &self,
        filter: LockFilter,
        after: Option<LockName>,
        limit: usize,
    ) -> AsyncResult<'_, Vec<LockView>> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let table = &state.table;
            let prefix =
                filter.resource_type.as_ref().map(|of| format!("{}:{of}:", LockKind::Resource.as_str()));
            let locks: Box<dyn Iterator<Item = (&LockName, &Lock)>> = match (&filter.agent, filter.kind) {
                (Some(agent), _) => {
                    let used = table.locks_held_by_agent(agent).chain(table.locks_awaited_by_agent(agent));
                    let names: BTreeSet<&LockName> =
                        used.filter(|(holder, _)| holder.agent_id() == agent).map(|(_, name)| name).collect();
                    let later =
                        names.into_iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
                    Box::new(later.filter_map(|name| Some((name, table.lock(name)?))))
                }
                (None, Some(LockKind::Task)) if prefix.is_some() => Box::new(iter::empty()),
                (None, kind) => match (kind, &prefix) {
                    (_, Some(prefix)) => {
                        Box::new(table.locks_with_prefix(LockKind::Resource, prefix, after.as_ref()))
                    }
                    (Some(kind), None) => Box::new(table.locks_with_prefix(kind, "", after.as_ref())),
                    (None, None) => Box::new(table.locks_after(after.as_ref())),
                },
            };
            let listed = locks.filter(|(name, lock)| filter.matches(name, lock)).take(limit);
            Ok(listed.map(|(name, lock)| LockView::new(name, Some(lock), MAX_LISTED_HOLDERS)).collect())
        })
    }

    fn waits(&self, limit: usize) -> AsyncResult<'_, Vec<WaitView>> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let table = &state.table;
            let view = |(holder, name): (&Holder, &LockName)| {
                WaitView::new(name, table.lock(name)?, holder, MAX_LISTED_HOLDERS)
            };
            Ok(table.all_waits().filter_map(view).take(limit).collect())
        })
    }

    fn counts(&self) -> AsyncResult<'_, LockCounts> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let State { table, agents, .. } = &*state;
            Ok(LockCounts { held: table.hold_count(), waiting: table.wait_count(), agents: agents.len() })
        })
    }

    fn sweep(&self) -> AsyncResult<'_, Vec<Deadlock>> {
        Box::pin(async move { self.sweep_all() })
    }

    fn subscribe(&self, request: RequestKey) -> Subscription {
        self.inner.subscriptions.subscribe(request)
    }

    fn subscribe_events(&self) -> broadcast::Receiver<Arc<LockEvent>> {
        self.inner.events.subscribe()
    }

    fn limits(&self) -> &LockLimits {
        &self.inner.options.limits
    }

    fn set_deadlock_detection(&self, is_enabled: bool) {
        // A poisoned mutex fails every command, so there is nothing to detect.
        if let Ok(mut state) = self.inner.state.lock() {
            state.table.set_deadlock_detection(is_enabled);
        }
    }

    fn now(&self) -> Moment {
        self.inner.now()
    }
}
