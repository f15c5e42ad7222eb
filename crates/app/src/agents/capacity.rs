//! Whether an agent can take another task. The limits are stored in the database; coordination counts the tasks.

use ade_domain::agent::AgentStatus;
use ade_store::coordination::{AgentUpdate, AgentView};
use ade_store::database::StoredAgent;

use super::{AgentService, profile};
use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    Free,
    /// The agent has reached its limit of concurrent tasks.
    Full,
    /// The agent accepts no new tasks.
    Draining,
}

impl AgentService {
    /// The capacity of an agent, without claiming any. Limits that coordination has forgotten are restored first.
    pub(crate) async fn capacity(&self, id: &str) -> Result<Capacity> {
        let live = self.live(id).await?;
        let stored = self.context.database.agent(id).await?;
        let is_draining = stored.as_ref().is_some_and(|stored| stored.draining);
        let live = match stored.as_ref().and_then(|stored| forgotten(stored, live.as_ref())) {
            Some(update) => {
                let is_new = live.is_none();
                self.context.coordination.put_agent(id.to_owned(), update, is_new).await?.or(live)
            }
            None => live,
        };
        Ok(match live {
            _ if is_draining => Capacity::Draining,
            Some(live) if live.status == AgentStatus::Draining => Capacity::Draining,
            Some(live) if live.active_tasks >= live.max_tasks as usize => Capacity::Full,
            _ => Capacity::Free,
        })
    }
}

/// What the database knows of an agent and coordination does not, if anything.
fn forgotten(stored: &StoredAgent, live: Option<&AgentView>) -> Option<AgentUpdate> {
    let max_tasks = stored.max_tasks.filter(|max| live.is_none_or(|live| live.max_tasks != *max));
    let draining = stored.draining && live.is_none_or(|live| live.status != AgentStatus::Draining);
    let profile = live.is_none().then(|| profile(stored.clone()));
    let is_known = profile.is_none() && max_tasks.is_none() && !draining;
    (!is_known).then(|| AgentUpdate { profile, max_tasks, draining: draining.then_some(true) })
}
