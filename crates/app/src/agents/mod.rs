//! Agents: registration in the database, liveness in coordination.

mod acting;
mod capacity;
mod registration;

use std::collections::BTreeMap;
use std::sync::Arc;

use ade_domain::Clock;
use ade_domain::agent::{AgentProfile, AgentStatus};
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::coordination::AgentView;
use ade_store::database::{InboxMessage, StoredAgent};
use ade_store::{Coordination, CoordinationError, Database, DatabaseError};

use crate::{Caller, Error};

pub(crate) use capacity::Capacity;

/// The number of concurrent tasks of an agent that sets no limit.
const DEFAULT_MAX_TASKS: u32 = 5;

#[derive(Clone)]
pub struct AgentService {
    coordination: Arc<dyn Coordination>,
    database: Database,
    clock: Arc<dyn Clock>,
}

/// An agent as the database and coordination know it together.
#[derive(Debug, Clone)]
pub struct AgentDetails {
    /// `None` for agents of the bootstrap token.
    pub sponsor_id: Option<UserId>,
    pub view: AgentView,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("agent {0} not found")]
    NotFound(String),
    #[error("agent {0} already exists; change it with PATCH /api/v1/agents/{0}")]
    Exists(String),
    #[error("agent {0} still holds or waits for locks; release or break them first")]
    Busy(String),
    #[error(transparent)]
    Refused(#[from] Error),
    #[error(transparent)]
    Unavailable(#[from] CoordinationError),
}

impl From<DatabaseError> for AgentError {
    fn from(error: DatabaseError) -> Self {
        Self::Refused(error.into())
    }
}

fn forbidden(detail: impl Into<String>) -> Error {
    Error::Forbidden(detail.into())
}

impl AgentService {
    #[must_use]
    pub fn new(coordination: Arc<dyn Coordination>, database: Database, clock: Arc<dyn Clock>) -> Self {
        Self { coordination, database, clock }
    }

    async fn load(&self, id: &str) -> Result<AgentDetails, AgentError> {
        let (stored, live) = (self.database.agent(id).await?, self.coordination.agent(id.to_owned()).await?);
        merge(stored, live).ok_or_else(|| AgentError::NotFound(id.to_owned()))
    }

    pub async fn get(&self, id: &str, caller: &Caller) -> Result<AgentDetails, AgentError> {
        caller.require_scope(Scope::Read)?;
        self.load(id).await
    }

    /// Agents by id, starting after `after`: those in the database, and those that only coordination knows.
    pub async fn list(
        &self,
        after: Option<String>,
        limit: usize,
        caller: &Caller,
    ) -> Result<Vec<AgentDetails>, AgentError> {
        caller.require_scope(Scope::Read)?;
        let stored = self.database.agents(after.as_deref(), u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let live = self.coordination.agents(after, limit).await?;
        let mut agents: BTreeMap<String, (Option<StoredAgent>, Option<AgentView>)> = BTreeMap::new();
        for agent in stored {
            let id = agent.agent_id.clone();
            agents.entry(id).or_default().0 = Some(agent);
        }
        for view in live {
            let id = view.agent_id.clone();
            agents.entry(id).or_default().1 = Some(view);
        }
        let merged = agents.into_values().filter_map(|(stored, live)| merge(stored, live));
        Ok(merged.take(limit).collect())
    }

    pub async fn heartbeat(&self, id: &str, caller: &Caller) -> Result<AgentDetails, AgentError> {
        caller.require_scope(Scope::Lock)?;
        let agent = self.load(id).await?;
        self.require_permission(&agent, caller)?;
        self.coordination.record_heartbeat(id.to_owned()).await?;
        self.load(id).await
    }

    /// The messages to an agent, in order: for the agent, its sponsor, or an administrator.
    pub async fn inbox(
        &self,
        id: &str,
        after: Option<&str>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<InboxMessage>, AgentError> {
        caller.require_scope(Scope::Read)?;
        let agent = self.load(id).await?;
        self.require_permission(&agent, caller)?;
        Ok(self.database.inbox(id, after, limit).await?)
    }
}

fn profile(stored: StoredAgent) -> AgentProfile {
    AgentProfile {
        name: stored.name,
        model: stored.model,
        version: stored.version,
        capabilities: stored.capabilities,
        config: serde_json::Value::Object(stored.config).to_string(),
    }
}

/// An agent that is only in the database is offline.
fn merge(stored: Option<StoredAgent>, live: Option<AgentView>) -> Option<AgentDetails> {
    let sponsor_id = stored.as_ref().and_then(|stored| stored.sponsor_id.clone());
    let view = match (live, stored) {
        (Some(view), _) => view,
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
    Some(AgentDetails { sponsor_id, view })
}

impl std::fmt::Debug for AgentService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentService").finish_non_exhaustive()
    }
}
