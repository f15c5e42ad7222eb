//! Agents: registration in the database, liveness in coordination.

mod acting;
mod capacity;
mod health;
mod recent_agents;
mod registration;

use std::collections::BTreeMap;

use ade_domain::agent::{AgentProfile, AgentStatus};
use ade_domain::capability::{ClaimRights, ClaimRightsChange};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::coordination::AgentView;
use ade_store::database::{InboxMessage, StoredAgent};

use crate::{Caller, Context, Error, Result};

pub(crate) use capacity::Capacity;
pub use health::{AgentFilter, AgentHealth, HealthCursor, HealthPage};
use recent_agents::RecentAgents;
#[cfg(test)]
pub(crate) use registration::RightsProposal;

/// The number of concurrent tasks of an agent that sets no limit.
const DEFAULT_MAX_TASKS: u32 = 5;

#[derive(Debug, Clone)]
pub struct AgentService {
    context: Context,
    recent_agents: RecentAgents,
}

/// An agent as the database and coordination know it together.
#[derive(Debug, Clone)]
pub struct AgentDetails {
    /// `None` for agents of the bootstrap token.
    pub sponsor_id: Option<UserId>,
    pub parent_agent_id: Option<String>,
    pub rights: ClaimRights,
    /// Of its registration; `None` for an agent that only coordination knows.
    pub revision: Option<u64>,
    pub view: AgentView,
}

/// What a request changes about an agent; what is absent stays as it is.
#[derive(Debug, Clone, Default)]
pub struct AgentChange {
    /// The new profile, made from the present one. Its capabilities are ignored: `rights` has them.
    pub profile: Option<AgentProfile>,
    pub max_tasks: Option<u32>,
    /// Whether it takes no new tasks.
    pub draining: Option<bool>,
    /// `Some(None)` removes the parent.
    pub parent_agent_id: Option<Option<String>>,
    pub rights: ClaimRightsChange,
}

impl AgentService {
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self { context, recent_agents: RecentAgents::default() }
    }

    /// The agent as coordination knows it.
    async fn live(&self, id: &str) -> Result<Option<AgentView>> {
        Ok(self.context.coordination.agent(id.to_owned()).await?)
    }

    async fn load(&self, id: &str) -> Result<AgentDetails> {
        let (stored, live) = (self.context.database.agent(id).await?, self.live(id).await?);
        merge(stored, live).ok_or_else(|| Error::AgentNotFound(id.to_owned()))
    }

    pub async fn get(&self, id: &str, caller: &Caller) -> Result<AgentDetails> {
        caller.require_scope(Scope::Read)?;
        self.load(id).await
    }

    /// Agents by id, starting after `after`: those in the database, and those that only coordination knows.
    pub async fn list(
        &self,
        after: Option<String>,
        limit: usize,
        caller: &Caller,
    ) -> Result<Vec<AgentDetails>> {
        caller.require_scope(Scope::Read)?;
        let stored =
            self.context.database.agents(after.as_deref(), u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let live = self.context.coordination.agents(after, limit).await?;
        let mut agents: BTreeMap<String, (Option<StoredAgent>, Option<AgentView>)> = BTreeMap::new();
        for agent in stored {
            let (stored, _) = agents.entry(agent.agent_id.clone()).or_default();
            *stored = Some(agent);
        }
        for view in live {
            let (_, live) = agents.entry(view.agent_id.clone()).or_default();
            *live = Some(view);
        }
        let merged = agents.into_values().filter_map(|(stored, live)| merge(stored, live));
        Ok(merged.take(limit).collect())
    }

    pub async fn heartbeat(&self, id: &str, caller: &Caller) -> Result<AgentDetails> {
        caller.require_scope(Scope::Lock)?;
        self.load_for(id, caller).await?;
        self.context.coordination.record_heartbeat(id.to_owned()).await?;
        self.load(id).await
    }

    /// The messages to an agent, in order: for the agent, its sponsor, or an administrator.
    pub async fn inbox(
        &self,
        id: &str,
        after: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<InboxMessage>> {
        caller.require_scope(Scope::Read)?;
        self.load_for(id, caller).await?;
        Ok(self.context.database.inbox(id, after, limit).await?)
    }
}

fn profile(stored: StoredAgent) -> AgentProfile {
    AgentProfile {
        name: stored.name,
        model: stored.model,
        version: stored.version,
        capabilities: stored.rights.capabilities(),
        config: serde_json::Value::Object(stored.config).to_string(),
    }
}

/// An agent that is only in the database is offline.
fn merge(stored: Option<StoredAgent>, live: Option<AgentView>) -> Option<AgentDetails> {
    let sponsor_id = stored.as_ref().and_then(|stored| stored.sponsor_id.clone());
    let parent_agent_id = stored.as_ref().and_then(|stored| stored.parent_agent_id.clone());
    let rights = stored.as_ref().map(|stored| stored.rights.clone()).unwrap_or_default();
    let revision = stored.as_ref().map(|stored| stored.revision);
    let view = match (live, stored) {
        // What coordination knows of the capabilities may be outdated.
        (Some(mut view), _) => {
            view.profile.capabilities = rights.capabilities();
            view
        }
        (None, Some(stored)) => AgentView {
            agent_id: stored.agent_id.clone(),
            max_tasks: stored.max_tasks.unwrap_or(DEFAULT_MAX_TASKS),
            active_tasks: 0,
            queued_tasks: 0,
            status: AgentStatus::Offline,
            last_heartbeat: stored.last_seen_at,
            profile: profile(stored),
        },
        (None, None) => return None,
    };
    Some(AgentDetails { sponsor_id, parent_agent_id, rights, revision, view })
}
