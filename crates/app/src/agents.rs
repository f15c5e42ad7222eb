//! Agents: registered by their owners, or known by the name they gave.

use std::sync::Arc;

use ade_domain::agent::Profile;
use ade_store::coordination::{AgentUpdate, AgentView};
use ade_store::{Coordination, Unavailable};

/// Use cases around agents.
#[derive(Clone)]
pub struct AgentService {
    coordination: Arc<dyn Coordination>,
}

/// Why an agent cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nobody is known by this id.
    #[error("agent {0} is not known")]
    Unknown(String),
    /// The id is taken.
    #[error("agent {0} exists already; change it with PATCH /api/v1/agents/{0}")]
    Taken(String),
    /// It holds locks, or waits for some.
    #[error("agent {0} still holds or waits for locks; release or break them first")]
    Busy(String),
    /// Coordination does not answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl AgentService {
    /// Agents of a backend.
    #[must_use]
    pub fn new(coordination: Arc<dyn Coordination>) -> Self {
        Self { coordination }
    }

    /// Registers an agent under a new id.
    ///
    /// # Errors
    /// The id is taken.
    pub async fn register(
        &self,
        id: &str,
        profile: Profile,
        max_tasks: Option<u32>,
    ) -> Result<AgentView, AgentError> {
        let update = AgentUpdate { profile: Some(profile), max_tasks, draining: None };
        let made = self.coordination.put(id.to_owned(), update, true).await?;
        made.ok_or_else(|| AgentError::Taken(id.to_owned()))
    }

    /// Changes what is known of an agent.
    ///
    /// # Errors
    /// It is not known.
    pub async fn update(&self, id: &str, update: AgentUpdate) -> Result<AgentView, AgentError> {
        let changed = self.coordination.put(id.to_owned(), update, false).await?;
        changed.ok_or_else(|| AgentError::Unknown(id.to_owned()))
    }

    /// One agent.
    ///
    /// # Errors
    /// It is not known.
    pub async fn get(&self, id: &str) -> Result<AgentView, AgentError> {
        let found = self.coordination.agent(id.to_owned()).await?;
        found.ok_or_else(|| AgentError::Unknown(id.to_owned()))
    }

    /// Agents by id.
    ///
    /// # Errors
    /// Coordination does not answer.
    pub async fn list(&self, after: Option<String>, limit: usize) -> Result<Vec<AgentView>, AgentError> {
        Ok(self.coordination.agents(after, limit).await?)
    }

    /// Heartbeat of an agent.
    ///
    /// # Errors
    /// It is not known.
    pub async fn heartbeat(&self, id: &str) -> Result<AgentView, AgentError> {
        self.get(id).await?;
        self.coordination.heard(id.to_owned()).await?;
        self.get(id).await
    }

    /// Removes an agent that holds nothing.
    ///
    /// # Errors
    /// It is not known, or busy.
    pub async fn remove(&self, id: &str) -> Result<(), AgentError> {
        self.get(id).await?;
        let filter = ade_store::coordination::Filter { agent: Some(id.to_owned()), ..Default::default() };
        if !self.coordination.list(filter, None, 1).await?.is_empty() {
            return Err(AgentError::Busy(id.to_owned()));
        }
        self.coordination.remove(id.to_owned()).await?;
        Ok(())
    }
}

impl std::fmt::Debug for AgentService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentService").finish_non_exhaustive()
    }
}
