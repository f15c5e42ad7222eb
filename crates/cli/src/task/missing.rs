//! What an approved task waits for, said once to whoever waits for it: locks that others hold, or somebody who could carry it out.
//!
//! It is only told. Nothing is decided by it, and what cannot be found out is not guessed.

use std::time::Duration;

use ade_client::wire::{LockPreview, SimulationRequest, Task};
use ade_client::{Client, Error};
use ade_domain::task::{AGENT, Config, NOOP, State};
use serde_json::Value;
use tokio::time::Instant;

use crate::output;

/// How long a task is usually approved before somebody begins to carry it out, and then some.
const USUAL: Duration = Duration::from_secs(3);

/// Tells it once for each time that the task is approved.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// When to look next; nothing, if it was told or is not asked for.
    look_at: Option<Instant>,
    was_approved: bool,
}

impl Missing {
    /// A look at the task as it is now; what it waits for is told if it is approved for longer than usual.
    pub(super) async fn seen(&mut self, client: &Client, task: &Task) {
        let is_approved = task.state == State::Approved;
        if is_approved != std::mem::replace(&mut self.was_approved, is_approved) {
            self.look_at = is_approved.then(|| Instant::now() + USUAL);
        }
        if self.look_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        // Whoever cannot be asked now is asked again: what is told late is told all the same.
        let told = why(client, task).await.ok().flatten();
        self.look_at = if told.is_some() { None } else { Some(Instant::now() + USUAL) };
        if let Some(told) = told {
            output::note(&format!("{} {told}", task.state));
        }
    }
}

async fn why(client: &Client, task: &Task) -> Result<Option<String>, Error> {
    if task.claimed_by.is_some() {
        // As they are now: those of the task itself are as they were when it was submitted.
        let asked = SimulationRequest { task_id: Some(task.task_id.clone()), ..SimulationRequest::default() };
        let locks = client.simulate(&asked).await?.lock_preview;
        return Ok(locks.iter().find_map(|lock| held(lock, &task.task_id)));
    }
    let tried = task.execution.as_ref().and_then(|execution| execution.error.as_deref());
    let again = tried.map(|error| format!("and tried again soon: {error}"));
    Ok(Some(again.unwrap_or_else(|| nobody(&task.config))))
}

/// Who holds a lock that the task does not get.
fn held(lock: &LockPreview, task_id: &str) -> Option<String> {
    let others: Vec<&str> =
        lock.holders.iter().map(String::as_str).filter(|holder| !holder.contains(task_id)).collect();
    if lock.unavailable {
        Some(format!("and waits until the lock {} can be asked for again", lock.lock))
    } else if lock.expected_wait_seconds > 0.0 && !others.is_empty() {
        Some(format!("and waits for the lock {}, held by {}", lock.lock, others.join(", ")))
    } else {
        None
    }
}

/// Who would have to be there. That nobody took the task is known; that nobody could is not: all who could may be busy.
fn nobody(config: &Config) -> String {
    let said = |name: &str| config.parameters.get(name).and_then(Value::as_str).unwrap_or_default();
    let label = match said("worker") {
        "" => String::new(),
        label => format!(" with the label {label}"),
    };
    let what = match config.executor.as_str() {
        AGENT => {
            let who = match (said("agent"), said("capability")) {
                ("", "") => format!("an agent that can {}", config.task_type),
                ("", capability) => format!("an agent that can {capability}"),
                (agent, _) => format!("the agent {agent}"),
            };
            return format!("and waits for {who}, who has not asked for it, or is busy");
        }
        "files" => format!("files in {}; start one that has this root", said("root")),
        "command" => format!("the command {}; start one that has this template", said("template")),
        "sql" => format!("sql on {}; start one that has this connection", said("connection")),
        NOOP => "anything; start one".to_owned(),
        other => format!("{other}; start one that does"),
    };
    format!("and no worker{label} has taken it: all are busy, or none carries out {what}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::page::fixture;
    use super::*;

    #[test]
    fn a_lock_is_told_that_others_hold() {
        let lock = |holders: &[&str], wait: f64| {
            let mut lock = fixture::task().lock_preview.remove(0);
            lock.holders = holders.iter().map(|one| (*one).to_owned()).collect();
            lock.expected_wait_seconds = wait;
            held(&lock, "t-1")
        };
        let told = "and waits for the lock resource:database:prod, held by nightly";
        assert_eq!(lock(&["nightly"], 90.0).as_deref(), Some(told));
        assert_eq!(lock(&["nightly"], 0.0), None, "it is shared");
        assert_eq!(lock(&["worker-1/t-1:1"], 90.0), None, "it is our own");
    }

    #[test]
    fn who_is_missing_is_told_by_what_the_task_needs() {
        let told = |executor: &str, parameters: Value| {
            let mut config = fixture::task().config;
            config.executor = executor.to_owned();
            config.parameters = serde_json::from_value(parameters).expect("an object");
            nobody(&config)
        };
        for (executor, parameters, says) in [
            (
                "files",
                json!({ "root": "/srv/x" }),
                "none carries out files in /srv/x; start one that has this root",
            ),
            (
                "command",
                json!({ "template": "deploy", "worker": "eu" }),
                "no worker with the label eu has taken it",
            ),
            ("sql", json!({ "connection": "main" }), "sql on main; start one that has this connection"),
            ("http", json!({}), "none carries out http; start one that does"),
            ("agent", json!({}), "waits for an agent that can migration,"),
            ("agent", json!({ "capability": "deploy" }), "waits for an agent that can deploy,"),
            ("agent", json!({ "agent": "ci-bot" }), "waits for the agent ci-bot,"),
        ] {
            let told = told(executor, parameters);
            assert!(told.contains(says), "{says:?} is missing in {told:?}");
        }
    }
}
