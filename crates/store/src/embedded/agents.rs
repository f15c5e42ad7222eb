//! Agents, in this process: registrations, heartbeats and acquisition rates.

use std::ops::Bound::{Excluded, Unbounded};

use ade_domain::Moment;
use ade_domain::agent::{Agent, AgentProfile};

use super::EmbeddedCoordination;
use super::state::{State, StateChange};
use crate::coordination::{AgentUpdate, AgentView, Agents, AsyncResult};

/// How often the heartbeat of an agent is journaled; in between it is kept in memory only.
const HEARTBEAT_JOURNAL_INTERVAL_US: u64 = 5_000_000;
/// Agents that were registered automatically are removed when they are idle for so long.
const IDLE_TIMEOUT_MS: u64 = 86_400_000;

impl Agents for EmbeddedCoordination {
    fn put_agent(&self, id: String, update: AgentUpdate, create: bool) -> AsyncResult<'_, Option<AgentView>> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let mut agent = match (state.agents.get(&id), create) {
                (Some(agent), true) if !agent.is_auto_registered => return Ok(None),
                (None, false) => return Ok(None),
                (Some(agent), _) => agent.clone(),
                (None, true) => Agent::new(default_profile(&id), false, now),
            };
            agent.is_auto_registered = false;
            if let Some(profile) = update.profile {
                agent.profile = profile;
            }
            agent.max_tasks = update.max_tasks.unwrap_or(agent.max_tasks);
            agent.draining = update.draining.unwrap_or(agent.draining);
            let view = AgentView::new(&id, &agent, now);
            state.change(StateChange::Agent(id, agent));
            self.commit(&mut state, now)?;
            Ok(Some(view))
        })
    }

    fn agent(&self, id: String) -> AsyncResult<'_, Option<AgentView>> {
        Box::pin(async move {
            let (state, now) = self.enter()?;
            Ok(state.agents.get(&id).map(|agent| AgentView::new(&id, agent, now)))
        })
    }

    fn agents(&self, after: Option<String>, limit: usize) -> AsyncResult<'_, Vec<AgentView>> {
        Box::pin(async move {
            let (state, now) = self.enter()?;
            let from = after.map_or(Unbounded, Excluded);
            let found = state.agents.range((from, Unbounded)).take(limit);
            Ok(found.map(|(id, agent)| AgentView::new(id, agent, now)).collect())
        })
    }

    fn remove_agent(&self, id: String) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let is_known = state.agents.contains_key(&id);
            if is_known {
                state.change(StateChange::AgentRemoved(id));
                self.commit(&mut state, now)?;
            }
            Ok(is_known)
        })
    }

    fn record_heartbeat(&self, id: String) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let auto_registered = state.auto_registered;
            match state.agents.get_mut(&id) {
                Some(agent) => {
                    let period = |moment: Moment| moment.micros() / HEARTBEAT_JOURNAL_INTERVAL_US;
                    let is_journaled = period(agent.last_heartbeat) == period(now);
                    agent.last_heartbeat = now;
                    if !is_journaled {
                        state.change(StateChange::AgentHeartbeat(id, now));
                    }
                }
                None if auto_registered >= self.inner.options.max_auto_registered_agents => return Ok(false),
                None => state.auto_register(id, now),
            }
            self.commit(&mut state, now)?;
            Ok(true)
        })
    }

    fn admit_acquisition(&self, id: String, locks: u32) -> AsyncResult<'_, Result<(), Moment>> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let limit = self.inner.options.limits.acquisitions_per_minute;
            // More locks than the limit count as many as it allows: such a request must be possible, too, unless none is allowed.
            let weight = locks.min(limit).max(1);
            let admitted = state.rates.entry(id).or_default().admit(weight, limit, now);
            Ok(admitted.map(drop))
        })
    }
}

fn default_profile(id: &str) -> AgentProfile {
    AgentProfile { name: id.to_owned(), ..AgentProfile::default() }
}

impl State {
    /// Registers an agent that is known by its name only.
    pub(super) fn auto_register(&mut self, id: String, now: Moment) {
        let agent = Agent::new(default_profile(&id), true, now);
        self.change(StateChange::Agent(id, agent));
    }

    /// Removes idle agents that were registered automatically.
    pub(super) fn evict_idle_agents(&mut self, now: Moment) {
        let is_idle =
            |agent: &Agent| agent.is_auto_registered && agent.last_heartbeat.plus_ms(IDLE_TIMEOUT_MS) <= now;
        let idle: Vec<String> =
            self.agents.iter().filter(|(_, agent)| is_idle(agent)).map(|(id, _)| id.clone()).collect();
        for id in idle {
            self.change(StateChange::AgentRemoved(id));
        }
    }
}
