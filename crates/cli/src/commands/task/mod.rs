//! `ade task`: create, submit, inspect and control tasks. Each command is one call; changes print the new state.

pub(crate) mod page;
pub(crate) mod sections;
mod wait;

use std::path::{Path, PathBuf};

use ade_client::Client;
use ade_client::wire::{Comment, OverrideRequest, PreviewStatus, ReasonRequest, Task, TaskState};
use clap::{Args as ClapArgs, Subcommand};
use owo_colors::OwoColorize;

use super::answer::{self, AnswerArgs};
use super::login::deciding::PasswordSource;
use crate::failure::{Failure, Result};
use crate::input;
use crate::output::list::{ListArgs, fetch_up_to, present};
use crate::output::{self, OutputFormat, Table, Tone, first_line, safe, safe_lines, time};
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
    Create {
        /// The task as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Also submit it for review
        #[arg(long)]
        submit: bool,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Create a task and submit it for review; with --wait wait until it has ended
    Propose {
        /// The task as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Wait until the task has ended; survives restarts of the server. The exit code is 0 if it completed, 3 if it was
        /// rejected, 4 if it failed, 1 if it was cancelled
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Change a task; approvals given so far no longer count
    Edit {
        #[command(flatten)]
        args: TaskArgs,
        /// The fields to change, as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Change it only if it still has this revision
        #[arg(long, value_name = "NUMBER")]
        revision: Option<u64>,
    },
    /// Submit a draft for review
    Submit(TaskArgs),
    /// Cancel a task
    Cancel {
        #[command(flatten)]
        args: TaskArgs,
        /// Reason, recorded in the audit log
        #[arg(long)]
        reason: Option<String>,
    },
    /// Revoke the approval of a task that is not being applied yet
    Revoke(ReasonArgs),
    /// Create a new draft from a rejected or failed task
    Resubmit(TaskArgs),
    /// Delete a draft
    Rm {
        /// Id of the task
        task: String,
    },
    /// Archive a cancelled task at once, instead of after 90 days; an admin can restore it
    Archive {
        /// Id of the task
        task: String,
    },
    /// Comment on a task
    Comment {
        #[command(flatten)]
        args: TaskArgs,
        /// The comment
        #[arg(required = true, value_name = "TEXT")]
        text: Vec<String>,
    },
    /// List the comments on a task
    Comments(TaskListArgs),
    /// List the audit entries of a task
    Audit(TaskListArgs),
    /// Request a decision that overrides the policies (admin); a second admin must confirm it
    Override {
        #[command(flatten)]
        args: TaskArgs,
        /// Reason, recorded in the audit log
        #[arg(long)]
        reason: String,
        /// Incident that requires the override
        #[arg(long)]
        ticket: String,
    },
    /// Confirm the override that another admin requested (admin)
    Confirm {
        #[command(flatten)]
        args: TaskArgs,
        #[command(flatten)]
        answer: AnswerArgs,
    },
    /// Move an approved task to the head of the queue (admin)
    Force(ReasonArgs),
    /// Show the output of a task
    Logs {
        /// Id of the task
        task: String,
        /// Follow the output until the task has ended and no rollback is running; survives restarts of the server
        #[arg(short, long)]
        follow: bool,
    },
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
    /// Only tasks of this level of risk, such as HIGH
    #[arg(long, value_name = "LEVEL")]
    risk: Option<String>,
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
    kind: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TaskArgs {
    /// Id of the task
    task: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TaskListArgs {
    /// Id of the task
    task: String,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReasonArgs {
    /// Id of the task
    task: String,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: OutputFormat,
}

impl ReasonArgs {
    fn body(&self) -> ReasonRequest {
        ReasonRequest { reason: Some(self.reason.clone()) }
    }
}

pub(crate) async fn run(client: &Client, (command, password): (Command, PasswordSource)) -> Result {
    match command {
        Command::Override { .. } | Command::Confirm { .. } | Command::Revoke(_) | Command::Force(_) => {
            password.decide(client, async |client| execute(client, command).await).await
        }
        _ => execute(client, command).await,
    }
}

async fn execute(client: &Client, command: Command) -> Result {
    let (format, task) = match command {
        Command::Ls(args) => return list(client, &args).await,
        Command::Show(args) => return page::show(client, &args).await,
        Command::Comments(args) => return list_comments(client, &args).await,
        Command::Audit(args) => {
            let fetch = async |query: &[(&str, &str)]| client.task_audit(&args.task, query).await;
            return args.list.show(&[], fetch, super::audit::table).await;
        }
        Command::Logs { task, follow } => return wait::logs(client, &task, follow).await,
        Command::Archive { task } => {
            client.archive_task(&task).await?;
            return output::line(format_args!("{} is archived", safe(&task)));
        }
        Command::Rm { task } => {
            client.delete_task(&task).await?;
            return output::line(format_args!("{} is deleted", safe(&task)));
        }
        Command::Comment { args: TaskArgs { task, format }, text } => {
            let comment = client.create_comment(&task, &text.join(" ")).await?;
            return format.print(&comment, |comment| format!("commented on {}", safe(&comment.task_id)));
        }
        Command::Create { file, submit, format } => (format, create(client, &file, submit).await?),
        Command::Propose { file, wait, format } => {
            let task = create(client, &file, true).await?;
            if wait {
                return wait::wait(client, task, format).await;
            }
            (format, task)
        }
        Command::Edit { args: TaskArgs { task, format }, file, revision } => {
            let task = client.update_task(&task, revision, &input::read(&file)?).await?;
            (format, with_preview_warnings(task))
        }
        Command::Submit(args) => (args.format, with_preview_warnings(client.submit_task(&args.task).await?)),
        Command::Cancel { args: TaskArgs { task, format }, reason } => {
            (format, client.cancel_task(&task, &ReasonRequest { reason }).await?)
        }
        Command::Override { args: TaskArgs { task, format }, reason, ticket } => {
            let request = OverrideRequest { reason: Some(reason), incident_ticket: Some(ticket) };
            (format, client.override_task(&task, &request).await?)
        }
        Command::Resubmit(args) => (args.format, client.resubmit_task(&args.task).await?),
        Command::Confirm { args: TaskArgs { task, format }, answer } => {
            let shown = client.task(&task).await?;
            let answer = answer::answer(&shown, answer)?;
            (format, client.confirm_override(&task, Some(shown.revision), &answer).await?)
        }
        Command::Revoke(args) => (args.format, client.revoke_approval(&args.task, &args.body()).await?),
        Command::Force(args) => (args.format, client.force_apply_task(&args.task, &args.body()).await?),
        Command::Stop(args) => (args.format, client.stop_task(&args.task, &args.body()).await?),
        Command::Rollback(args) => (args.format, client.roll_back_task(&args.task, &args.body()).await?),
    };
    format.print(&task, summary)
}

async fn create(client: &Client, file: &Path, submit: bool) -> Result<Task> {
    let draft = client.create_task(&input::read(file)?).await?;
    let task = if submit { submit_draft(client, &draft).await? } else { draft };
    Ok(with_preview_warnings(task))
}

/// Submits a draft that was just created. If that fails, the hint names the draft, whose id would be lost otherwise.
async fn submit_draft(client: &Client, draft: &Task) -> Result<Task> {
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

async fn list(client: &Client, args: &FilterArgs) -> Result {
    let state = args.state.as_deref().map(str::to_uppercase);
    let risk = args.risk.as_deref().map(str::to_uppercase);
    let FilterArgs { author, resource, tag, kind, .. } = args;
    let filters = [
        ("state", &state),
        ("risk", &risk),
        ("author", author),
        ("resource", resource),
        ("tag", tag),
        ("type", kind),
    ];
    args.list.show(&present(&filters), async |query| client.tasks(query).await, table).await
}

fn table(tasks: &[Task]) -> Table<'_, Task> {
    let now = time::now();
    let since =
        |task: &Task| task.metadata.since.get(&task.state.to_string()).map(|at| time::since(*at, now));
    let needed = |task: &Task| match task.requirements.iter().map(|it| it.needed).sum::<u32>() {
        0 => String::new(),
        needed => needed.to_string(),
    };
    output::list(tasks, "no tasks found")
        .column("TASK", |task| safe(&task.task_id))
        .column("STATE", |task| state_tone(task.state).cell(task.state.to_string()))
        .column("SINCE", |task| since(task).unwrap_or_default())
        .column("RISK", |task| match &task.risk {
            Some(risk) => {
                let (word, tone) = risk_level(risk.level);
                tone.cell(format!("{} {word}", risk.score))
            }
            None => Tone::Plain.cell(""),
        })
        .column("TYPE", |task| safe(&task.config.task_type))
        .column("AUTHOR", |task| safe(&task.metadata.author_id))
        .column("NEEDED", needed)
        .column("DESCRIPTION", |task| first_line(&task.config.description))
}

async fn list_comments(client: &Client, args: &TaskListArgs) -> Result {
    let fetch = async |query: &[(&str, &str)]| client.comments(&args.task, query).await;
    let listing = fetch_up_to(args.list.limit, &[], fetch).await?;
    if args.list.json || listing.items.is_empty() || listing.has_more {
        return args.list.print(&listing, &comment_table(&listing.items));
    }
    let now = time::now();
    for comment in &listing.items {
        let when = time::ago(comment.created_at, now);
        output::line(format_args!("{} {}", comment_author(comment).bold(), when.dimmed()))?;
        for line in safe_lines(&comment.text) {
            output::line(format_args!("  {line}"))?;
        }
    }
    Ok(())
}

/// Who wrote a comment: a user, or an agent for its sponsor.
fn comment_author(comment: &Comment) -> String {
    let author = safe(&comment.author_id);
    match &comment.agent_id {
        Some(agent) => format!("agent {} for {author}", safe(agent)),
        None => author,
    }
}

fn comment_table(comments: &[Comment]) -> Table<'_, Comment> {
    output::list(comments, "no comments found")
        .column("TIME", |comment| time::timestamp(comment.created_at))
        .column("AUTHOR", comment_author)
        .column("COMMENT", |comment| safe_lines(&comment.text).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture;

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
