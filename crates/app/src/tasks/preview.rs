//! Previews of tasks: declared by the agent, computed here, or requested from a remote worker. A declared preview is accepted
//! only where none can be computed.
//!
//! A preview reads data and may run programs. So the caller must be authorized before it is computed, it counts against a rate
//! limit, and the audit log says who requested it, even if the task is then refused.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{
    AGENT_EXECUTOR, Config, NOOP_EXECUTOR, Preview, PreviewStatus, TaskCommand, TaskState,
};
use ade_executors::{Executor, Executors, Failure, Parameters, Secrets, bounded};
use ade_store::database::StoredTask;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout};

use super::{PreviewLimits, Target, TaskService};
use crate::events::AuditedAction;
use crate::{Caller, Error, Result, new_id};

/// Names of all executors.
pub const EXECUTORS: [&str; 6] = ["agent", "command", "files", "http", "noop", "sql"];
/// How long submitting waits for the preview of a remote worker.
const REMOTE_PREVIEW_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const PREVIEW_TIMEOUT: Duration = Duration::from_secs(20);

/// How previews are computed.
#[derive(Debug, Clone, Default)]
pub struct PreviewConfig {
    pub executors: Executors,
    /// Secrets to redact.
    pub secrets: Secrets,
    /// Whether remote workers may compute previews for which this process has no executor.
    pub has_remote_workers: bool,
    /// Previews that one user or agent may request per minute; `None` is without a limit.
    pub per_minute: Option<u32>,
}

/// Who requests a preview, and for which task; `None` for a simulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreviewRequest<'a> {
    pub(super) caller: &'a Caller,
    pub(super) task_id: Option<&'a str>,
}

impl TaskService {
    /// The preview of a config. `declared` counts only where none can be computed. The caller must be authorized already.
    pub(super) async fn compute_preview(
        &self,
        config: &Config,
        declared: Preview,
        request: PreviewRequest<'_>,
    ) -> Result<Preview> {
        let PreviewConfig { executors, secrets, .. } = &self.previews;
        if is_declared(config) {
            return Ok(redact(declared, secrets));
        }
        let work_queue = config.work_queue();
        let Some(executor) = executors.get(&work_queue) else {
            if self.is_previewed_remotely(config) {
                self.admit_preview(config, &work_queue, request).await?;
                return Ok(Preview::pending());
            }
            return Err(self.not_allowed(config, &work_queue));
        };
        let in_parameters = |fault: InvalidField| fault.within("parameters");
        let invalid =
            |faults: Vec<InvalidField>| Error::Invalid(faults.into_iter().map(in_parameters).collect());
        executor.validate(&config.parameters).map_err(invalid)?;
        self.admit_preview(config, &work_queue, request).await?;
        let _permit = self.preview_limits.acquire(request.caller).await?;
        let preview = preview_of(executor, &config.parameters).await;
        Ok(redact(preview.unwrap_or_else(|failure| Preview::failed(failure.message)), secrets))
    }

    /// Whether only a remote worker can compute the preview of a config.
    fn is_previewed_remotely(&self, config: &Config) -> bool {
        let PreviewConfig { executors, has_remote_workers, .. } = &self.previews;
        let is_computed = !is_declared(config) && EXECUTORS.contains(&config.executor.as_str());
        *has_remote_workers && is_computed && executors.get(&config.work_queue()).is_none()
    }

    /// Counts a preview against the rate limit of the caller, and records who requests it before it runs.
    async fn admit_preview(
        &self,
        config: &Config,
        work_queue: &str,
        request: PreviewRequest<'_>,
    ) -> Result<()> {
        let PreviewRequest { caller, task_id } = request;
        let coordination = &self.context.coordination;
        PreviewLimits::count(coordination, self.previews.per_minute, caller).await?;
        let simulation_id = new_id();
        let text = |text: &str| Value::String(text.to_owned());
        let details = Map::from_iter([
            ("executor".to_owned(), text(&config.executor)),
            ("work_queue".to_owned(), text(work_queue)),
        ]);
        let action = AuditedAction {
            object_type: if task_id.is_some() { "task" } else { "simulation" },
            task_id,
            details,
            ..AuditedAction::new("task.preview", task_id.unwrap_or(&simulation_id))
        };
        let commit = action.commit(Vec::new(), caller, self.context.now());
        if self.context.commit(commit).await? { Ok(()) } else { Err(Error::Conflict) }
    }

    fn not_allowed(&self, config: &Config, work_queue: &str) -> Error {
        let executor = config.executor.as_str();
        if !EXECUTORS.contains(&executor) {
            return Error::invalid("executor", format!("must be one of {}", EXECUTORS.join(", ")));
        }
        let work_queues = self.previews.executors.work_queues();
        let allowed: Vec<&str> = work_queues.filter(|queue| queue.starts_with(executor)).collect();
        let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
        Error::invalid(
            "parameters",
            format!(
                "{work_queue} is not allowed here (allowed for {executor}: {allowed}); an operator can allow it in the \
                 configuration under executors.{executor}"
            ),
        )
    }

    /// Loads a task for a caller who may submit it. The preview of a draft is computed again, or waited for if a remote worker
    /// computes it.
    pub(super) async fn load_with_preview(&self, target: Target<'_>, caller: &Caller) -> Result<StoredTask> {
        let started = Instant::now();
        loop {
            let mut task = self.load(target).await?;
            target.authorize_preview(&task, TaskCommand::Submit, self.context.now())?;
            if task.state != TaskState::Draft {
                return Ok(task);
            }
            self.planner(&task.config.task_type).await?.scope_for(&task.config, caller)?;
            if !self.is_previewed_remotely(&task.config) {
                let request = PreviewRequest { caller, task_id: Some(&task.task_id) };
                task.preview = self.compute_preview(&task.config, task.preview.clone(), request).await?;
                return Ok(task);
            }
            if task.preview.status != PreviewStatus::Pending {
                return Ok(task);
            }
            if started.elapsed() >= REMOTE_PREVIEW_TIMEOUT {
                return Err(Error::PreviewPending);
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Whether the author declares the preview, so that nothing is computed.
pub(super) fn is_declared(config: &Config) -> bool {
    [AGENT_EXECUTOR, NOOP_EXECUTOR].contains(&config.executor.as_str())
}

/// Computes a preview of limited size.
pub(crate) async fn preview_of(
    executor: &Arc<dyn Executor>,
    parameters: &Parameters,
) -> Result<Preview, Failure> {
    let preview = timeout(PREVIEW_TIMEOUT, executor.preview(parameters)).await.unwrap_or_else(|_| {
        Err(Failure::retryable(format!("the preview took longer than {} s", PREVIEW_TIMEOUT.as_secs())))
    });
    preview.map(bounded)
}

/// Removes secrets from a preview.
pub(crate) fn redact(mut preview: Preview, secrets: &Secrets) -> Preview {
    let redact = |text: &mut String| *text = secrets.redact(text);
    for change in &mut preview.changes {
        redact(&mut change.what);
        for text in [&mut change.before, &mut change.after, &mut change.diff] {
            text.iter_mut().for_each(redact);
        }
    }
    preview.warnings.iter_mut().for_each(redact);
    preview.errors.iter_mut().for_each(redact);
    preview
}
