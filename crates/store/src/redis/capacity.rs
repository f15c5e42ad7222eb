//! Capacity of agents on Redis: claims are fields of an agent's capacity hash, each with its expiry. A claim is one
//! script call, so concurrent servers never exceed the capacity of an agent.

use ade_domain::Moment;
use ade_domain::agent::DEFAULT_MAX_TASKS;

use super::encoding::CorruptValue;
use super::query::UnixMicros;
use super::{Inner, RedisCoordination, Result};
use crate::coordination::{AsyncResult, Capacity, CapacityClaim, CoordinationError};

/// Attempts if the agent is removed between registration and claim.
const MAX_ATTEMPTS: usize = 3;

impl Inner {
    /// Returns `None` if the agent is unknown.
    async fn claim_task(
        &self,
        agent_id: &str,
        task_id: &str,
        until: Moment,
    ) -> Result<Option<CapacityClaim>> {
        // Rounded up, so that a claim never ends early.
        let expires = until.micros().div_ceil(1000).to_string();
        let args = [task_id, &expires, &DEFAULT_MAX_TASKS.to_string()];
        let (UnixMicros(now), outcome): (_, String) =
            self.call_agent(&self.scripts.claim_task, agent_id, &args).await?;
        self.clock.observe(now);
        match outcome.as_str() {
            "claimed" => Ok(Some(CapacityClaim::Claimed)),
            "full" => Ok(Some(CapacityClaim::Full)),
            "draining" => Ok(Some(CapacityClaim::Draining)),
            "unknown" => Ok(None),
            other => Err(CorruptValue::new("a capacity claim", other).into()),
        }
    }
}

impl Capacity for RedisCoordination {
    fn claim_capacity(&self, agent: String, task: String, until: Moment) -> AsyncResult<'_, CapacityClaim> {
        Box::pin(async move {
            for _ in 0..MAX_ATTEMPTS {
                if let Some(claim) = self.inner.claim_task(&agent, &task, until).await? {
                    return Ok(claim);
                }
                if !self.inner.record_heartbeat(&agent).await? {
                    return Ok(CapacityClaim::Unknown);
                }
            }
            Err(CoordinationError(format!(
                "agent {agent}: removed while it claimed a task, {MAX_ATTEMPTS} times. Try again."
            )))
        })
    }

    fn release_capacity(&self, agent: String, task: String) -> AsyncResult<'_, ()> {
        Box::pin(
            async move { self.inner.call_agent(&self.inner.scripts.release_task, &agent, &[&task]).await },
        )
    }
}
