//! Locks in this process.

use std::collections::BTreeSet;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{
    Answer, Deadlock, End, Holder, Lock, LockCommand, LockLimits, LockName, RequestKey, Table,
};
use tokio::sync::broadcast;

use super::EmbeddedCoordination;
use super::state::State;
use crate::coordination::{
    CoordinationError, Counts, Filter, LockEvent, LockView, Locks, Reply, Subscription, WaitView,
};

/// Commands that one call carries out before others have their turn.
const BATCH: usize = 100;
/// Holders and waiters of each lock in a list.
const SHOWN_IN_LIST: usize = 20;
/// How often agents that went silent and left-over cycles are looked for.
const HOUSEKEEPING_MS: u64 = 1_000;
/// How often an agent's waits are searched for cycles that nobody closed by queueing.
const DEADLOCK_CHECK_MS: u64 = 30_000;
/// Waits that one round of housekeeping searches: a cycle is found when it is closed, this is for what nobody thought of.
const CHECKED_PER_ROUND: usize = 1;
/// How often what is over is forgotten.
const TIDY_MS: u64 = 60_000;

impl EmbeddedCoordination {
    fn run(&self, commands: &[(LockName, LockCommand)]) -> Result<Vec<Answer>, CoordinationError> {
        let mut answers = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH) {
            let (mut state, now) = self.enter()?;
            let State { table, changes, .. } = &mut *state;
            answers.extend(batch.iter().map(|(name, command)| table.command(name, command, now, changes)));
            if let Err(error) = self.commit(&mut state, now) {
                // Nobody gets these answers, but the cycles were ended: the next sweep tells of them.
                state.owe(answers.drain(..).flat_map(|answer| answer.deadlocks).collect());
                return Err(error);
            }
        }
        Ok(answers)
    }

    fn do_sweep(&self) -> Result<Vec<Deadlock>, CoordinationError> {
        loop {
            let (mut state, now) = self.enter()?;
            let State { table, changes, .. } = &mut *state;
            let (mut done, mut ended) = (0, Vec::new());
            while done < BATCH
                && let Some(name) = table.first_due(now)
            {
                ended.extend(table.command(&name, &LockCommand::Sweep, now, changes).deadlocks);
                done += 1;
            }
            state.owe(ended);
            let finished = done < BATCH;
            if finished && state.housekept.plus_ms(HOUSEKEEPING_MS) <= now {
                state.housekept = now;
                keep_house(&mut state, now);
            }
            let told = if finished { state.settle() } else { Vec::new() };
            if let Err(error) = self.commit(&mut state, now) {
                state.owe(told);
                return Err(error);
            }
            if finished {
                return Ok(told);
            }
        }
    }
}

/// Waits of agents that went silent are cancelled; a few waits are searched for cycles; what is over is forgotten.
fn keep_house(state: &mut State, now: Moment) {
    for (name, holder, request) in silent_waits(&state.table, state, now) {
        let command = LockCommand::Cancel { holder, request, why: End::AgentOffline, begun: false };
        let ended = state.table.command(&name, &command, now, &mut state.changes).deadlocks;
        state.owe(ended);
    }
    let is_due = |holder: &Holder| {
        state.checked.get(holder.agent_id()).is_none_or(|last| last.plus_ms(DEADLOCK_CHECK_MS) <= now)
    };
    let waiting = state.table.all_waiting().map(|(holder, _)| holder);
    let due: Vec<Holder> = waiting.filter(|holder| is_due(holder)).take(CHECKED_PER_ROUND).cloned().collect();
    for holder in due {
        let ended = state.table.end_deadlocks(&holder, now, &mut state.changes);
        state.owe(ended);
        state.checked.insert(holder.agent_id().to_owned(), now);
    }
    if state.tidied.plus_ms(TIDY_MS) <= now {
        state.tidied = now;
        state.table.forget(now);
        state.rates.retain(|_, window| !window.is_over(now));
        state.checked.retain(|_, last| last.plus_ms(DEADLOCK_CHECK_MS) > now);
        state.forget_idle_agents(now);
    }
    state.forget_requests(now);
}

