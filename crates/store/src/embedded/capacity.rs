//! The capacity of agents, in this process: claims are part of the agent.
//!
//! Claims expire and are renewed by the worker of the task, so they could be lost with the process. They are journaled nevertheless:
//! after a restart an agent that is full or draining continues with what it has, as it does on Redis. Queued tasks are not journaled,
//! because their callers retry.

use ade_domain::Moment;
use ade_domain::agent::CapacityError;

use super::EmbeddedCoordination;
use super::state::StateChange;
use crate::coordination::{Capacity, CapacityClaim, CoordinationFuture};

impl Capacity for EmbeddedCoordination {
    fn claim_capacity(
        &self,
        agent_id: String,
        task_id: String,
        until: Moment,
    ) -> CoordinationFuture<'_, CapacityClaim> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if !state.agents.contains_key(&agent_id) {
                if state.auto_registered >= self.inner.options.max_auto_registered_agents {
                    return Ok(CapacityClaim::Unknown);
                }
                state.auto_register(agent_id.clone(), now);
            }
            let agent = state.agents.get_mut(&agent_id);
            let claim = match agent.map(|agent| agent.claim(&task_id, until, now)) {
                Some(Ok(())) => {
                    state.change(StateChange::TaskClaimed(agent_id, task_id, until));
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

    fn release_capacity(&self, agent_id: String, task_id: String) -> CoordinationFuture<'_, ()> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.agents.get_mut(&agent_id).is_some_and(|agent| agent.release(&task_id)) {
                state.change(StateChange::TaskReleased(agent_id, task_id));
            }
            self.commit(&mut state, now)
        })
    }
}
