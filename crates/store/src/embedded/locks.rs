//! Locks, in this process: commands, sweeps and views.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::{
    Deadlock, Holder, Lock, LockCommand, LockKind, LockLimits, LockName, LockReply, LockTable, RequestKey,
};
use tokio::sync::broadcast;
use tokio::task::yield_now;

use super::EmbeddedCoordination;
use super::state::State;
use crate::coordination::{
    AsyncResult, LockCounts, LockEvent, LockFilter, LockView, Locks, Result, Subscription, WaitView,
};

/// Commands that are executed before the mutex is released for others.
const BATCH_SIZE: usize = 100;
/// Locks whose next visit a sweep postpones before that, because they were renewed.
const MAX_CORRECTIONS: usize = 400;
/// Locks that a list examines before that.
const LIST_BATCH_SIZE: usize = 256;
/// Holders and waiters of each lock in a list.
const MAX_LISTED_HOLDERS: usize = 20;
/// How often the waits of a holder are searched for cycles.
const MAINTENANCE_INTERVAL_MS: u64 = 1_000;
/// How often the waits of one agent are searched for cycles.
const CYCLE_CHECK_INTERVAL_MS: u64 = 30_000;
/// Waiting holders of which one is searched per maintenance. Cycles are found when they are closed; this is only a safety net.
const MAX_CYCLE_CHECK_CANDIDATES: usize = 16;
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

    /// Does a part of what is due. Returns the deadlocks to report when nothing is left.
    fn sweep_part(&self) -> Result<Option<Vec<Deadlock>>> {
        let (mut state, now) = self.enter()?;
        let (mut swept, mut resolved, mut corrections) = (0, Vec::new(), MAX_CORRECTIONS);
        for returned in self.inner.subscriptions.take_returned() {
            let command = returned.return_command();
            resolved.extend(state.table.execute(&returned.lock, &command, now).deadlocks);
        }
        while swept < BATCH_SIZE
            && let Some(name) = state.table.next_due_lock(now, &mut corrections)
        {
            resolved.extend(state.table.execute(&name, &LockCommand::Sweep, now).deadlocks);
            swept += 1;
        }
        state.add_unreported(resolved);
        let dropped = state.table.drop_idle_locks(now, BATCH_SIZE);
        let cancelled = state.cancel_silent_waits(now, BATCH_SIZE);
        let forgotten = state.evict_requests(now, BATCH_SIZE);
        let is_finished = corrections > 0 && swept.max(dropped).max(cancelled).max(forgotten) < BATCH_SIZE;
        if is_finished && state.last_maintenance.plus_ms(MAINTENANCE_INTERVAL_MS) <= now {
            state.last_maintenance = now;
            maintain(&mut state, now);
        }
        let reported = is_finished.then(|| state.take_unreported());
        if let Err(error) = self.commit(&mut state, now) {
            state.add_unreported(reported.unwrap_or_default());
            return Err(error);
        }
        Ok(reported)
    }
}

/// Searches the waits of one holder for cycles, and drops expired state.
fn maintain(state: &mut State, now: Moment) {
    for _ in 0..MAX_CYCLE_CHECK_CANDIDATES {
        let Some(holder) = state.table.next_waiting_holder(state.last_checked.as_ref()).cloned() else {
            break;
        };
        state.last_checked = Some(holder.clone());
        let last = state.checked_for_cycles.get(holder.agent_id());
        if last.is_none_or(|last| last.plus_ms(CYCLE_CHECK_INTERVAL_MS) <= now) {
            let resolved = state.table.resolve_deadlocks(&holder, now);
            state.add_unreported(resolved);
            state.checked_for_cycles.insert(holder.agent_id().to_owned(), now);
            break;
        }
    }
    if state.last_eviction.plus_ms(EVICTION_INTERVAL_MS) <= now {
        state.last_eviction = now;
        state.table.evict_victim_ages(now);
        state.rates.retain(|_, window| !window.is_expired(now));
        state.checked_for_cycles.retain(|_, last| last.plus_ms(CYCLE_CHECK_INTERVAL_MS) > now);
        state.evict_idle_agents(now);
    }
}

/// At most `limit` locks after the name `after` that the filter may match, by name.
fn candidates<'a>(
    table: &'a LockTable,
    filter: &'a LockFilter,
    prefix: &'a str,
    after: Option<&'a LockName>,
    limit: usize,
) -> Box<dyn Iterator<Item = (&'a LockName, &'a Lock)> + 'a> {
    let kind = if filter.resource_type.is_some() { Some(LockKind::Resource) } else { filter.kind };
    match (&filter.agent, kind) {
        (Some(agent), _) => Box::new(table.locks_of_agent(agent, kind, prefix, after, limit)),
        (None, Some(kind)) => Box::new(table.locks_with_prefix(kind, prefix, after).take(limit)),
        (None, None) => Box::new(table.locks_after(after).take(limit)),
    }
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

    fn peek_locks(&self, locks: Vec<LockName>) -> AsyncResult<'_, Vec<LockView>> {
        Box::pin(async move {
            let (state, now) = self.enter()?;
            Ok(locks.iter().map(|name| LockView::peek(name, state.table.lock(name), now)).collect())
        })
    }

    fn list_locks(
        &self,
        filter: LockFilter,
        after: Option<LockName>,
        limit: usize,
    ) -> AsyncResult<'_, Vec<LockView>> {
        Box::pin(async move {
            let resource_type = filter.resource_type.as_ref();
            let prefix = resource_type.map(|of| format!("{}:{of}:", LockKind::Resource.as_str()));
            let (mut views, mut after) = (Vec::new(), after);
            // Locks that nobody uses are stored for a while; the mutex is released for others on the way past them.
            loop {
                let (state, _) = self.enter()?;
                let prefix = prefix.as_deref().unwrap_or_default();
                let mut examined = 0;
                let mut last = None;
                for (name, lock) in candidates(&state.table, &filter, prefix, after.as_ref(), LIST_BATCH_SIZE)
                {
                    examined += 1;
                    last = Some(name);
                    if views.len() < limit && filter.matches(name, lock) {
                        views.push(LockView::new(name, Some(lock), MAX_LISTED_HOLDERS));
                    }
                }
                if examined < LIST_BATCH_SIZE || views.len() == limit {
                    return Ok(views);
                }
                after = last.cloned();
            }
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
            Ok(LockCounts { held: table.used_count(), waiting: table.wait_count(), agents: agents.len() })
        })
    }

    fn held_counts(&self, agents: Vec<String>) -> AsyncResult<'_, Vec<usize>> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            Ok(agents.iter().map(|agent| state.table.held_count(agent)).collect())
        })
    }

    fn sweep(&self) -> AsyncResult<'_, Vec<Deadlock>> {
        Box::pin(async move {
            loop {
                if let Some(reported) = self.sweep_part()? {
                    return Ok(reported);
                }
                // Other tasks of this thread go on before the next part.
                yield_now().await;
            }
        })
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
        if let Some(mut state) = self.inner.lock_state() {
            state.table.set_deadlock_detection(is_enabled);
        }
    }

    fn now(&self) -> Moment {
        self.inner.now()
    }
}
