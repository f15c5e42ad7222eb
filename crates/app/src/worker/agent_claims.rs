//! Claims of agents: an agent gets an approved task that it may claim, with its locks and a lease, or nothing.
//!
//! Everything that may refuse a task is checked before the attempt begins; a refused claim changes nothing about the task.

use std::time::Duration;

use ade_domain::audit::{Principal, Trigger};
use ade_domain::task::{AttemptStart, TaskState};
use ade_store::database::StoredTask;
use tokio::time::{Instant, timeout};

use super::agent_work::{AgentWorkService, reporter};
use super::evidence::may_apply;
use super::lease::{LOCK_TIMEOUT_MS, acquire_locks};
use crate::agents::Capacity;
use crate::tasks::{AgentIdentity, ClaimSearch};
use crate::{Caller, Error, Result};

/// How often a waiting claim looks for work without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a claim keeps others away before its attempt begins.
const MAX_CLAIM_TTL_MS: u64 = 10_000;
/// Delay before a task is tried again if its locks are held.
const RETRY_DELAY_MS: u64 = 1_000;

/// Which work a claim asks for.
#[derive(Debug, Clone, Default)]
pub struct ClaimFilter {
    /// Only this task.
    pub task_id: Option<String>,
    /// Only tasks of these types; empty for all.
    pub types: Vec<String>,
}

enum ClaimOutcome {
    Begun(Box<StoredTask>),
    /// The locks are taken, or the task is no longer ready.
    NotReady,
    /// The agent is at its limit; another agent can have the task at once.
    NoCapacity,
    /// The task or the rules have changed, and it is no longer for this agent.
    NotAllowed,
}

