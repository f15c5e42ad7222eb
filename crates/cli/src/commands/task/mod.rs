//! `ade task`: create, submit, inspect and control tasks. Each command is one call; changes print the new state.

#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod page;
pub(crate) mod sections;
mod wait;

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{
    Comment, OverrideRequest, PreviewStatus, ReasonRequest, Task, TaskRequest, TaskState,
};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use owo_colors::OwoColorize;

use crate::failure::Failure;
use crate::input;
use crate::output::list::{ListArgs, present};
use crate::output::{self, OutputFormat, Tone, first_line, safe, safe_lines, time};
use sections::{risk_level, state_label, state_tone};

/// Preview errors that a command prints; the task page shows all of them.
const MAX_PRINTED_ERRORS: usize = 10;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List tasks, newest first
    Ls(FilterArgs),
    /// Show a task: preview, risk, approvals required, reviewers, locks
    Show(TaskArgs),
    /// Create a draft
    Create(CreateArgs),
    /// Create a task and submit it for review; with --wait wait until it has ended
    Propose(ProposeArgs),
    /// Change a task; approvals given so far no longer count
    Edit(EditArgs),
    /// Submit a draft for review
    Submit(TaskArgs),
    /// Cancel a task
    Cancel(CancelArgs),
    /// Revoke the approval of a task that is not being applied yet
    Revoke(ReasonArgs),
    /// Create a new draft from a rejected or failed task
    Resubmit(TaskArgs),
    /// Delete a draft
    Rm {
        /// Id of the task
        #[arg(value_name = "TASK")]
        task_id: String,
    },
    /// Comment on a task
    Comment(CommentArgs),
    /// List the comments on a task
    Comments(TaskListArgs),
    /// List the audit entries of a task
    Audit(TaskListArgs),
    /// Request a decision that overrides the policies (admin); a second admin must confirm it
    Override(OverrideArgs),
    /// Confirm the override that another admin requested (admin)
    Confirm(TaskArgs),
    /// Move an approved task to the head of the queue (admin)
    Force(ReasonArgs),
    /// Show the output of a task
    Logs(LogArgs),
    /// Stop a task that is being applied (admin)
    Stop(ReasonArgs),
    /// Roll back the changes of a failed task (admin)
    Rollback(ReasonArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FilterArgs {
    /// Only tasks in this state, such as REVIEWING
    #[arg(long)]
    state: Option<String>,
    /// Only tasks of this author
    #[arg(long, value_name = "USER")]
    author: Option<String>,
    /// Only tasks that touch this resource, as type:id
    #[arg(long)]
    resource: Option<String>,
    /// Only tasks with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only tasks of this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TaskArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TaskListArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CreateArgs {
    /// The task as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Also submit it for review
    #[arg(long)]
    submit: bool,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ProposeArgs {
    /// The task as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Wait until the task has ended; survives restarts of the server. The exit code is 0 if it completed, 3 if it was
    /// rejected, 4 if it failed, 1 if it was cancelled
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LogArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Follow the output until the task has ended and no rollback is running; survives restarts of the server
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct EditArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// The fields to change, as YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Change it only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CancelArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReasonArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CommentArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// The comment
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct OverrideArgs {
    /// Id of the task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: String,
    /// Incident that requires the override
    #[arg(long)]
    ticket: String,
    #[command(flatten)]
    format: OutputFormat,
}

impl ReasonArgs {
    fn body(&self) -> ReasonRequest {
        ReasonRequest { reason: Some(self.reason.clone()) }
    }
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    let (format, task) = match command {
        Command::Ls(args) => return list(client, &args).await,
        Command::Show(args) => return page::show(client, &args).await,
        Command::Comments(args) => return list_comments(client, &args).await,
        Command::Audit(args) => {
            let fetch = async |query: &[(&str, &str)]| client.task_audit(&args.task_id, query).await;
            return args.list.show(&[], fetch, "no audit entries found", super::audit::table).await;
        }
        Command::Propose(args) => return wait::propose(client, &args).await,
        Command::Logs(args) => return wait::logs(client, &args).await,
        Command::Rm { task_id } => {
            client.delete_task(&task_id).await?;
            return output::line(&format!("{} is deleted", safe(&task_id)));
        }
        Command::Comment(args) => {
            let comment = client.create_comment(&args.task_id, &args.text.join(" ")).await?;
            return args.format.print(&comment, |comment| format!("commented on {}", safe(&comment.task_id)));
        }
        Command::Create(args) => {
            let draft = client.create_task(&input::read::<TaskRequest>(&args.file)?).await?;
            let task = if args.submit { submit_draft(client, &draft).await? } else { draft };
            (args.format, with_preview_warnings(task))
        }
        Command::Edit(args) => {
            let patch: TaskRequest = input::read(&args.file)?;
            let task = client.update_task(&args.task_id, args.revision, &patch).await?;
            (args.format, with_preview_warnings(task))
        }
        Command::Submit(args) => {
            (args.format, with_preview_warnings(client.submit_task(&args.task_id).await?))
        }
        Command::Cancel(args) => {
            (args.format, client.cancel_task(&args.task_id, &ReasonRequest { reason: args.reason }).await?)
        }
        Command::Override(args) => {
            let request = OverrideRequest { reason: Some(args.reason), incident_ticket: Some(args.ticket) };
            (args.format, client.override_task(&args.task_id, &request).await?)
        }
        Command::Resubmit(args) => (args.format, client.resubmit_task(&args.task_id).await?),
        Command::Confirm(args) => (args.format, client.confirm_override(&args.task_id).await?),
        Command::Revoke(args) => (args.format, client.revoke_approval(&args.task_id, &args.body()).await?),
        Command::Force(args) => (args.format, client.force_apply_task(&args.task_id, &args.body()).await?),
        Command::Stop(args) => (args.format, client.stop_task(&args.task_id, &args.body()).await?),
        Command::Rollback(args) => (args.format, client.roll_back_task(&args.task_id, &args.body()).await?),
    };
    format.print(&task, summary)
}

/// Submits a draft that was just created. If that fails, the hint names the draft, whose id would be lost otherwise.
async fn submit_draft(client: &Client, draft: &Task) -> Result<Task, Failure> {
    let id = &draft.task_id;
    client.submit_task(id).await.map_err(|error| {
        Failure::from(error).hint(format!(
            "the draft {id} was created: submit it again with ade task submit {id}, or delete it with ade task rm {id}"
        ))
    })
}

/// Prints why the preview failed, so that the author knows why the task needs a review.
fn with_preview_warnings(task: Task) -> Task {
    preview_warnings(&task).iter().for_each(|text| output::warning(text));
    task
}

fn preview_warnings(task: &Task) -> Vec<String> {
    if task.preview.status != PreviewStatus::Failed && task.preview.errors.is_empty() {
        return Vec::new();
    }
    let effect = "the preview failed: the task is scored as if it could change anything, and is never approved automatically";
    let errors = task.preview.errors.iter().take(MAX_PRINTED_ERRORS).cloned();
    let more = task.preview.errors.len().saturating_sub(MAX_PRINTED_ERRORS);
    let more = (more > 0).then(|| format!("and {more} more: ade task show {}", task.task_id));
    std::iter::once(effect.to_owned()).chain(errors).chain(more).collect()
}

/// The state of a task and the next step, in one line.
fn summary(task: &Task) -> String {
    let id = safe(&task.task_id);
    let next = match task.state {
        TaskState::Draft => format!("; submit it with ade task submit {id}"),
        TaskState::Reviewing if task.override_request.is_some() => {
            format!("; another admin has one hour to confirm the override with ade task confirm {id}")
        }
        TaskState::Reviewing => {
            match task.requirements.iter().map(|requirement| requirement.needed).max().unwrap_or(0) {
                0 => format!("; see whom it waits for with ade task show {id}"),
                1 => "; 1 more approval required".to_owned(),
                more => format!("; at least {more} more approvals required"),
            }
        }
        TaskState::Approved => {
            task.auto_approved.as_deref().map(|why| format!(": {}", safe(why))).unwrap_or_default()
        }
        _ => String::new(),
    };
    let predecessor = task.predecessor.as_deref().filter(|_| task.state == TaskState::Draft);
    let predecessor = predecessor.map(|id| format!(", created from {}", safe(id))).unwrap_or_default();
    format!("{} is {}{predecessor}{next}", id.bold(), state_label(task.state))
}

async fn list(client: &Client, args: &FilterArgs) -> Result<(), Failure> {
    let state = args.state.as_deref().map(str::to_uppercase);
    let filters = present(&[
        ("state", &state),
        ("author", &args.author),
        ("resource", &args.resource),
        ("tag", &args.tag),
        ("type", &args.task_type),
    ]);
    let fetch = async |query: &[(&str, &str)]| client.tasks(query).await;
    args.list.show(&filters, fetch, "no tasks found", table).await
}

fn table(tasks: &[Task]) -> Table {
    let now = time::now();
    let mut table =
        output::table(&["TASK", "STATE", "SINCE", "RISK", "TYPE", "AUTHOR", "NEEDED", "DESCRIPTION"]);
    for task in tasks {
        let since = task.metadata.since.get(&task.state.to_string());
        let needed: u32 = task.requirements.iter().map(|requirement| requirement.needed).sum();
        let risk = task.risk.as_ref().map(|risk| (risk.score, risk_level(risk.level)));
        let risk = risk.map(|(score, (word, tone))| tone.cell(format!("{score} {word}")));
        table.add_row([
            Cell::new(safe(&task.task_id)),
            state_tone(task.state).cell(&task.state.to_string()),
            Cell::new(since.map(|since| time::since(*since, now)).unwrap_or_default()),
            risk.unwrap_or_else(|| Tone::Plain.cell("")),
            Cell::new(safe(&task.config.task_type)),
            Cell::new(safe(&task.metadata.author_id)),
            Cell::new(if needed > 0 { needed.to_string() } else { String::new() }),
            Cell::new(first_line(&task.config.description)),
        ]);
    }
    table
}

async fn list_comments(client: &Client, args: &TaskListArgs) -> Result<(), Failure> {
    let fetch = async |query: &[(&str, &str)]| client.comments(&args.task_id, query).await;
    let listing = args.list.fetch(&[], fetch).await?;
    if args.list.json || listing.items.is_empty() || listing.has_more {
        return args.list.print(&listing, "no comments found", comment_table);
    }
    let now = time::now();
    for comment in &listing.items {
        let when = time::ago(comment.created_at, now);
        output::line(&format!("{} {}", safe(&comment.author_id).bold(), when.dimmed()))?;
        for line in safe_lines(&comment.text) {
            output::line(&format!("  {line}"))?;
        }
    }
    Ok(())
}

fn comment_table(comments: &[Comment]) -> Table {
    let mut table = output::table(&["TIME", "AUTHOR", "COMMENT"]);
    for comment in comments {
        let text: Vec<String> = safe_lines(&comment.text).collect();
        table.add_row([time::timestamp(comment.created_at), safe(&comment.author_id), text.join("\n")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_state_and_next_step() {
        let mut task = fixture::task();
        let plain = |task: &Task| anstream::adapter::strip_str(&summary(task)).to_string();
        assert_eq!(plain(&task), "t-1 is REVIEWING; 1 more approval required");
        task.state = TaskState::Draft;
        assert_eq!(plain(&task), "t-1 is DRAFT, created from t-0; submit it with ade task submit t-1");
        task.state = TaskState::Approved;
        assert_eq!(plain(&task), "t-1 is APPROVED");
    }

    #[test]
    fn limits_printed_preview_errors() {
        let mut task = fixture::task();
        assert_eq!(preview_warnings(&task), Vec::<String>::new());
        task.preview.errors = (0..12).map(|number| format!("no {number}")).collect();
        let warnings = preview_warnings(&task);
        assert!(warnings[0].contains("never approved automatically"), "{warnings:?}");
        assert_eq!((warnings[1].as_str(), warnings[10].as_str()), ("no 0", "no 9"));
        assert_eq!(warnings[11..], ["and 2 more: ade task show t-1"]);
    }
}
