//! Nothing was lost: the server is asked for everything that it has, and that must be exactly what the clients created.
//!
//! Speed at which tasks go missing, or are carried out twice, is none. Whatever is not as it should be ends the measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ade_client::wire::Page;
use ade_domain::task::State;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::client::{Client, file};
use super::place::{LOOKS, Place};
use crate::approvals::sign_in;
use crate::error::{BenchError, ErrorKind};
use crate::link::Link;

/// What was looked at, all of it as it should be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked {
    pub(super) tasks: usize,
    /// Tasks that were tried more than once before they were completed.
    pub(super) tried_again: usize,
    pub(super) files: usize,
}

#[derive(Debug, Deserialize)]
struct Task {
    task_id: String,
    state: State,
    execution: Option<Execution>,
}

#[derive(Debug, Deserialize)]
struct Execution {
    attempt: u64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    task_id: Option<String>,
}

fn wrong(message: String) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, message)
}

async fn every<T: DeserializeOwned>(link: &mut Link, list: &str) -> Result<Vec<T>, BenchError> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let page = link.get(&format!("/api/v1/{list}limit=200{next}")).await?.expect(200)?;
        let page: Page<T> = page.read()?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => return Ok(all),
        }
    }
}

pub(super) async fn everything(place: &Place, clients: &[Client]) -> Result<Checked, BenchError> {
    let target = &place.subject.target;
    let mut link = sign_in(&mut target.link().await?, target, LOOKS, false).await?.link().await?;
    let created: BTreeSet<&str> =
        clients.iter().flat_map(|client| &client.created).map(String::as_str).collect();
    let many = clients.iter().map(|client| client.created.len()).sum::<usize>();
    if created.len() != many {
        return Err(wrong(format!("{many} tasks were created, and only {} ids given", created.len())));
    }
    let tasks: Vec<Task> = every(&mut link, "tasks?").await?;
    if let Some(task) = tasks.iter().find(|task| task.state != State::Completed) {
        return Err(wrong(format!("task {} is {:?} in the end", task.task_id, task.state)));
    }
    let stored: BTreeSet<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
    if stored != created || tasks.len() != many {
        return Err(wrong(format!("{many} tasks were created, and {} are stored", tasks.len())));
    }
    let entries: Vec<Entry> = every(&mut link, "audit?action=task.complete&").await?;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for id in entries.iter().filter_map(|entry| entry.task_id.as_deref()) {
        *times.entry(id).or_default() += 1;
    }
    let once = times.len() == many && times.iter().all(|(id, times)| *times == 1 && created.contains(id));
    if !once {
        let entries = entries.len();
        return Err(wrong(format!("{many} tasks were created, and completing is recorded {entries} times")));
    }
    let again = |task: &&Task| task.execution.as_ref().is_none_or(|execution| execution.attempt != 1);
    let tried_again = tasks.iter().filter(again).count();
    Ok(Checked { tasks: many, tried_again, files: files(&place.root, clients)? })
}

/// Every file that was wanted is there and as it was wanted, and no other; how many, if tasks write files.
fn files(root: &Path, clients: &[Client]) -> Result<usize, BenchError> {
    let mut found = Vec::new();
    walk(root, &mut found)?;
    let many = found.len();
    let mut wanted = 0;
    for client in clients.iter().filter(|client| client.writes_files()) {
        for number in 0..client.created.len() {
            let (path, content) = file(client.number, number);
            if std::fs::read_to_string(root.join(&path)).ok().as_deref() != Some(content.as_str()) {
                return Err(wrong(format!("the file {path} is not as it was wanted")));
            }
            wanted += 1;
        }
    }
    if many != wanted {
        return Err(wrong(format!("{wanted} files were wanted, and {many} are there")));
    }
    Ok(many)
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), BenchError> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}
