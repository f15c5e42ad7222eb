//! Previews of tasks: declared by the agent, computed here, or requested from a remote worker. A declared preview is accepted
//! only where none can be computed.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{AGENT_EXECUTOR, Config, NOOP_EXECUTOR, Preview, PreviewStatus, TaskState};
use ade_executors::{Executor, Executors, Failure, Parameters, Secrets};
use ade_store::database::StoredTask;
use tokio::time::{Instant, sleep, timeout};

use super::{Target, TaskService};
use crate::{Error, Result};

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
}

impl TaskService {
    /// The preview of a config. `declared` counts only where none can be computed.
    pub(super) async fn compute_preview(&self, config: &Config, declared: Preview) -> Result<Preview> {
        let PreviewConfig { executors, secrets, .. } = &self.previews;
        if [AGENT_EXECUTOR, NOOP_EXECUTOR].contains(&config.executor.as_str()) {
            return Ok(redact(declared, secrets));
        }
        let work_queue = config.work_queue();
        let Some(executor) = executors.get(&work_queue) else {
            if self.previews.has_remote_workers && EXECUTORS.contains(&config.executor.as_str()) {
                return Ok(Preview::pending());
            }
            return Err(self.not_allowed(config, &work_queue));
        };
        let in_parameters = |fault: InvalidField| fault.within("parameters");
        let invalid =
            |faults: Vec<InvalidField>| Error::Invalid(faults.into_iter().map(in_parameters).collect());
        executor.validate(&config.parameters).map_err(invalid)?;
        let preview = preview_of(executor, &config.parameters).await;
        Ok(redact(preview.unwrap_or_else(|failure| Preview::failed(failure.message)), secrets))
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

    /// Loads a task to be submitted. The preview of a draft is computed again, or waited for if a remote worker computes it.
    pub(super) async fn load_with_preview(&self, target: Target<'_>) -> Result<StoredTask> {
        let started = Instant::now();
        loop {
            let mut task = self.load(target).await?;
            if task.state != TaskState::Draft {
                return Ok(task);
            }
            let preview = self.compute_preview(&task.config, task.preview.clone()).await?;
            if preview.status != PreviewStatus::Pending {
                task.preview = preview;
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

/// Computes a preview.
pub(crate) async fn preview_of(
    executor: &Arc<dyn Executor>,
    parameters: &Parameters,
) -> Result<Preview, Failure> {
    timeout(PREVIEW_TIMEOUT, executor.preview(parameters)).await.unwrap_or_else(|_| {
        Err(Failure::retryable(format!("the preview took longer than {} s", PREVIEW_TIMEOUT.as_secs())))
    })
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
