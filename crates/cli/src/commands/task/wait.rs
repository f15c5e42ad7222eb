//! `ade task propose --wait` and `ade task logs`: polls a task until it has ended and prints its output.
//!
//! Reviews take days, so polling survives an unavailable server.

use std::time::Duration;

use ade_client::wire::{Config, LockPreview, Phase, RequirementStatus, SimulationRequest, Task, TaskState};
use ade_client::{Backoff, Client, Error};
use ade_domain::task::{AGENT_EXECUTOR, NOOP_EXECUTOR};
use owo_colors::OwoColorize;
use serde_json::Value;
use tokio::time::Instant;

use super::summary;
use crate::failure::{Failure, FailureKind, Result};
use crate::output::{self, OutputFormat, safe};

const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// An approved task is usually claimed sooner than this. Afterwards the user is notified what it waits for.
const CLAIM_DELAY: Duration = Duration::from_secs(3);

/// Waits until a task has ended and prints it. Its final state determines the exit code.
pub(super) async fn wait(client: &Client, task: Task, format: OutputFormat) -> Result {
    let task = wait_until_ended(client, task, format.json).await?;
    format.print(&task, summary)?;
    verdict(&task)
}

/// Prints the output of a task, with `--follow` until it has ended.
pub(super) async fn logs(client: &Client, task_id: &str, follow: bool) -> Result {
    let mut poller = Poller::new(client, task_id);
    // Fails at once if the server was never available: its address may be wrong.
    let mut task = client.task(task_id).await?;
    loop {
        // The state was read before the output, so no output of an ended task is missed.
        poller.print_new_output().await?;
        if !follow || !is_open(&task) {
            return Ok(());
        }
        task = poller.next_task().await?;
    }
}

/// Reads a task and its output. Retries while the server is unavailable; the user is notified once per outage.
struct Poller<'a> {
    client: &'a Client,
    task_id: &'a str,
    /// Number of the last line of output that was printed.
    last_line: u64,
    backoff: Backoff,
    is_notified: bool,
}

impl<'a> Poller<'a> {
    fn new(client: &'a Client, task_id: &'a str) -> Self {
        Self { client, task_id, last_line: 0, backoff: Backoff::default(), is_notified: false }
    }

    async fn next_task(&mut self) -> Result<Task> {
        tokio::time::sleep(POLL_INTERVAL).await;
        let (client, task_id) = (self.client, self.task_id);
        self.call(async || client.task(task_id).await).await
    }

    async fn print_new_output(&mut self) -> Result {
        let (client, task_id) = (self.client, self.task_id);
        loop {
            let last_line = self.last_line;
            let page = self.call(async || client.task_logs(task_id, last_line).await).await?;
            for line in &page.items {
                let prefix = format!("{} │", line.attempt);
                for text in line.text.lines() {
                    output::line(format_args!("{} {}", prefix.dimmed(), safe(text)))?;
                }
                self.last_line = line.number;
            }
            if page.next_cursor.is_none() {
                return Ok(());
            }
        }
    }