/// Tickets of agents that were not heard of. An answer that is held open counts as alive.
fn silent_waits(table: &Table, state: &State, now: Moment) -> Vec<(LockName, Holder, RequestKey)> {
    let is_silent = |holder: &Holder| {
        let heard = state.agents.get(holder.agent_id()).map(|agent| agent.last_heartbeat);
        heard.is_none_or(|heard| heard.plus_ms(OFFLINE_AFTER_MS) <= now)
    };
    let ticket = |(holder, name): (&Holder, &LockName)| {
        let waiter = table.lock(name)?.wait_of(holder)?;
        waiter.served_by.is_none().then(|| (name.clone(), holder.clone(), waiter.request))
    };
    table.all_waiting().filter(|(holder, _)| is_silent(holder)).filter_map(ticket).collect()
}

impl Locks for EmbeddedCoordination {
    fn commands(&self, commands: Vec<(LockName, LockCommand)>) -> Reply<'_, Vec<Answer>> {
        Box::pin(async move { self.run(&commands) })
    }

    fn look(&self, lock: LockName) -> Reply<'_, LockView> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let State { table, changes, .. } = &mut *state;
            if table.lock(&lock).is_some() {
                let ended = table.command(&lock, &LockCommand::Tick, now, changes).deadlocks;
                state.owe(ended);
            }
            let view = LockView::of(&lock, state.table.lock(&lock), usize::MAX);
            self.commit(&mut state, now)?;
            Ok(view)
        })
    }

    fn list(&self, filter: Filter, after: Option<LockName>, limit: usize) -> Reply<'_, Vec<LockView>> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let table = &state.table;
            let listed = |(name, lock): (&LockName, &Lock)| LockView::of(name, Some(lock), SHOWN_IN_LIST);
            // By agent there is an index; by anything else the names are walked in order.
            let views = match &filter.agent {
                Some(agent) => {
                    let of_agent = |(holder, name): (&Holder, &LockName)| {
                        (holder.agent_id() == agent && after.as_ref().is_none_or(|after| name > after))
                            .then(|| name.clone())
                    };
                    let held = table.held_by_agent(agent).filter_map(of_agent);
                    let names: BTreeSet<LockName> =
                        held.chain(table.waited_for_by_agent(agent).filter_map(of_agent)).collect();
                    let found = names.iter().filter_map(|name| Some((name, table.lock(name)?)));
                    found.filter(|(name, lock)| filter.admits(name, lock)).take(limit).map(listed).collect()
                }
                None => {
                    let found = table.locks_after(after.as_ref());
                    found.filter(|(name, lock)| filter.admits(name, lock)).take(limit).map(listed).collect()
                }
            };
            Ok(views)
        })
    }

    fn waits(&self, limit: usize) -> Reply<'_, Vec<WaitView>> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let table = &state.table;
            let view = |(holder, name): (&Holder, &LockName)| {
                let lock = table.lock(name)?;
                let (waiter, ahead) = lock.wait_and_ahead(holder)?;
                Some(WaitView {
                    holder: holder.clone(),
                    lock: name.clone(),
                    mode: waiter.mode,
                    request: waiter.request,
                    holders: lock
                        .holds()
                        .iter()
                        .take(SHOWN_IN_LIST)
                        .map(|hold| hold.holder.clone())
                        .collect(),
                    ahead: ahead
                        .into_iter()
                        .take(SHOWN_IN_LIST)
                        .map(|waiter| waiter.holder.clone())
                        .collect(),
                })
            };
            Ok(table.all_waiting().filter_map(view).take(limit).collect())
        })
    }

    fn counts(&self) -> Reply<'_, Counts> {
        Box::pin(async move {
            let (state, _) = self.enter()?;
            let State { table, agents, .. } = &*state;
            Ok(Counts { held: table.held_count(), waiting: table.waiting_count(), agents: agents.len() })
        })
    }

    fn sweep(&self) -> Reply<'_, Vec<Deadlock>> {
        Box::pin(async move { self.do_sweep() })
    }

    fn watch(&self, request: RequestKey) -> Subscription {
        self.inner.watchers.watch(request)
    }

    fn events(&self) -> broadcast::Receiver<Arc<LockEvent>> {
        self.inner.events.subscribe()
    }

    fn rules(&self) -> &LockLimits {
        &self.inner.options.rules
    }

    fn now(&self) -> Moment {
        self.inner.now()
    }
}
