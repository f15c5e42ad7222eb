//! `ade approval`: list approval requests and decide about them.
//!
//! An approval names the digest of the task that was reviewed; the server refuses it if the task has changed since.

use ade_client::Client;
use ade_client::wire::{
    Approval, ApprovalStatus, BatchItem, BatchOptions, BatchRequest, DecisionKind, DecisionRequest, Priority,
    Task,
};
use clap::{Args as ClapArgs, Subcommand};
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde_json::json;

use super::answer::{self, AnswerArgs};
use super::login::deciding::PasswordSource;
use super::task::page;
use super::task::sections::state_label;
use crate::failure::{Failure, Result};
use crate::output::list::{ListArgs, fetch_all};
use crate::output::{self, OutputFormat, Table, Tone, safe, time};

/// Characters of a description that are shown on the narrowest terminal.
const MIN_DESCRIPTION_WIDTH: usize = 12;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the approval requests that wait for your decision, most urgent first
    Ls(FilterArgs),
    /// Show an approval request and its task
    Show(ApprovalArgs),
    /// Approve; several requests are approved together or not at all
    Approve(ApproveArgs),
    /// Reject; several requests are rejected together or not at all
    Reject {
        /// Ids of the approval requests
        #[arg(required = true, value_name = "APPROVAL")]
        approval_ids: Vec<String>,
        /// Reason, shown to the author
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Ask the author to change the task before you decide
    RequestChanges {
        #[command(flatten)]
        args: ApprovalArgs,
        /// What must change, shown to the author
        #[arg(long)]
        reason: String,
    },
    /// Delegate an approval request to another reviewer
    Delegate {
        #[command(flatten)]
        args: ApprovalArgs,
        /// User who decides instead
        #[arg(long, value_name = "USER")]
        to: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FilterArgs {
    /// List the requests of all reviewers, as far as you may see them
    #[arg(long)]
    all: bool,
    /// Only requests with this status; "any" shows all [default: PENDING]
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ApprovalArgs {
    /// Id of the approval request
    approval: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ApproveArgs {
    /// Ids of the approval requests
    #[arg(required = true, value_name = "APPROVAL")]
    approval_ids: Vec<String>,
    #[command(flatten)]
    answer: AnswerArgs,
    /// Digest of the task that you reviewed: refused if the task has changed since [default: the task as it is now]
    #[arg(long)]
    digest: Option<String>,
    /// Digest of the scope that you reviewed: refused if what the task can touch has changed since [default: as it is now]
    #[arg(long, requires = "digest")]
    scope_digest: Option<String>,
    /// Move the approved tasks to the head of the apply queue (admin; needs --reason)
    #[arg(long)]
    apply_immediately: bool,
    /// Ignore warnings about outdated previews (admin)
    #[arg(long)]
    skip_validation: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, (command, password): (Command, PasswordSource)) -> Result {
    match command {
        Command::Ls(_) | Command::Show(_) => execute(client, command).await,
        _ => password.decide(client, async |client| execute(client, command).await).await,
    }
}

async fn execute(client: &Client, command: Command) -> Result {
    match command {
        Command::Ls(args) => list(client, &args).await,
        Command::Show(args) => show(client, &args).await,
        Command::Approve(args) => approve(client, args).await,
        Command::Reject { approval_ids, reason, format } => {
            let reason = Some(reason);
            if let [id] = approval_ids.as_slice() {
                let request =
                    client.reject(id, &DecisionRequest { reason, ..DecisionRequest::default() }).await?;
                return format.print(&request, summary);
            }
            let (action, options) = (DecisionKind::Reject, BatchOptions::default());
            let batch = BatchRequest { items: Vec::new(), approval_ids, action, reason, options };
            decide_all(client, &batch, format).await
        }
        Command::RequestChanges { args: ApprovalArgs { approval, format }, reason } => {
            let response = DecisionRequest { reason: Some(reason), ..DecisionRequest::default() };
            format.print(&client.request_changes(&approval, &response).await?, summary)
        }
        Command::Delegate { args: ApprovalArgs { approval, format }, to } => {
            let request = client.delegate_approval(&approval, &to).await?;
            let reviewer = safe(&request.reviewer_id);
            format.print(&request, |_| format!("delegated from {reviewer} to {}", safe(&to)))
        }
    }
}

async fn approve(client: &Client, args: ApproveArgs) -> Result {
    let ApproveArgs {
        approval_ids,
        answer,
        digest,
        scope_digest,
        apply_immediately,
        skip_validation,
        format,
    } = args;
    let options = BatchOptions { skip_validation, apply_immediately };
    // Only a batch has options, and only a single approval has digests and a confirmation.
    if let [id] = approval_ids.as_slice()
        && options == BatchOptions::default()
    {
        let shown = answer::answer(&task_of(client, id).await?, answer)?;
        let (digest, scope_digest) = (digest.or(shown.digest), scope_digest.or(shown.scope_digest));
        let response = DecisionRequest { digest, scope_digest, ..shown };
        return format.print(&client.approve(id, &response).await?, summary);
    }
    if digest.is_some() || answer.confirm.is_some() {
        let message = "--digest and --confirm work for one approval only, without --apply-immediately or --skip-validation";
        return Err(Failure::invalid(message).hint("approve the requests one by one"));
    }
    let (action, reason, mut items) = (DecisionKind::Approve, answer.reason, Vec::new());
    for approval_id in approval_ids {
        let task = task_of(client, &approval_id).await?;
        answer::show(&task);
        items.push(BatchItem { approval_id, digest: task.digest, scope_digest: task.scope_digest });
    }
    let batch = BatchRequest { items, approval_ids: Vec::new(), action, reason, options };
    decide_all(client, &batch, format).await
}

async fn task_of(client: &Client, approval_id: &str) -> Result<Task> {
    Ok(client.task(&client.approval(approval_id).await?.task_id).await?)
}

async fn decide_all(client: &Client, batch: &BatchRequest, format: OutputFormat) -> Result {
    let requests = client.decide_batch(batch).await?.items;
    format.print(&requests, |requests| requests.iter().map(summary).collect::<Vec<_>>().join("\n"))
}

/// The status of an approval request and of its task, in one line.
fn summary(request: &Approval) -> String {
    let task = safe(&request.task_id);
    let task = match request.task_state {
        Some(state) => format!("task {task} is {}", state_label(state)),
        None => format!("see its task with ade task show {task}"),
    };
    let status = status_tone(request.status).paint(&request.status.to_string());
    format!("{} is {status}; {task}", safe(&request.approval_id).bold())
}

pub(crate) const fn status_tone(status: ApprovalStatus) -> Tone {
    match status {
        ApprovalStatus::Pending => Tone::Pending,
        ApprovalStatus::Approved => Tone::Good,
        ApprovalStatus::Rejected => Tone::Bad,
        ApprovalStatus::Delegated => Tone::Active,
        ApprovalStatus::ChangesRequested => Tone::Unusual,
        ApprovalStatus::Invalidated | ApprovalStatus::Closed => Tone::Dim,
    }
}

pub(crate) const fn priority_label(priority: Priority) -> (&'static str, Tone) {
    match priority {
        Priority::Low => ("LOW", Tone::Dim),
        Priority::Normal => ("NORMAL", Tone::Plain),
        Priority::High => ("HIGH", Tone::Pending),
        Priority::Urgent => ("URGENT", Tone::Bad),
    }
}

async fn list(client: &Client, args: &FilterArgs) -> Result {
    let status = args.status.as_deref().unwrap_or("PENDING").to_uppercase().replace('-', "_");
    let mut filters = vec![("reviewer", if args.all { "*" } else { "me" })];
    filters.extend((status != "ANY").then_some(("status", status.as_str())));
    if !args.all && client.session().await?.user.is_none() {
        output::note(
            "the bootstrap token belongs to no user, so nobody waits for it: sign in with ade login, or use --all",
        );
    }
    let fetch = async |query: &[(&str, &str)]| client.approvals(query).await;
    args.list.show(&filters, fetch, |it| table(it, output::terminal_width(), time::now())).await
}

/// One row per request; on a terminal with two lines, because two ids and a description do not fit into one.
fn table(requests: &[Approval], width: Option<usize>, now: Timestamp) -> Table<'_, Approval> {
    let due = |request: &Approval| match request.status {
        ApprovalStatus::Pending if request.due_at.0 < now => "overdue".to_owned(),
        ApprovalStatus::Pending => time::until(request.due_at, now),
        _ => String::new(),
    };
    let Some(width) = width else {
        return output::list(requests, "no approval requests found")
            .column("APPROVAL", |request| safe(&request.approval_id))
            .column("TASK", |request| safe(&request.task_id))
            .column("SCORE", |request| request.score)
            .column("PRIORITY", |request| priority_label(request.priority).0)
            .column("REVIEWER", |request| safe(&request.reviewer_id))
            .column("STATUS", |request| request.status)
            .column("DUE IN", due)
            .column("DESCRIPTION", |request| safe(&request.task_description))
            .column("WHY", page::request_notes);
    };
    let leading = output::list(requests, "no approval requests found")
        .column("APPROVAL\nTASK", |it| format!("{}\n{}", safe(&it.approval_id), safe(&it.task_id)))
        .column("SCORE\nPRIORITY", |request| {
            let (priority, tone) = priority_label(request.priority);
            tone.cell(format!("{}\n{priority}", request.score))
        })
        .column("DUE IN\nSTATUS", |request| {
            status_tone(request.status).cell(format!("{}\n{}", due(request), request.status))
        });
    // Each column has a space on both sides, and one more separates two columns.
    let used: usize = leading.column_widths().map(|width| width + 3).sum();
    let available = width.saturating_sub(used + 2).max(MIN_DESCRIPTION_WIDTH);
    leading.column("DESCRIPTION\nREVIEWER AND WHY", |request| {
        let why = format!("{}: {}", safe(&request.reviewer_id), page::request_notes(request));
        [safe(&request.task_description), why].map(|text| truncate(&text, available)).join("\n")
    })
}

fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

async fn show(client: &Client, args: &ApprovalArgs) -> Result {
    let request = client.approval(&args.approval).await?;
    let task_id = &request.task_id;
    let task = client.task(task_id).await?;
    if args.format.json {
        return output::json(&json!({ "approval": request, "task": task }));
    }
    let requests = fetch_all(async |query| client.task_approvals(task_id, query).await).await?;
    let (id, reviewer) = (safe(&request.approval_id), safe(&request.reviewer_id));
    let status = status_tone(request.status).paint(&request.status.to_string());
    output::line(format_args!("approval request {id} to {} is {status}", reviewer.bold()))?;
    if request.digest != task.digest {
        output::note("the task has changed since this request was created");
    }
    output::line(format_args!("\n{}", page::page(&task, &requests, time::now())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture;

    const APPROVAL: &str = "0197c1a2-0000-7000-8000-000000000001";
    const TASK: &str = "0197c1a2-0000-7000-8000-000000000002";

    fn rendered(width: Option<usize>) -> String {
        let mut request = fixture::approvals().remove(1);
        request.approval_id = APPROVAL.to_owned();
        request.task_id = TASK.to_owned();
        request.task_description = "Add an index on orders so that the report of the month ends".to_owned();
        table(&[request], width, "2026-07-01T12:00:00Z".parse().expect("a time")).to_string()
    }

    #[test]
    fn narrow_terminal_keeps_ids_and_truncates_descriptions() {
        let table = rendered(Some(80));
        assert!(table.lines().all(|line| line.trim_end().chars().count() <= 80), "{table}");
        for part in
            [APPROVAL, TASK, " Add an index on o", "…", " eve: has the role", "720", "NORMAL", "PENDING"]
        {
            assert!(table.contains(part), "{part:?} is missing in\n{table}");
        }
        assert_eq!(
            table.lines().count(),
            5,
            "two lines of titles, a rule, and two lines per request:\n{table}"
        );
    }

    #[test]
    fn without_terminal_each_request_is_one_line() {
        let table = rendered(None);
        let line = table.lines().find(|line| line.contains(APPROVAL)).expect("the request");
        assert!(line.contains(TASK) && line.contains("so that the report of the month ends"), "{table}");
    }
}
