//! Work for agents: they claim a task with its locks, send heartbeats and log output, and report how it ended.
//!
//! What an agent reports counts only while its attempt is the current one; repeating a report changes nothing. Secrets of the
//! configuration are redacted in all of it.

use std::time::Duration;

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, Principal, Trigger};
use ade_domain::task::{
    AGENT_EXECUTOR, AttemptReport, AttemptStart, Execution, ExecutionOutput as StoredOutput, ExecutionResult,
    Refusal, TaskState,
};
use ade_executors::Secrets;
use ade_store::Blobs;
use ade_store::coordination::CapacityClaim;
use ade_store::database::{LeaseRenewal, LogLine, StoredTask};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::evidence::may_apply;
use super::lease::{AttemptLocks, LOCK_TIMEOUT_MS, acquire_locks};
use crate::agents::{AgentService, Capacity};
use crate::idempotency::stored_response;
use crate::tasks::AgentIdentity;
use crate::{Caller, Context, Error, LockService, ObjectKind, Outcome, Result, TaskService};

/// Structured error information of one report, as JSON.
const MAX_DETAILS_BYTES: usize = 16_384;
/// How often a waiting claim looks for work without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a claim keeps others away before its attempt begins.
const MAX_CLAIM_TTL_MS: u64 = 10_000;
/// Delay before a task is tried again if its locks are held.
const RETRY_DELAY_MS: u64 = 1_000;
/// Output bytes in the database; longer output is stored as a blob.
const MAX_INLINE_OUTPUT: usize = 65_536;

#[derive(Debug, Clone)]
pub struct AgentWorkService {
    pub context: Context,
    pub tasks: TaskService,
    pub locks: LockService,
    pub agents: AgentService,
    /// Secrets to redact.
    pub secrets: Secrets,
    /// How long an agent counts as alive without a heartbeat.
    pub lease_ms: u64,
}

/// An agent's report of how its attempt ended.
#[derive(Debug, Clone)]
pub struct AgentReport {
    pub attempt: u64,
    pub result: ExecutionResult,
    pub output: Option<String>,
    pub error: Option<String>,
    pub error_details: Option<Map<String, Value>>,
}

/// The response to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatReply {
    pub lease_until: Moment,
    /// Whether an administrator wants the agent to stop.
    pub stop_requested: bool,
}

enum ClaimOutcome {
    Begun(Box<StoredTask>),
    /// The locks are taken, or the task is no longer ready.
    NotReady,
    /// The agent is at its limit; another agent can have the task at once.
    NoCapacity,
    /// The task has changed, and is no longer for this agent.
    NotAllowed,
}

