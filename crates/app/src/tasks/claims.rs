//! Which tasks an agent may claim. `domain` decides by the agent's rights, the author, and the policies under which the task was
//! reviewed; this module loads them.
//!
//! A queue may hold any number of tasks that one agent may not claim. They never keep it from those that it may.

use std::collections::BTreeSet;
use std::sync::Arc;

use ade_domain::capability::Claimant;
use ade_domain::people::UserId;
use ade_domain::task::{AgentWork, Config, PossibleClaimants, Refusal, Task, TaskState, names_agent};
use ade_store::database::{ReadyFilter, ReadyTask, StoredAgent};

use super::{RulesSnapshot, TaskService};
use crate::{Caller, Error, ObjectKind, Result};

/// Ready tasks that are read at once.
const PAGE_SIZE: u32 = 64;
/// Authors of ready tasks whom the agent does not serve, before a search ends without a result.
const MAX_EXCLUDED_AUTHORS: usize = 1_000;
/// Ready tasks that were not reviewed for the agent, before a search ends without a result.
const MAX_UNREVIEWED_TASKS: usize = 1_000;
/// Tasks of one queue that are loaded to be offered. Others may be faster with the first.
const MAX_OFFERED_TASKS: usize = 8;

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

    pub(crate) const fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// What the agent may be asked for, with the work queue of each.
    fn work(&self) -> Vec<(String, AgentWork<'_>)> {
        let named = (Config::work_queue_of_agent(&self.agent_id), AgentWork::Named(&self.agent_id));
        let grants = self.registered.iter().flat_map(|agent| &agent.rights.grants);
        let of_capability = |name| (Config::work_queue_of_capability(name), AgentWork::Capability(name));
        std::iter::once(named).chain(grants.map(|grant| of_capability(&grant.capability))).collect()
    }
}

/// What one claim has found out while it waits for work: it does not load the same tasks again and again.
#[derive(Debug, Default)]
pub(crate) struct ClaimSearch {
    /// The rules of the last search.
    rules: Option<Arc<RulesSnapshot>>,
    /// Tasks that were not reviewed for the agent.
    unreviewed: BTreeSet<ReadyTask>,
}

impl ClaimSearch {
    /// Other rules may give other results.
    fn use_rules(&mut self, rules: &Arc<RulesSnapshot>) {
        if !self.rules.as_ref().is_some_and(|known| Arc::ptr_eq(known, rules)) {
            self.rules = Some(rules.clone());
            self.unreviewed.clear();
        }
    }
}

