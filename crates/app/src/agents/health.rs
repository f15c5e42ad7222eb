//! How agents are: those that need attention first, with the locks that they hold and how their last tasks ended. It never shows
//! a task that the caller may not see.

use std::collections::HashMap;

use ade_domain::agent::AgentStatus;
use ade_store::database::{AgentOutcome, TaskFilter};

use super::{AgentDetails, AgentService};
use crate::{Caller, Error, Result};

/// Outcomes of each agent.
const MAX_OUTCOMES: u32 = 20;
/// Agents that are read at once.
const BATCH: usize = 200;
/// Agents that one request looks at; the next one continues.
const MAX_SCANNED: usize = 2_000;
/// Agents that need attention first.
const ORDER: [AgentStatus; 3] = [AgentStatus::Offline, AgentStatus::Draining, AgentStatus::Active];

/// An agent with its locks and the outcomes of its last tasks, the newest first.
#[derive(Debug, Clone)]
pub struct AgentHealth {
    pub agent: AgentDetails,
    pub held_locks: usize,
    pub outcomes: Vec<AgentOutcome>,
}

/// Which agents to list.
#[derive(Debug, Clone, Default)]
pub struct AgentFilter {
    pub status: Option<AgentStatus>,
    pub sponsor: Option<String>,
    /// Part of the id or of the name, in any case.
    pub text: Option<String>,
}

impl AgentFilter {
    fn matches(&self, agent: &AgentDetails) -> bool {
        let has_text = |part: &str| {
            let part = part.to_lowercase();
            [&agent.view.agent_id, &agent.view.profile.name]
                .iter()
                .any(|text| text.to_lowercase().contains(&part))
        };
        self.sponsor
            .as_deref()
            .is_none_or(|wanted| agent.sponsor_id.as_ref().is_some_and(|is| is.as_str() == wanted))
            && self.text.as_deref().is_none_or(has_text)
    }
}

/// A place in the list: all agents of earlier statuses, and those of this one up to an id, are before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCursor {
    pub status: AgentStatus,
    pub agent_id: Option<String>,
}

/// A part of the list, which may be empty although more follows.
#[derive(Debug, Clone)]
pub struct HealthPage {
    pub agents: Vec<AgentHealth>,
    /// Where the next part begins, if there is one.
    pub next: Option<HealthCursor>,
}

impl AgentService {
    /// How one agent is.
    pub async fn health_of(&self, id: &str, caller: &Caller) -> Result<AgentHealth> {
        let agent = self.get(id, caller).await?;
        let found = self.with_outcomes(vec![agent], caller).await?;
        found.into_iter().next().ok_or_else(|| Error::AgentNotFound(id.to_owned()))
    }

    /// Agents by status, those that need attention first, and by id.
    pub async fn health(
        &self,
        filter: &AgentFilter,
        after: Option<HealthCursor>,
        limit: usize,
        caller: &Caller,
    ) -> Result<HealthPage> {
        let (mut found, mut scanned) = (Vec::new(), 0);
        let mut from = after.unwrap_or(HealthCursor { status: AgentStatus::Offline, agent_id: None });
        let first = from.status;
        let statuses = ORDER.into_iter().skip_while(|status| *status != first);
        for status in statuses.filter(|status| filter.status.is_none_or(|wanted| wanted == *status)) {
            if status != from.status {
                from = HealthCursor { status, agent_id: None };
            }
            loop {
                if scanned >= MAX_SCANNED || found.len() >= limit {
                    let agents = self.with_outcomes(found, caller).await?;
                    return Ok(HealthPage { agents, next: Some(from) });
                }
                let batch = self.list(from.agent_id.clone(), BATCH, caller).await?;
                scanned += batch.len();
                let is_last = batch.len() < BATCH;
                let mut is_whole = true;
                for agent in batch {
                    if found.len() == limit {
                        is_whole = false;
                        break;
                    }
                    from.agent_id = Some(agent.view.agent_id.clone());
                    if agent.view.status == status && filter.matches(&agent) {
                        found.push(agent);
                    }
                }
                if is_last && is_whole {
                    break;
                }
            }
        }
        Ok(HealthPage { agents: self.with_outcomes(found, caller).await?, next: None })
    }

    async fn with_outcomes(&self, agents: Vec<AgentDetails>, caller: &Caller) -> Result<Vec<AgentHealth>> {
        let ids: Vec<&str> = agents.iter().map(|agent| agent.view.agent_id.as_str()).collect();
        let visible_to = caller.user_id().filter(|_| !caller.can_see_all()).cloned();
        let filter =
            TaskFilter { visible_to, authored_only: caller.agent_id.is_some(), ..TaskFilter::default() };
        let mut outcomes: HashMap<String, Vec<AgentOutcome>> = HashMap::new();
        for outcome in self.context.database.agent_outcomes(&ids, &filter, MAX_OUTCOMES).await? {
            outcomes.entry(outcome.agent_id.clone()).or_default().push(outcome);
        }
        let ids = ids.into_iter().map(str::to_owned).collect();
        let held = self.context.coordination.held_counts(ids).await?;
        let health = |(agent, held_locks): (AgentDetails, usize)| {
            let outcomes = outcomes.remove(&agent.view.agent_id).unwrap_or_default();
            AgentHealth { agent, held_locks, outcomes }
        };
        Ok(agents.into_iter().zip(held).map(health).collect())
    }
}