impl AgentWorkService {
    /// Claims a task that names the agent or one of its capabilities; waits for one until the timeout. Fails if it asks for a
    /// task that this agent may not claim.
    pub async fn claim(
        &self,
        named: Option<&str>,
        filter: &ClaimFilter,
        wait: Duration,
        caller: &Caller,
    ) -> Result<Option<StoredTask>> {
        let agent = self.agents.resolve_agent(caller, named).await?;
        let (mut work, deadline) = (self.tasks.subscriptions().work(), Instant::now() + wait);
        let mut search = ClaimSearch::default();
        loop {
            // Work that becomes ready after this is notified.
            work.mark_unchanged();
            if let Some(task) = self.try_claim(&agent, filter, &mut search, caller).await? {
                return Ok(Some(task));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // A notification and a timeout have the same effect: try again.
            let _ = timeout(left.min(POLL_INTERVAL), work.changed()).await;
        }
    }

    async fn try_claim(
        &self,
        agent: &str,
        filter: &ClaimFilter,
        search: &mut ClaimSearch,
        caller: &Caller,
    ) -> Result<Option<StoredTask>> {
        // Read again for each attempt: capabilities may be granted and revoked while a claim waits.
        let identity = self.tasks.agent_identity(agent).await?;
        // Removed while it waits: its name must not count as that of a person.
        if caller.agent_id.is_some() && !identity.is_registered() {
            return Err(Error::AgentNotFound(agent.to_owned()));
        }
        let mut candidates = async || match &filter.task_id {
            Some(task_id) => {
                let task = self.tasks.claimable_task(&identity, task_id, &filter.types, caller).await?;
                Ok(task.into_iter().collect())
            }
            None => self.tasks.claimable_tasks(&identity, &filter.types, search).await,
        };
        // Checked before anything is claimed: an agent without capacity must not block others.
        match self.agents.capacity(agent).await? {
            Capacity::Free => {}
            Capacity::Draining => return Ok(None),
            Capacity::Full => {
                // The task that it would get counts as queued for it.
                if let Some(task_id) = candidates().await?.first()
                    && self.claim_capacity(agent, task_id, self.lease_ms).await?
                {
                    self.release_capacity(agent, task_id).await;
                }
                return Ok(None);
            }
        }
        let by = format!("agent {agent}");
        for task_id in &candidates().await? {
            let now = self.context.now();
            let until = now.plus_ms(self.lease_ms.min(MAX_CLAIM_TTL_MS));
            // Otherwise another agent was faster.
            if self.context.database.claim_task(task_id, &by, now, until).await? {
                return self.begin_claimed(&identity, agent, (task_id, &by), caller).await;
            }
        }
        Ok(None)
    }

    /// Begins an attempt of a claimed task, or gives the claim back.
    async fn begin_claimed(
        &self,
        identity: &AgentIdentity,
        agent: &str,
        (task_id, by): (&str, &str),
        caller: &Caller,
    ) -> Result<Option<StoredTask>> {
        // On the heap: a claim is deep inside the future of its request, whose stack is limited.
        let outcome = Box::pin(self.begin(identity, agent, task_id, caller)).await;
        let delay_ms = match &outcome {
            Ok(ClaimOutcome::NoCapacity | ClaimOutcome::NotAllowed) | Err(_) => 0,
            Ok(ClaimOutcome::NotReady | ClaimOutcome::Begun(_)) => RETRY_DELAY_MS,
        };
        if let Ok(ClaimOutcome::Begun(task)) = outcome {
            return Ok(Some(*task));
        }
        // If this fails, the claim expires by itself.
        if let Err(error) =
            self.context.database.postpone_claim(task_id, by, self.context.now().plus_ms(delay_ms)).await
        {
            tracing::debug!(task_id, %error, "cannot postpone a task");
        }
        match outcome {
            Err(error) if !crate::tasks::is_superseded(&error) && error != Error::Conflict => Err(error),
            _ => Ok(None),
        }
    }

    async fn begin(
        &self,
        identity: &AgentIdentity,
        agent: &str,
        task_id: &str,
        caller: &Caller,
    ) -> Result<ClaimOutcome> {
        let task = self.tasks.get(task_id).await?;
        let is_allowed = self.tasks.may_claim(identity, &task).await?;
        if !is_allowed || self.tasks.review_refusal(identity, &task).await?.is_some() {
            return Ok(ClaimOutcome::NotAllowed);
        }
        if task.state != TaskState::Approved || !self.tasks.is_approval_valid(&task) {
            return Ok(ClaimOutcome::NotReady);
        }
        let by = reporter(agent, caller);
        if !may_apply(&self.context, &self.tasks, &task, agent, &self.claims(&task)).await? {
            return Ok(ClaimOutcome::NotReady);
        }
        // The first lease must not exceed the timeout of the task either.
        let lease_ms = self.lease_ms.min(u64::from(task.config.timeout_seconds) * 1_000);
        if !self.claim_capacity(agent, task_id, lease_ms).await? {
            return Ok(ClaimOutcome::NoCapacity);
        }
        let acquired = acquire_locks(&self.locks, agent, &task, lease_ms, LOCK_TIMEOUT_MS).await;
        let Some((locks, _)) = acquired.as_ref().ok().and_then(Option::as_ref) else {
            self.release_capacity(agent, task_id).await;
            return acquired.map(|_| ClaimOutcome::NotReady);
        };
        let lease_until = self.context.now().plus_ms(lease_ms);
        let begin = AttemptStart { worker: agent.to_owned(), grants: locks.grants.clone(), lease_until };
        let begun = self.tasks.begin(task, begin, &by, Some(caller)).await;
        if begun.is_err() {
            locks.release(&self.locks).await;
            self.release_capacity(agent, task_id).await;
        }
        begun.map(|task| ClaimOutcome::Begun(Box::new(task)))
    }

    /// The part of the service that hands out tasks, with the next attempt: it refuses what was not approved, not the agent.
    fn claims(&self, task: &StoredTask) -> Principal {
        self.context.service("claims", Trigger::Attempt(task.next_attempt()))
    }
}
