//! How much agents do at once, in this process: claims are kept with the agent.
//!
//! Claims end by themselves and are renewed while somebody works, so they could be forgotten with the process. They are
//! written down all the same: an agent that is full or draining when the server starts anew goes on with what it has,
//! as it does on Redis. What merely found no room is not written down, because it asks again.

use ade_domain::Moment;
use ade_domain::agent::NoCapacity;

use super::EmbeddedCoordination;
use super::state::Other;
use crate::coordination::{Capacity, CapacityClaim, Reply};

impl Capacity for EmbeddedCoordination {
    fn claim(&self, agent_id: String, task_id: String, until: Moment) -> Reply<'_, CapacityClaim> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if !state.agents.contains_key(&agent_id) {
                if state.named >= self.inner.options.max_named_agents {
                    return Ok(CapacityClaim::Unknown);
                }
                state.name_agent(agent_id.clone(), now);
            }
            let claimed = match state.agents.get_mut(&agent_id).map(|agent| agent.claim(&task_id, until, now))
            {
                Some(Ok(())) => {
                    state.make(Other::Claimed(agent_id, task_id, until));
                    CapacityClaim::Yes
                }
                Some(Err(NoCapacity::Full { .. })) => CapacityClaim::Full,
                Some(Err(NoCapacity::Draining)) => CapacityClaim::Draining,
                None => CapacityClaim::Unknown,
            };
            self.commit(&mut state, now)?;
            Ok(claimed)
        })
    }

    fn unclaim(&self, agent_id: String, task_id: String) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.agents.get_mut(&agent_id).is_some_and(|agent| agent.give_back(&task_id)) {
                state.make(Other::Unclaimed(agent_id, task_id));
            }
            self.commit(&mut state, now)
        })
    }
}