impl AgentWorkService {
    /// Claims a task that names the agent or one of its capabilities; waits for one until the timeout.
    pub async fn claim(
        &self,
        named: Option<&str>,
        types: &[String],
        wait: Duration,
        caller: &Caller,
    ) -> Result<Option<StoredTask>> {
        let agent = self.agents.resolve_agent(caller, named).await?;
        let (mut work, deadline) = (self.tasks.subscriptions().work(), Instant::now() + wait);
        loop {
            // Work that becomes ready after this is notified.
            work.mark_unchanged();
            if let Some(task) = self.try_claim(&agent, types, caller).await? {
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

    async fn try_claim(&self, agent: &str, types: &[String], caller: &Caller) -> Result<Option<StoredTask>> {
        // Read again for each attempt: capabilities may be granted and revoked while a claim waits.
        let identity = self.tasks.agent_identity(agent).await?;
        // Checked before anything is claimed: an agent without capacity must not block others.
        match self.agents.capacity(agent).await? {
            Capacity::Free => {}
            Capacity::Draining => return Ok(None),
            Capacity::Full => {
                // The task that it would get counts as queued for it.
                if let Some(task_id) = self.tasks.claimable_tasks(&identity, types).await?.first()
                    && self.claim_capacity(agent, task_id, self.lease_ms).await?
                {
                    self.release_capacity(agent, task_id).await;
                }
                return Ok(None);
            }
        }
        let by = format!("agent {agent}");
        for task_id in &self.tasks.claimable_tasks(&identity, types).await? {
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
        if !self.tasks.may_claim(identity, &task).await? {
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

    /// Claims capacity of the agent for a task, or extends the claim; returns whether the agent has it.
    async fn claim_capacity(&self, agent: &str, task_id: &str, ms: u64) -> Result<bool> {
        let coordination = &self.context.coordination;
        let until = coordination.now().plus_ms(ms);
        let claimed = coordination.claim_capacity(agent.to_owned(), task_id.to_owned(), until).await?;
        Ok(claimed == CapacityClaim::Claimed)
    }

    async fn release_capacity(&self, agent: &str, task_id: &str) {
        let coordination = &self.context.coordination;
        if let Err(error) = coordination.release_capacity(agent.to_owned(), task_id.to_owned()).await {
            tracing::debug!(task_id, %error, "cannot release the capacity of an agent; it expires");
        }
    }

    /// A task that the caller executes, with the name of its worker.
    async fn executed_task(
        &self,
        task_id: &str,
        attempt: u64,
        caller: &Caller,
    ) -> Result<(StoredTask, String)> {
        let task = self.tasks.get(task_id).await?;
        let refused =
            |error: Error| if caller.can_see(&task) { error } else { Error::NotFound(ObjectKind::Task) };
        let Some(execution) = &task.execution else {
            return Err(refused(Refusal::NotCurrentAttempt { attempt, current: 0 }.into()));
        };
        let worker = execution.worker.clone();
        let is_agent_task = task.config.executor == AGENT_EXECUTOR;
        if !is_agent_task || !self.agents.can_act_for(caller, &worker).await? {
            let detail = format!("only {worker}, which executes this task, can report about it");
            return Err(refused(Error::Forbidden(detail)));
        }
        Ok((task, worker))
    }

    /// Renews lease and locks of an agent, but never beyond the timeout of the task, nor beyond one lease after a stop was requested.
    /// The locks never outlive the lease.
    pub async fn heartbeat(&self, task_id: &str, attempt: u64, caller: &Caller) -> Result<HeartbeatReply> {
        let (task, worker) = self.executed_task(task_id, attempt, caller).await?;
        let now = self.context.now();
        let lease_until = task.extended_lease(attempt, self.lease_ms, now)?;
        let execution = task.current_attempt(attempt)?;
        let ms = lease_until.ms_since(now);
        // Locks first: an agent that has lost them must not stay alive by heartbeats.
        if let Some(locks) = AttemptLocks::new(&worker, task_id, attempt, execution.grants.clone())
            && !locks.renew(&self.locks, ms).await?
        {
            return Err(Error::LocksLost);
        }
        let renewed = self.context.database.renew_lease(task_id, attempt, lease_until).await?;
        if renewed == LeaseRenewal::Lost {
            let now = self.tasks.get(task_id).await?.attempt();
            return Err(Refusal::NotCurrentAttempt { attempt, current: now }.into());
        }
        self.claim_capacity(&worker, task_id, ms).await?;
        Ok(HeartbeatReply { lease_until, stop_requested: renewed == LeaseRenewal::StopRequested })
    }

    /// Stores log output of the agent.
    pub async fn log(&self, task_id: &str, attempt: u64, text: &str, caller: &Caller) -> Result<()> {
        let (task, _) = self.executed_task(task_id, attempt, caller).await?;
        let (now, text) = (self.context.now(), self.secrets.redact(text));
        let response = stored_response(caller, |_| Outcome::Done)?;
        if self.context.database.append_task_log(task_id, attempt, now, &text, response).await? {
            return Ok(());
        }
        let now = task.execution.as_ref().map_or(0, |execution| execution.attempt);
        Err(Refusal::NotCurrentAttempt { attempt, current: now }.into())
    }

    /// The log of a task, starting after line `after`.
    pub async fn logs(
        &self,
        task_id: &str,
        after: u64,
        limit: u32,
        caller: &Caller,
    ) -> Result<(Vec<LogLine>, StoredTask)> {
        let task = self.tasks.task(task_id, caller).await?;
        Ok((self.context.database.task_log(task_id, after, limit).await?, task))
    }

    /// Records the report of an agent. A repeated report gets the same response. Success counts only if the agent still holds its
    /// locks with its own tokens.
    pub async fn complete(&self, task_id: &str, report: AgentReport, caller: &Caller) -> Result<StoredTask> {
        let AgentReport { attempt, result, output, error, error_details } = report;
        let (task, worker) = self.executed_task(task_id, attempt, caller).await?;
        if task.was_reported(attempt, result) {
            return Ok(task);
        }
        // Output is stored for the current attempt only.
        let execution = task.current_attempt(attempt)?;
        let locks = AttemptLocks::new(&worker, task_id, attempt, execution.grants.clone());
        let holds_locks = result != ExecutionResult::Success || self.holds(locks.as_ref(), execution).await;
        let error_details = error_details.map(|details| self.redact_details(details)).transpose()?;
        let output = self.store_output(task_id, attempt, output).await?;
        let error = error.map(|error| self.secrets.redact(&error));
        let report = AttemptReport { result, error, error_details };
        let by = reporter(&worker, caller);
        let reported = self.tasks.change(task_id, &by, |task, now| {
            task.report(attempt, report.clone(), holds_locks, output.clone(), now)
        });
        let reported = reported.await;
        if matches!(reported, Err(Error::Refused(_) | Error::Conflict)) {
            self.remove_output(task_id, output).await;
        }
        if let Err(error) = reported {
            // The same report may have arrived twice at once.
            let now = self.tasks.get(task_id).await?;
            return if now.was_reported(attempt, result) { Ok(now) } else { Err(error) };
        }
        if let Some(locks) = locks {
            locks.release(&self.locks).await;
        }
        self.release_capacity(&worker, task_id).await;
        self.tasks.get(task_id).await
    }

    /// Whether the locks of an attempt are held with its own tokens. If coordination does not answer, the lease in the database
    /// decides.
    async fn holds(&self, locks: Option<&AttemptLocks>, execution: &Execution) -> bool {
        let has_lease = execution.lease_until > self.context.now();
        let Some(locks) = locks else { return has_lease };
        match locks.are_held(&self.locks).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "cannot verify the locks of an agent; its lease decides");
                has_lease
            }
        }
    }

    /// The beginning of the output, and all of it as a blob if it is longer. Each blob has a key of its own, so that none overwrites
    /// another.
    async fn store_output(
        &self,
        task_id: &str,
        attempt: u64,
        output: Option<String>,
    ) -> Result<StoredOutput> {
        let Some(text) = output.filter(|text| !text.is_empty()) else { return Ok(StoredOutput::default()) };
        let text = self.secrets.redact(&text);
        if text.len() <= MAX_INLINE_OUTPUT {
            return Ok(StoredOutput { text: Some(text), blob_key: None });
        }
        let beginning =
            text.get(..text.floor_char_boundary(MAX_INLINE_OUTPUT)).unwrap_or_default().to_owned();
        let key = format!("output/{task_id}/{attempt}-{}", uuid::Uuid::new_v4().simple());
        let key = self.context.put_blob("cannot store the output of a task", key, text.into_bytes()).await?;
        Ok(StoredOutput { text: Some(beginning), blob_key: Some(key) })
    }

    fn redact_details(&self, details: Map<String, Value>) -> Result<Map<String, Value>> {
        let size = serde_json::to_vec(&details).map_or(usize::MAX, |text| text.len());
        if size > MAX_DETAILS_BYTES {
            let detail = format!("may have at most {MAX_DETAILS_BYTES} bytes as JSON");
            return Err(Error::invalid("error_details", detail));
        }
        Ok(details.into_iter().map(|field| self.redact_field(field)).collect())
    }

    /// Any name or string may contain a secret.
    fn redact_field(&self, (name, value): (String, Value)) -> (String, Value) {
        (self.secrets.redact(&name), self.redact_value(value))
    }

    fn redact_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.secrets.redact(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(fields) => fields.into_iter().map(|field| self.redact_field(field)).collect(),
            other => other,
        }
    }

    /// Removes the output of a report that was refused.
    async fn remove_output(&self, task_id: &str, output: StoredOutput) {
        let Some(key) = output.blob_key else { return };
        let remove = move |blobs: &Blobs| Ok(blobs.remove(&key)?);
        if let Err(error) = self.context.with_blobs("the blob folder failed", remove).await {
            tracing::warn!(task_id, %error, "cannot remove the output of a refused report");
        }
    }
}

/// The agent that a caller acts for, with the caller's credentials, for audit entries.
fn reporter(agent: &str, caller: &Caller) -> Principal {
    AuditActor { agent_id: Some(agent.to_owned()), ..caller.audit_actor.clone() }.into()
}
