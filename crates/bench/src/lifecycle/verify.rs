//! Verifies after a run that the server has exactly the tasks that the clients created, each completed exactly once.
//!
//! Any difference fails the benchmark: throughput with lost or repeated tasks is worthless.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ade_client::wire::{Page, TaskState};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{Client, file};
use super::environment::{AUDITOR, Environment};
use crate::approvals::with_token_of;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::Connection;

#[derive(Debug, Clone, Copy)]
pub(super) struct Verified {
    pub(super) tasks: usize,
    /// Tasks with more than one attempt.
    pub(super) retried: usize,
    pub(super) files: usize,
}

#[derive(Debug, Deserialize)]
struct Task {
    task_id: String,
    state: TaskState,
    execution: Option<Execution>,
}

#[derive(Debug, Deserialize)]
struct Execution {
    attempt: u64,
}

#[derive(Debug, Deserialize)]
struct AuditEntry {
    task_id: Option<String>,
}

fn failed(message: String) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, message)
}

async fn fetch_all<T: DeserializeOwned>(
    connection: &mut Connection,
    list: &str,
) -> Result<Vec<T>, BenchError> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let response = connection.get(&format!("/api/v1/{list}limit=200{cursor}")).await?.expect(200)?;
        let page: Page<T> = response.json()?;
        items.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(items),
        }
    }
}

pub(super) async fn verify_tasks(
    environment: &Environment,
    clients: &[Client],
) -> Result<Verified, BenchError> {
    let target = &environment.server.target;
    let mut connection =
        with_token_of(&mut target.connect().await?, target, AUDITOR, false).await?.connect().await?;
    let created: BTreeSet<&str> =
        clients.iter().flat_map(|client| &client.created).map(String::as_str).collect();
    let count = clients.iter().map(|client| client.created.len()).sum::<usize>();
    if created.len() != count {
        return Err(failed(format!(
            "{count} tasks were created, but only {} have different ids",
            created.len()
        )));
    }
    let tasks: Vec<Task> = fetch_all(&mut connection, "tasks?").await?;
    if let Some(task) = tasks.iter().find(|task| task.state != TaskState::Completed) {
        return Err(failed(format!("task {} is {:?} at the end, not COMPLETED", task.task_id, task.state)));
    }
    let stored: BTreeSet<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
    if stored != created || tasks.len() != count {
        return Err(failed(format!("{count} tasks were created, but {} are stored", tasks.len())));
    }
    let entries: Vec<AuditEntry> = fetch_all(&mut connection, "audit?action=task.complete&").await?;
    let mut completions: BTreeMap<&str, usize> = BTreeMap::new();
    for id in entries.iter().filter_map(|entry| entry.task_id.as_deref()) {
        *completions.entry(id).or_default() += 1;
    }
    let are_completed_once = completions.len() == count
        && completions.iter().all(|(id, times)| *times == 1 && created.contains(id));
    if !are_completed_once {
        let entries = entries.len();
        return Err(failed(format!(
            "{count} tasks were created, but the audit log has {entries} completions"
        )));
    }
    let is_retried = |task: &&Task| task.execution.as_ref().is_none_or(|execution| execution.attempt != 1);
    let retried = tasks.iter().filter(is_retried).count();
    Ok(Verified { tasks: count, retried, files: verify_files(&environment.root, clients)? })
}

/// Checks that exactly the requested files exist, with the requested content. Returns their number.
fn verify_files(root: &Path, clients: &[Client]) -> Result<usize, BenchError> {
    let mut found = Vec::new();
    collect_files(root, &mut found)?;
    let mut expected = 0;
    for client in clients.iter().filter(|client| client.writes_files()) {
        for number in 0..client.created.len() {
            let (path, content) = file(client.number, number);
            if std::fs::read_to_string(root.join(&path)).ok().as_deref() != Some(content.as_str()) {
                return Err(failed(format!("the file {path} does not have the requested content")));
            }
            expected += 1;
        }
    }
    if found.len() != expected {
        return Err(failed(format!("{} files exist, but {expected} were requested", found.len())));
    }
    Ok(expected)
}

fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), BenchError> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect_files(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}
