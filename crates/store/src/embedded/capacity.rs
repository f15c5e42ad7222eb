//! The capacity of agents, in this process: claims are part of the agent.
//!
//! Claims expire and are renewed by the worker of the task, so they could be lost with the process. They are journaled nevertheless:
//! after a restart an agent that is full or draining continues with what it has, as it does on Redis. Queued tasks are not journaled,
//! because their callers retry.

use ade_domain::Moment;
use ade_domain::agent::CapacityError;

use super::EmbeddedCoordination;
use super::state::StateChange;
use crate::coordination::{AsyncResult, Capacity, CapacityClaim};

impl Capacity for EmbeddedCoordination {
    fn claim_capacity(&self, agent: String, task: String, until: Moment) -> AsyncResult<'_, CapacityClaim> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if !state.agents.contains_key(&agent) {
                if state.auto_registered >= self.inner.options.max_auto_registered_agents {
                    return Ok(CapacityClaim::Unknown);
                }
                state.auto_register(agent.clone(), now);
            }
            let known = state.agents.get_mut(&agent);
            let claim = match known.map(|agent| agent.claim(&task, until, now)) {
                Some(Ok(())) => {
                    state.change(StateChange::TaskClaimed(agent, task, until));
                    CapacityClaim::Claimed
                }
                Some(Err(CapacityError::Full { .. })) => CapacityClaim::Full,
                Some(Err(CapacityError::Draining)) => CapacityClaim::Draining,
                None => CapacityClaim::Unknown,
            };
            self.commit(&mut state, now)?;
            Ok(claim)
        })
    }

    fn release_capacity(&self, agent: String, task: String) -> AsyncResult<'_, ()> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.agents.get_mut(&agent).is_some_and(|agent| agent.release(&task)) {
                state.change(StateChange::TaskReleased(agent, task));
            }
            self.commit(&mut state, now)
        })
    }
}
