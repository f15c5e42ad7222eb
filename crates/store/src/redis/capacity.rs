//! How much agents do at once, on Redis: claims are fields of an agent's capacity, with the moment at which each ends. A claim is
//! one function call, so that however many servers ask, an agent never has more than it may.

use ade_domain::Moment;
use ade_domain::agent::DEFAULT_MAX_TASKS;

use super::encoding::Foreign;
use super::{Inner, RedisCoordination, foreign, step};
use crate::coordination::{Capacity, CapacityClaim, CoordinationError, Reply};

/// How often an agent may be removed between being named and claiming, before that is an error.
const ATTEMPTS: usize = 3;

impl Inner {
    /// One claim; `None` if nobody knows the agent.
    async fn claim_task(
        &self,
        agent_id: &str,
        task_id: &str,
        until: Moment,
    ) -> Result<Option<CapacityClaim>, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        // Up to the next millisecond: a claim never ends earlier than was asked for.
        let ends = until.micros().div_ceil(1000).to_string();
        let args = [task_id.to_owned(), ends, DEFAULT_MAX_TASKS.to_string()];
        let value = self.call_agent(&self.scripts.claim_task, &keys, &args).await?;
        let [_, word] = step::list(&value).map_err(foreign)? else {
            return Err(foreign(Foreign::new("no answer", format!("{value:?}"))));
        };
        match step::text(word).map_err(foreign)? {
            "yes" => Ok(Some(CapacityClaim::Yes)),
            "full" => Ok(Some(CapacityClaim::Full)),
            "draining" => Ok(Some(CapacityClaim::Draining)),
            "unknown" => Ok(None),
            other => Err(foreign(Foreign::new("no answer", other))),
        }
    }
}

impl Capacity for RedisCoordination {
    fn claim(&self, agent_id: String, task_id: String, until: Moment) -> Reply<'_, CapacityClaim> {
        Box::pin(async move {
            for _ in 0..ATTEMPTS {
                if let Some(claimed) = self.inner.claim_task(&agent_id, &task_id, until).await? {
                    return Ok(claimed);
                }
                if !self.inner.hear(&agent_id).await? {
                    return Ok(CapacityClaim::Unknown);
                }
            }
            Err(CoordinationError(format!("the agent {agent_id} is removed as often as it is named")))
        })
    }

    fn unclaim(&self, agent_id: String, task_id: String) -> Reply<'_, ()> {
        Box::pin(async move {
            let keys = self.inner.agent_keys(&agent_id)?;
            self.inner.call_agent(&self.inner.scripts.unclaim_task, &keys, &[task_id]).await.map(drop)
        })
    }
}