/// Whether a policy or the registry names an agent, so that what it claims may need another review.
fn has_rules_for(rules: &RulesSnapshot, agent_id: &str) -> bool {
    rules.policies.iter().any(|policy| names_agent(policy, agent_id))
        || !PossibleClaimants::of([agent_id]).registered(&rules.registry).is_empty()
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
        search: &mut ClaimSearch,
    ) -> Result<Vec<String>> {
        let rules = self.rules().await?;
        search.use_rules(&rules);
        let mut found = Vec::new();
        for (queue, work) in agent.work() {
            let filter = ReadyFilter { queue: &queue, types, ..ReadyFilter::default() };
            found.extend(self.ready_tasks_for(agent, work, filter, &rules, search).await?);
        }
        found.sort();
        Ok(found.into_iter().map(|task| task.task_id).collect())
    }

    /// The first ready tasks of a queue whose authors are served, and that were reviewed for the agent.
    async fn ready_tasks_for(
        &self,
        agent: &AgentIdentity,
        work: AgentWork<'_>,
        filter: ReadyFilter<'_>,
        rules: &RulesSnapshot,
        search: &mut ClaimSearch,
    ) -> Result<Vec<ReadyTask>> {
        let serves = |task: &ReadyTask| {
            let author = rules.people.get(&task.author_id);
            author.is_some_and(|author| agent.claimant(rules).may_claim(work, author))
        };
        let (now, mut others, mut last) = (self.context.now(), BTreeSet::new(), None);
        loop {
            let excluded: Vec<UserId> = others.iter().cloned().collect();
            let next = ReadyFilter { excluded_authors: &excluded, after: last.as_ref(), ..filter };
            let page = self.context.database.ready_tasks(next, now, PAGE_SIZE).await?;
            let is_last = page.len() < PAGE_SIZE as usize;
            last = page.last().cloned();
            let (served, unserved): (Vec<_>, Vec<_>) = page.into_iter().partition(serves);
            let found = self.reviewed_tasks(agent, work, served, rules, search).await?;
            if !found.is_empty() || is_last {
                return Ok(found);
            }
            // None of a full page: the next one is without these authors.
            others.extend(unserved.into_iter().map(|task| task.author_id));
            if others.len() > MAX_EXCLUDED_AUTHORS || search.unreviewed.len() > MAX_UNREVIEWED_TASKS {
                tracing::warn!(
                    queue = filter.queue,
                    agent_id = agent.agent_id,
                    "too many waiting tasks that an agent may not claim; it gets none"
                );
                return Ok(Vec::new());
            }
        }
    }

    /// Those of some ready tasks that were reviewed under the policies that apply because of the agent.
    async fn reviewed_tasks(
        &self,
        agent: &AgentIdentity,
        work: AgentWork<'_>,
        ready: Vec<ReadyTask>,
        rules: &RulesSnapshot,
        search: &mut ClaimSearch,
    ) -> Result<Vec<ReadyTask>> {
        if !has_rules_for(rules, &agent.agent_id) || matches!(work, AgentWork::Named(_)) {
            return Ok(ready);
        }
        let mut reviewed = Vec::new();
        for task in ready {
            if search.unreviewed.contains(&task) {
                continue;
            }
            let Some(stored) = self.context.database.task(&task.task_id).await? else { continue };
            if self.review_refusal(agent, &stored).await?.is_some() {
                search.unreviewed.insert(task);
                continue;
            }
            reviewed.push(task);
            if reviewed.len() >= MAX_OFFERED_TASKS {
                break;
            }
        }
        Ok(reviewed)
    }

    /// A task that an agent asks for, if it is approved and of these types. Fails if the agent may not claim it.
    pub(crate) async fn claimable_task(
        &self,
        agent: &AgentIdentity,
        task_id: &str,
        types: &[String],
        caller: &Caller,
    ) -> Result<Option<String>> {
        let task = self.get(task_id).await?;
        let (may_claim, is_approved) =
            (self.may_claim(agent, &task).await?, task.state == TaskState::Approved);
        let is_visible = caller.can_see(&task) || (may_claim && is_approved);
        if !is_visible {
            return Err(Error::NotFound(ObjectKind::Task));
        }
        if !may_claim {
            let name = &agent.agent_id;
            return Err(Error::forbidden(format!(
                "{name} may not claim this task: it is not for {name}, or no capability of {name} counts for tasks of its author. \
                 Ask its sponsor or an administrator for a grant."
            )));
        }
        if !is_approved || !(types.is_empty() || types.contains(&task.config.task_type)) {
            return Ok(None);
        }
        match self.review_refusal(agent, &task).await? {
            Some(refusal) => Err(refusal.into()),
            None => Ok(Some(task.task_id.clone())),
        }
    }

    /// Why a task must be reviewed again before this agent claims it; none if it need not.
    pub(crate) async fn review_refusal(&self, agent: &AgentIdentity, task: &Task) -> Result<Option<Refusal>> {
        let (agent_id, rules) = (&agent.agent_id, self.rules().await?);
        if !has_rules_for(&rules, agent_id) {
            return Ok(None);
        }
        let risk = self.planner(&task.config.task_type).await?.risk_for_claim(task, agent_id);
        Ok(task.require_review_for(agent_id, risk, &rules.policies, self.context.now()).err())
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