    async fn call<T>(&mut self, call: impl AsyncFn() -> Result<T, Error>) -> Result<T> {
        loop {
            match call().await {
                Ok(response) => {
                    self.backoff = Backoff::default();
                    if std::mem::take(&mut self.is_notified) {
                        output::note("the server is available again");
                    }
                    return Ok(response);
                }
                Err(error) if is_temporary(&error) => {
                    if !std::mem::replace(&mut self.is_notified, true) {
                        output::note(&format!("the server is unavailable, retrying: {error}"));
                    }
                    let minimum = error.retry_after_seconds().map(Duration::from_secs);
                    tokio::time::sleep(self.backoff.next_delay(minimum).max(POLL_INTERVAL)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether the server or a proxy is unavailable for now, as opposed to a refused request.
fn is_temporary(error: &Error) -> bool {
    let status = match error {
        Error::Unreachable { .. } => return true,
        Error::Problem(problem) => problem.status,
        Error::UnexpectedResponse { status, .. } => status.unwrap_or_default(),
    };
    matches!(status, 429 | 502..=504)
}

/// Whether the task has not ended yet, or a rollback is running or requested.
fn is_open(task: &Task) -> bool {
    let is_rolling_back = task.execution.as_ref().is_some_and(|execution| {
        execution.phase == Phase::RollingBack
            || (execution.phase == Phase::Ended && execution.rollback.is_some())
    });
    let has_ended = matches!(
        task.state,
        TaskState::Completed | TaskState::Failed | TaskState::Rejected | TaskState::Cancelled
    );
    is_rolling_back || !has_ended
}

/// Prints each new state and the output, unless `quiet`, until the task has ended.
async fn wait_until_ended(client: &Client, mut task: Task, quiet: bool) -> Result<Task> {
    let task_id = task.task_id.clone();
    let (mut shown, mut poller, mut stall) = (None, Poller::new(client, &task_id), StallNotice::default());
    loop {
        let state = Some((task.state, task.execution.as_ref().map(|execution| execution.phase)));
        if std::mem::replace(&mut shown, state) != state && !quiet {
            output::note(&progress(&task));
        }
        if !quiet && task.execution.is_some() {
            poller.print_new_output().await?;
        }
        if !is_open(&task) {
            return Ok(task);
        }
        stall.observe(client, &task).await;
        task = poller.next_task().await?;
    }
}

fn progress(task: &Task) -> String {
    let state = task.state;
    match (task.state, &task.execution) {
        (TaskState::Reviewing, _) => {
            let open =
                task.requirements.iter().filter(|it| it.status == RequirementStatus::Unsatisfied).count();
            let requirements = if open == 1 { "requirement" } else { "requirements" };
            let again = task.reopened.as_ref().map(|reopened| format!(" again ({})", reopened.reason));
            let (again, id) = (again.unwrap_or_default(), &task.task_id);
            format!("{state}{again}: {open} {requirements} not satisfied; see ade task show {id}")
        }
        (TaskState::Applying, Some(execution)) => {
            let phase = match execution.phase {
                Phase::Prepared => "locks held",
                Phase::Started => "running",
                Phase::RollingBack => "rolling back",
                Phase::Ended => "ended",
            };
            format!("{state}: attempt {}, {phase}", execution.attempt)
        }
        _ => state.to_string(),
    }
}

/// Maps the final state to the exit code.
fn verdict(task: &Task) -> Result {
    let kind = match task.state {
        TaskState::Completed => return Ok(()),
        TaskState::Rejected => FailureKind::TaskRejected,
        TaskState::Failed => FailureKind::TaskFailed,
        _ => FailureKind::Negative,
    };
    let id = &task.task_id;
    let error = task.execution.as_ref().and_then(|execution| execution.error.clone());
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    let hint = match task.state {
        TaskState::Failed => {
            format!(
                "see what is left with ade task show {id}; create a new draft with ade task resubmit {id}"
            )
        }
        _ => format!("see why with ade task show {id}"),
    };
    Err(Failure::new(kind, format!("task {id} is {}{error}", task.state)).hint(hint))
}

/// Tells once, each time the task is approved, why it is not applied yet.
#[derive(Debug, Default)]
struct StallNotice {
    /// When to check next; `None` if the task is not approved or the user was notified.
    check_at: Option<Instant>,
    was_approved: bool,
}

impl StallNotice {
    async fn observe(&mut self, client: &Client, task: &Task) {
        let is_approved = task.state == TaskState::Approved;
        if is_approved != std::mem::replace(&mut self.was_approved, is_approved) {
            self.check_at = is_approved.then(|| Instant::now() + CLAIM_DELAY);
        }
        if self.check_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        // A failed check is repeated later: a late notice is better than none.
        let reason = stall_reason(client, task).await.ok().flatten();
        self.check_at = if reason.is_some() { None } else { Some(Instant::now() + CLAIM_DELAY) };
        if let Some(reason) = reason {
            output::note(&format!("{}: {reason}", task.state));
        }
    }
}

async fn stall_reason(client: &Client, task: &Task) -> Result<Option<String>, Error> {
    if task.claimed_by.is_some() {
        // The lock preview of the task is as old as its submission; a simulation has the current one.
        let request = SimulationRequest { task_id: Some(task.task_id.clone()), ..Default::default() };
        let locks = client.simulate(&request).await?.lock_preview;
        return Ok(locks.iter().find_map(|lock| blocking_lock(lock, &task.task_id)));
    }
    let error = task.execution.as_ref().and_then(|execution| execution.error.as_deref());
    let retry = error.map(|error| format!("the last attempt failed and is retried soon: {error}"));
    Ok(Some(retry.unwrap_or_else(|| missing_worker(&task.config))))
}

/// Describes a lock that someone other than the task holds.
fn blocking_lock(lock: &LockPreview, task_id: &str) -> Option<String> {
    let others: Vec<&str> =
        lock.holders.iter().map(String::as_str).filter(|holder| !holder.contains(task_id)).collect();
    if lock.unavailable {
        Some(format!("waiting for the lock {}, which is unavailable", lock.lock))
    } else if lock.expected_wait_seconds > 0.0 && !others.is_empty() {
        Some(format!("waiting for the lock {}, held by {}", lock.lock, others.join(", ")))
    } else {
        None
    }
}

/// Names the worker or agent that the task needs. Whether one exists is unknown: all may be busy.
fn missing_worker(config: &Config) -> String {
    let parameter = |name: &str| config.parameters.get(name).and_then(Value::as_str).unwrap_or_default();
    let label = match parameter("worker") {
        "" => String::new(),
        label => format!(" with the label {label}"),
    };
    let configured_for = match config.executor.as_str() {
        AGENT_EXECUTOR => {
            let agent = match (parameter("agent"), parameter("capability")) {
                ("", "") => format!("an agent with the capability {}", config.task_type),
                ("", capability) => format!("an agent with the capability {capability}"),
                (agent, _) => format!("the agent {agent}"),
            };
            return format!("waiting for {agent}, which is busy or has not claimed the task");
        }
        "files" => format!("files in {}", parameter("root")),
        "command" => format!("the command template {}", parameter("template")),
        "sql" => format!("the SQL connection {}", parameter("connection")),
        NOOP_EXECUTOR => {
            return format!("no worker{label} has claimed the task: all are busy, or none is running");
        }
        other => format!("the executor {other}"),
    };
    format!(
        "no worker{label} has claimed the task: all are busy, or none is running that is configured for {configured_for}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::fixture;

    fn problem(status: u16) -> Error {
        let problem = json!({ "status": status, "code": "CODE", "detail": "why" });
        Error::Problem(Box::new(serde_json::from_value(problem).expect("a problem")))
    }

    #[test]
    fn retries_only_temporary_errors() {
        let foreign =
            |status| Error::UnexpectedResponse { url: "u".to_owned(), status, cause: "c".to_owned() };
        assert!(is_temporary(&Error::Unreachable { url: "u".to_owned(), cause: "c".to_owned() }));
        assert!([429, 502, 503, 504].into_iter().all(|status| is_temporary(&problem(status))));
        assert!(is_temporary(&foreign(Some(503))), "from a proxy");
        assert!(![401, 403, 404, 409, 422, 500].into_iter().any(|status| is_temporary(&problem(status))));
        assert!(!is_temporary(&foreign(None)) && !is_temporary(&foreign(Some(200))));
    }

    #[test]
    fn task_is_open_during_rollback() {
        let time = "2026-07-01T10:00:00.000000Z";
        let mut task = fixture::task();
        assert!(is_open(&task));
        let execution = |phase: &str, rollback: bool| {
            let rollback = rollback.then(|| json!({ "by": "ada", "reason": "because", "at": time }));
            let execution = json!({
                "attempt": 1, "agent_id": "w", "phase": phase, "lease_until": null, "started_at": time,
                "completed_at": null, "result": null, "output": null, "output_key": null, "error": null,
                "code": null, "rolled_back": null, "retry_count": 0, "grants": [], "stop": null, "rollback": rollback,
            });
            Some(serde_json::from_value(execution).expect("an execution"))
        };
        for (state, phase, rollback, open) in [
            (TaskState::Failed, "ENDED", false, false),
            (TaskState::Failed, "ENDED", true, true),
            (TaskState::Failed, "ROLLING_BACK", false, true),
            (TaskState::Applying, "STARTED", false, true),
            (TaskState::Completed, "ENDED", false, false),
        ] {
            task.state = state;
            task.execution = execution(phase, rollback);
            assert_eq!(is_open(&task), open, "{state} {phase} {rollback}");
        }
    }

    #[test]
    fn reports_locks_held_by_others() {
        let reason = |holders: &[&str], wait: f64| {
            let mut lock = fixture::task().lock_preview.remove(0);
            lock.holders = holders.iter().map(|holder| (*holder).to_owned()).collect();
            lock.expected_wait_seconds = wait;
            blocking_lock(&lock, "t-1")
        };
        let expected = "waiting for the lock resource:database:prod, held by nightly";
        assert_eq!(reason(&["nightly"], 90.0).as_deref(), Some(expected));
        assert_eq!(reason(&["nightly"], 0.0), None, "a shared lock");
        assert_eq!(reason(&["worker-1/t-1:1"], 90.0), None, "held by the task itself");
    }

    #[test]
    fn names_the_worker_that_the_task_needs() {
        let reason = |executor: &str, parameters: Value| {
            let mut config = fixture::task().config;
            config.executor = executor.to_owned();
            config.parameters = serde_json::from_value(parameters).expect("an object");
            missing_worker(&config)
        };
        for (executor, parameters, expected) in [
            ("files", json!({ "root": "/srv/x" }), "configured for files in /srv/x"),
            (
                "command",
                json!({ "template": "deploy", "worker": "eu" }),
                "no worker with the label eu has claimed the task",
            ),
            ("sql", json!({ "connection": "main" }), "configured for the SQL connection main"),
            ("http", json!({}), "configured for the executor http"),
            ("agent", json!({}), "waiting for an agent with the capability migration,"),
            ("agent", json!({ "capability": "deploy" }), "waiting for an agent with the capability deploy,"),
            ("agent", json!({ "agent": "ci-bot" }), "waiting for the agent ci-bot,"),
        ] {
            let reason = reason(executor, parameters);
            assert!(reason.contains(expected), "{expected:?} is missing in {reason:?}");
        }
    }
}
