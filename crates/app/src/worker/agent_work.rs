//! Work for agents: they send heartbeats and log output for the task that they claimed, and report how it ended.
//!
//! What an agent reports counts only while its attempt is the current one; repeating a report changes nothing. Secrets of the
//! configuration are redacted in all of it.

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, Principal};
use ade_domain::task::{
    AGENT_EXECUTOR, AttemptReport, Execution, ExecutionOutput as StoredOutput, ExecutionResult, Refusal,
};
use ade_executors::Secrets;
use ade_store::Blobs;
use ade_store::coordination::CapacityClaim;
use ade_store::database::{LeaseRenewal, LogLine, StoredTask};
use serde_json::{Map, Value};

use super::lease::AttemptLocks;
use crate::agents::AgentService;
use crate::idempotency::stored_response;
use crate::{Caller, Context, Error, LockService, ObjectKind, Outcome, Result, TaskService};

/// Structured error information of one report, as JSON.
const MAX_DETAILS_BYTES: usize = 16_384;
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

impl AgentWorkService {
    /// Claims capacity of the agent for a task, or extends the claim; returns whether the agent has it.
    pub(super) async fn claim_capacity(&self, agent: &str, task_id: &str, ms: u64) -> Result<bool> {
        let coordination = &self.context.coordination;
        let until = coordination.now().plus_ms(ms);
        let claimed = coordination.claim_capacity(agent.to_owned(), task_id.to_owned(), until).await?;
        Ok(claimed == CapacityClaim::Claimed)
    }

    pub(super) async fn release_capacity(&self, agent: &str, task_id: &str) {
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

    /// The last lines of the log of a task, in order.
    pub async fn log_end(
        &self,
        task_id: &str,
        limit: u32,
        caller: &Caller,
    ) -> Result<(Vec<LogLine>, StoredTask)> {
        let task = self.tasks.task(task_id, caller).await?;
        Ok((self.context.database.task_log_end(task_id, limit).await?, task))
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
pub(super) fn reporter(agent: &str, caller: &Caller) -> Principal {
    AuditActor { agent_id: Some(agent.to_owned()), ..caller.audit_actor.clone() }.into()
}
