//! Which tasks an agent may claim. `domain` decides by the agent's rights and the author; this module loads both.
//!
//! A queue may hold any number of tasks that one agent may not claim. They never keep it from those that it may.

use std::collections::BTreeSet;

use ade_domain::capability::Claimant;
use ade_domain::people::UserId;
use ade_domain::task::{AgentWork, Config, Task, TaskState};
use ade_store::database::{ReadyTask, StoredAgent};

use super::{RulesSnapshot, TaskService};
use crate::{Caller, Result};

/// Ready tasks that are read at once.
const PAGE_SIZE: u32 = 64;
/// Authors of ready tasks whom the agent does not serve, before a search ends without a result.
const MAX_EXCLUDED_AUTHORS: usize = 1_000;

/// An agent that looks for work.
#[derive(Debug, Clone)]
pub(crate) struct AgentIdentity {
    agent_id: String,
    /// `None` for a person, and for an agent of the bootstrap token that nobody registered.
    registered: Option<StoredAgent>,
}

impl AgentIdentity {
    fn claimant<'a>(&'a self, rules: &'a RulesSnapshot) -> Claimant<'a> {
        match &self.registered {
            None => Claimant::Person { name: &self.agent_id },
            Some(agent) => Claimant::Agent {
                agent_id: &self.agent_id,
                sponsor: agent.sponsor_id.as_ref().and_then(|sponsor| rules.people.get(sponsor)),
                rights: &agent.rights,
            },
        }
    }

    /// What the agent may be asked for, with the work queue of each.
    fn work(&self) -> Vec<(String, AgentWork<'_>)> {
        let named = (Config::work_queue_of_agent(&self.agent_id), AgentWork::Named(&self.agent_id));
        let grants = self.registered.iter().flat_map(|agent| &agent.rights.grants);
        let of_capability = |name| (Config::work_queue_of_capability(name), AgentWork::Capability(name));
        std::iter::once(named).chain(grants.map(|grant| of_capability(&grant.capability))).collect()
    }
}

impl TaskService {
    pub(crate) async fn agent_identity(&self, agent_id: &str) -> Result<AgentIdentity> {
        let registered = self.context.database.agent(agent_id).await?;
        Ok(AgentIdentity { agent_id: agent_id.to_owned(), registered })
    }

    /// The first ready tasks that an agent may claim, in order; empty if there is none.
    pub(crate) async fn claimable_tasks(
        &self,
        agent: &AgentIdentity,
        types: &[String],
    ) -> Result<Vec<String>> {
        let rules = self.rules().await?;
        let mut found = Vec::new();
        for (queue, work) in agent.work() {
            let serves = |author: &UserId| {
                let author = rules.people.get(author);
                author.is_some_and(|author| agent.claimant(&rules).may_claim(work, author))
            };
            found.extend(self.ready_tasks_of(&queue, types, serves).await?);
        }
        found.sort();
        Ok(found.into_iter().map(|task| task.task_id).collect())
    }

    /// The first ready tasks of a queue whose authors are served.
    async fn ready_tasks_of(
        &self,
        queue: &str,
        types: &[String],
        serves: impl Fn(&UserId) -> bool,
    ) -> Result<Vec<ReadyTask>> {
        let (now, mut others) = (self.context.now(), BTreeSet::new());
        loop {
            let excluded: Vec<UserId> = others.iter().cloned().collect();
            let page = self.context.database.ready_tasks(queue, types, &excluded, now, PAGE_SIZE).await?;
            let is_last = page.len() < PAGE_SIZE as usize;
            let (found, unserved): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|task| serves(&task.author_id));
            if !found.is_empty() || is_last {
                return Ok(found);
            }
            // All of a full page: the next one is without their authors.
            others.extend(unserved.into_iter().map(|task| task.author_id));
            if others.len() > MAX_EXCLUDED_AUTHORS {
                tracing::warn!(
                    queue,
                    "too many authors of waiting tasks whom an agent does not serve; it gets none"
                );
                return Ok(Vec::new());
            }
        }
    }

    /// Whether an agent may claim a task, whatever its state is.
    pub(crate) async fn may_claim(&self, agent: &AgentIdentity, task: &Task) -> Result<bool> {
        let rules = self.rules().await?;
        let work = task.config.agent_work().zip(rules.people.get(&task.author_id));
        Ok(work.is_some_and(|(work, author)| agent.claimant(&rules).may_claim(work, author)))
    }

    /// Whether the caller is an agent that may claim a task now. Such a task is visible to it.
    pub(super) async fn is_claimable_by(&self, caller: &Caller, task: &Task) -> Result<bool> {
        let Some(agent_id) = caller.agent_id.as_ref().filter(|_| task.state == TaskState::Approved) else {
            return Ok(false);
        };
        self.may_claim(&self.agent_identity(agent_id).await?, task).await
    }
}
