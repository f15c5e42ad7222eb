//! Proposing and waiting for the end, and following what is said while a task is carried out. Both ask again and again.

use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{LogLine, Task, TaskRequest};
use ade_domain::task::{Phase, State};
use owo_colors::OwoColorize;

use super::act;
use crate::documents;
use crate::failure::{Failure, Kind};
use crate::output::{self, safe};

/// How often is asked.
const EVERY: Duration = Duration::from_millis(300);

/// A draft is made and submitted; with `--wait` until it has ended.
pub(super) async fn propose(client: &Client, args: &super::ProposeArgs) -> Result<(), Failure> {
    let request: TaskRequest = documents::read(&args.file)?;
    let draft = client.make_task(&request).await?;
    let task = client.submit_task(&draft.task_id).await?;
    if !args.wait {
        return act::told(args.shape, &task);
    }
    let task = ended(client, task, args.shape.json).await?;
    act::told(args.shape, &task)?;
    verdict(&task)
}

/// Says each state as it comes, and what is said meanwhile, until the task has ended.
async fn ended(client: &Client, mut task: Task, quiet: bool) -> Result<Task, Failure> {
    let mut shown: Option<(State, Option<Phase>)> = None;
    let mut last = 0;
    loop {
        let phase = task.execution.as_ref().map(|execution| execution.phase);
        if shown != Some((task.state, phase)) && !quiet {
            output::note(&progress(&task));
        }
        shown = Some((task.state, phase));
        if !quiet && task.execution.is_some() {
            last = print_new(client, &task.task_id, last).await?;
        }
        let undone = phase != Some(Phase::RollingBack);
        if task.state.is_final() && undone {
            return Ok(task);
        }
        tokio::time::sleep(EVERY).await;
        task = client.task(&task.task_id).await?;
    }
}

fn progress(task: &Task) -> String {
    let state = task.state;
    match (task.state, &task.execution) {
        (State::Reviewing, _) => {
            let open =
                task.requirements.iter().filter(|one| (one.approved_by.len() as u32) < one.needed).count();
            format!("{state}: {} still waits for people (ade task show {})", times(open), task.task_id)
        }
        (State::Applying, Some(execution)) => {
            let phase = match execution.phase {
                Phase::Prepared => "its locks are held",
                Phase::Started => "it is carried out",
                Phase::RollingBack => "what was changed is changed back",
                Phase::Ended => "it is over",
            };
            format!("{state}: attempt {}, {phase}", execution.attempt)
        }
        _ => state.to_string(),
    }
}

fn times(open: usize) -> String {
    if open == 1 { "one requirement".to_owned() } else { format!("{open} requirements") }
}

/// The exit code says how it ended.
fn verdict(task: &Task) -> Result<(), Failure> {
    if task.state == State::Completed {
        return Ok(());
    }
    let error = task.execution.as_ref().and_then(|execution| execution.error.clone());
    let why = error.map(|error| format!(": {error}")).unwrap_or_default();
    let hint = match task.state {
        State::Failed => {
            format!("ade task show {} says what was left; ade task resubmit makes a new draft", task.task_id)
        }
        _ => format!("ade task show {} says why", task.task_id),
    };
    Err(Failure::new(Kind::No, format!("the task is {}{why}", task.state)).hint(hint))
}

/// What was said while a task was carried out.
pub(super) async fn logs(client: &Client, args: &super::LogArgs) -> Result<(), Failure> {
    let mut last = 0;
    loop {
        // Looked at before what was said: what comes in between is not missed.
        let task = client.task(&args.task_id).await?;
        last = print_new(client, &args.task_id, last).await?;
        if !args.follow || task.state.is_final() {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn print_new(client: &Client, task_id: &str, mut last: u64) -> Result<u64, Failure> {
    loop {
        let page = client.task_logs(task_id, last).await?;
        for line in &page.items {
            print(line)?;
            last = line.number;
        }
        if page.next_cursor.is_none() {
            return Ok(last);
        }
    }
}

fn print(line: &LogLine) -> Result<(), Failure> {
    let mark = format!("{} │", line.attempt);
    for text in line.text.lines() {
        output::line(&format!("{} {}", mark.dimmed(), safe(text)))?;
    }
    Ok(())
}
