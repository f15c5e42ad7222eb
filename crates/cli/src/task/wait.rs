//! Proposing and waiting for the end, and following what is said while a task is carried out. Both ask again and again, also while
//! the server is away: people decide in days, and servers are restarted meanwhile.

use std::time::Duration;

use ade_client::wire::{LogLine, Page, Task, TaskRequest};
use ade_client::{Backoff, Client, Error};
use ade_domain::task::{Phase, State};
use owo_colors::OwoColorize;

use super::act;
use super::missing::Missing;
use crate::documents;
use crate::failure::{Failure, Kind};
use crate::output::{self, safe};

/// How often is asked.
const EVERY: Duration = Duration::from_millis(300);

/// A draft is made and submitted; with `--wait` until it has ended.
pub(super) async fn propose(client: &Client, args: &super::ProposeArgs) -> Result<(), Failure> {
    let request: TaskRequest = documents::read(&args.file)?;
    let draft = client.make_task(&request).await?;
    let task = act::submit_new(client, &draft).await?;
    act::warn(&task);
    if !args.wait {
        return act::told(args.shape, &task);
    }
    let task = ended(client, task, args.shape.json).await?;
    act::told(args.shape, &task)?;
    verdict(&task)
}

/// Asks until it is answered: a server that is away, busy or restarted is waited for, and people are told once.
#[derive(Default)]
struct Patience {
    backoff: Backoff,
    told: bool,
}

impl Patience {
    async fn ask<T>(&mut self, ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Failure> {
        loop {
            match ask().await {
                Ok(answer) => {
                    if std::mem::take(self).told {
                        output::note("the server answers again");
                    }
                    return Ok(answer);
                }
                Err(error) if passes(&error) => {
                    if !std::mem::replace(&mut self.told, true) {
                        output::note(&format!("the server does not answer; waiting for it: {error}"));
                    }
                    let least = error.retry_after_seconds().map(Duration::from_secs);
                    tokio::time::sleep(self.backoff.pause(least).max(EVERY)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether it is the server that cannot answer now, or something in between, and not what was asked.
fn passes(error: &Error) -> bool {
    let status = match error {
        Error::Unreachable { .. } => return true,
        Error::Problem(problem) => problem.status,
        Error::Foreign { status, .. } => status.unwrap_or_default(),
    };
    matches!(status, 429 | 502..=504)
}

/// Whether something may still happen to a task by itself: it has not ended, or is changed back, or somebody wants that.
fn is_open(task: &Task) -> bool {
    let undone = task.execution.as_ref().is_some_and(|execution| {
        execution.phase == Phase::RollingBack || (execution.phase == Phase::Ended && execution.undo.is_some())
    });
    undone || !task.state.is_final()
}

/// Says each state as it comes, and what is said meanwhile, until the task has ended.
async fn ended(client: &Client, mut task: Task, quiet: bool) -> Result<Task, Failure> {
    let mut shown: Option<(State, Option<Phase>)> = None;
    let (mut last, mut patience, task_id) = (0, Patience::default(), task.task_id.clone());
    let mut missing = Missing::default();
    loop {
        let phase = task.execution.as_ref().map(|execution| execution.phase);
        if shown != Some((task.state, phase)) && !quiet {
            output::note(&progress(&task));
        }
        shown = Some((task.state, phase));
        if !quiet && task.execution.is_some() {
            last = print_new(&mut patience, client, &task_id, last).await?;
        }
        if !is_open(&task) {
            return Ok(task);
        }
        missing.seen(client, &task).await;
        tokio::time::sleep(EVERY).await;
        task = patience.ask(async || client.task(&task_id).await).await?;
    }
}

fn progress(task: &Task) -> String {
    let state = task.state;
    match (task.state, &task.execution) {
        (State::Reviewing, _) => {
            let open =
                task.requirements.iter().filter(|one| (one.approved_by.len() as u32) < one.needed).count();
            let anew = task.reopened.as_ref().map(|one| format!(" anew ({})", one.why)).unwrap_or_default();
            format!("{state}{anew}: {} still waits for people (ade task show {})", times(open), task.task_id)
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
    let kind = match task.state {
        State::Completed => return Ok(()),
        State::Rejected => Kind::Rejected,
        State::Failed => Kind::Failed,
        _ => Kind::No,
    };
    let error = task.execution.as_ref().and_then(|execution| execution.error.clone());
    let why = error.map(|error| format!(": {error}")).unwrap_or_default();
    let hint = match task.state {
        State::Failed => {
            format!("ade task show {} says what was left; ade task resubmit makes a new draft", task.task_id)
        }
        _ => format!("ade task show {} says why", task.task_id),
    };
    Err(Failure::new(kind, format!("the task is {}{why}", task.state)).hint(hint))
}

/// What was said while a task was carried out.
pub(super) async fn logs(client: &Client, args: &super::LogArgs) -> Result<(), Failure> {
    let (mut last, mut patience) = (0, Patience::default());
    // A server that was never there is not waited for: its address may be wrong.
    let mut task = client.task(&args.task_id).await?;
    loop {
        // Looked at before what was said: what comes in between is not missed.
        last = print_new(&mut patience, client, &args.task_id, last).await?;
        if !args.follow || !is_open(&task) {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
        task = patience.ask(async || client.task(&args.task_id).await).await?;
    }
}

async fn print_new(
    patience: &mut Patience,
    client: &Client,
    task_id: &str,
    mut last: u64,
) -> Result<u64, Failure> {
    loop {
        let page: Page<LogLine> = patience.ask(async || client.task_logs(task_id, last).await).await?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::page::fixture;
    use super::*;

    fn problem(status: u16) -> Error {
        let problem = json!({ "status": status, "code": "CODE", "detail": "why" });
        Error::Problem(Box::new(serde_json::from_value(problem).expect("a problem")))
    }

    #[test]
    fn only_what_passes_by_itself_is_waited_for() {
        let foreign = |status| Error::Foreign { url: "u".to_owned(), status, cause: "c".to_owned() };
        assert!(passes(&Error::Unreachable { url: "u".to_owned(), cause: "c".to_owned() }));
        assert!([429, 502, 503, 504].into_iter().all(|status| passes(&problem(status))));
        assert!(passes(&foreign(Some(503))), "of a proxy in between");
        assert!(![401, 403, 404, 409, 422, 500].into_iter().any(|status| passes(&problem(status))));
        assert!(!passes(&foreign(None)) && !passes(&foreign(Some(200))));
    }

    #[test]
    fn a_task_is_open_as_long_as_something_is_changed_back() {
        let time = "2026-07-01T10:00:00.000000Z";
        let mut task = fixture::task();
        assert!(is_open(&task));
        let execution = |phase: &str, undo: bool| {
            let asked = undo.then(|| json!({ "by": "ada", "reason": "because", "at": time }));
            let execution = json!({
                "attempt": 1, "agent_id": "w", "phase": phase, "lease_until": null, "started_at": time,
                "completed_at": null, "result": null, "output": null, "output_key": null, "error": null,
                "code": null, "rolled_back": null, "retry_count": 0, "grants": [], "stop": null, "undo": asked,
            });
            Some(serde_json::from_value(execution).expect("an execution"))
        };
        for (state, phase, undo, open) in [
            (State::Failed, "ENDED", false, false),
            (State::Failed, "ENDED", true, true),
            (State::Failed, "ROLLING_BACK", false, true),
            (State::Applying, "STARTED", false, true),
            (State::Completed, "ENDED", false, false),
        ] {
            task.state = state;
            task.execution = execution(phase, undo);
            assert_eq!(is_open(&task), open, "{state} {phase} {undo}");
        }
    }
}
