//! `ade approval`: list approval requests and decide about them.
//!
//! An approval names the digest of the task that was reviewed; the server refuses it if the task has changed since.

use ade_client::Client;
use ade_client::wire::{
    Approval, ApprovalStatus, BatchOptions, BatchRequest, DecisionKind, DecisionRequest, Priority,
};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde_json::json;

use super::task::page;
use super::task::sections::state_label;
use crate::failure::{Failure, FailureKind};
use crate::output::list::{ListArgs, fetch_all};
use crate::output::{self, OutputFormat, Tone, first_line, safe, time};

/// Characters of a description that are shown on the narrowest terminal.
const MIN_DESCRIPTION_WIDTH: usize = 12;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the approval requests that wait for your decision, most urgent first
    Ls(FilterArgs),
    /// Show an approval request and its task
    Show(ShowArgs),
    /// Approve; several requests are approved together or not at all
    Approve(ApproveArgs),
    /// Reject; several requests are rejected together or not at all
    Reject(RejectArgs),
    /// Ask the author to change the task before you decide
    RequestChanges(ChangesArgs),
    /// Delegate an approval request to another reviewer
    Delegate(DelegateArgs),
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
pub(crate) struct ShowArgs {
    /// Id of the approval request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ApproveArgs {
    /// Ids of the approval requests
    #[arg(required = true, value_name = "APPROVAL")]
    approval_ids: Vec<String>,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: Option<String>,
    /// Digest of the task that you reviewed: refused if the task has changed since [default: the task as it is now]
    #[arg(long)]
    digest: Option<String>,
    /// Move the approved tasks to the head of the apply queue
    #[arg(long)]
    apply_immediately: bool,
    /// Ignore warnings about outdated previews (admin)
    #[arg(long)]
    skip_validation: bool,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RejectArgs {
    /// Ids of the approval requests
    #[arg(required = true, value_name = "APPROVAL")]
    approval_ids: Vec<String>,
    /// Reason, shown to the author
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ChangesArgs {
    /// Id of the approval request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    /// What must change, shown to the author
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DelegateArgs {
    /// Id of the approval request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    /// User who decides instead
    #[arg(long, value_name = "USER")]
    to: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    match command {
        Command::Ls(args) => list(client, &args).await,
        Command::Show(args) => show(client, &args).await,
        Command::Approve(args) => approve(client, args).await,
        Command::Reject(args) => {
            let (kind, reason) = (DecisionKind::Reject, Some(args.reason));
            if let [id] = args.approval_ids.as_slice() {
                let request = client.reject(id, &DecisionRequest { reason, digest: None }).await?;
                return args.format.print(&request, summary);
            }
            decide_all(client, args.approval_ids, kind, reason, BatchOptions::default(), args.format).await
        }
        Command::RequestChanges(args) => {
            let response = DecisionRequest { reason: Some(args.reason), digest: None };
            args.format.print(&client.request_changes(&args.approval_id, &response).await?, summary)
        }
        Command::Delegate(args) => {
            let request = client.delegate_approval(&args.approval_id, &args.to).await?;
            args.format.print(&request, |request| {
                format!("delegated from {} to {}", safe(&request.reviewer_id), safe(&args.to))
            })
        }
    }
}

async fn approve(client: &Client, args: ApproveArgs) -> Result<(), Failure> {
    let options =
        BatchOptions { skip_validation: args.skip_validation, apply_immediately: args.apply_immediately };
    // Only a batch has options, and only a single approval has a digest.
    let id = match args.approval_ids.as_slice() {
        [id] if options == BatchOptions::default() => id,
        _ if args.digest.is_some() => {
            let message =
                "--digest works for one approval only, without --apply-immediately or --skip-validation";
            return Err(
                Failure::new(FailureKind::InvalidInput, message).hint("approve the requests one by one")
            );
        }
        _ => {
            let kind = DecisionKind::Approve;
            return decide_all(client, args.approval_ids, kind, args.reason, options, args.format).await;
        }
    };
    let digest = match args.digest {
        Some(digest) => digest,
        None => {
            let request = client.approval(id).await?;
            let task = client.task(&request.task_id).await?;
            let description = first_line(&task.config.description);
            output::note(&format!("approving {}: {description} (digest {})", task.task_id, task.digest));
            task.digest
        }
    };
    let response = DecisionRequest { reason: args.reason, digest: Some(digest) };
    args.format.print(&client.approve(id, &response).await?, summary)
}

async fn decide_all(
    client: &Client,
    approval_ids: Vec<String>,
    action: DecisionKind,
    reason: Option<String>,
    options: BatchOptions,
    format: OutputFormat,
) -> Result<(), Failure> {
    let requests = client.decide_batch(&BatchRequest { approval_ids, action, reason, options }).await?.items;
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

async fn list(client: &Client, args: &FilterArgs) -> Result<(), Failure> {
    let status = args.status.as_deref().unwrap_or("PENDING").to_uppercase().replace('-', "_");
    let mut filters = vec![("reviewer", if args.all { "*" } else { "me" })];
    filters.extend((status != "ANY").then_some(("status", status.as_str())));
    let fetch = async |query: &[(&str, &str)]| client.approvals(query).await;
    let width = output::terminal_width(&Table::new());
    args.list.show(&filters, fetch, "no approval requests found", |it| table(it, width, time::now())).await
}

/// One row per request; on a terminal with two lines, because two ids and a description do not fit into one.
fn table(requests: &[Approval], width: Option<usize>, now: Timestamp) -> Table {
    let Some(width) = width else {
        let mut table = output::table(&[
            "APPROVAL",
            "TASK",
            "SCORE",
            "PRIORITY",
            "REVIEWER",
            "STATUS",
            "DUE IN",
            "DESCRIPTION",
            "WHY",
        ]);
        for request in requests {
            table.add_row([
                safe(&request.approval_id),
                safe(&request.task_id),
                request.score.to_string(),
                priority_label(request.priority).0.to_owned(),
                safe(&request.reviewer_id),
                request.status.to_string(),
                due(request, now),
                safe(&request.task_description),
                page::request_notes(request),
            ]);
        }
        return table;
    };
    let titles = ["APPROVAL\nTASK", "SCORE\nPRIORITY", "DUE IN\nSTATUS", "DESCRIPTION\nREVIEWER AND WHY"];
    let mut table = output::table(&titles);
    let rows: Vec<[String; 3]> = requests.iter().map(|request| leading_cells(request, now)).collect();
    let column_width = |column: usize| {
        let texts = rows.iter().filter_map(|row| row.get(column).map(String::as_str));
        let lines = texts.chain(titles.get(column).copied()).flat_map(str::lines);
        lines.map(|line| line.chars().count()).max().unwrap_or(0)
    };
    // Each column has a space on both sides, and one more separates two columns.
    let used: usize = (0..3).map(|column| column_width(column) + 3).sum();
    let available = width.saturating_sub(used + 2).max(MIN_DESCRIPTION_WIDTH);
    for (request, [ids, urgency, status]) in requests.iter().zip(rows) {
        let why = format!("{}: {}", safe(&request.reviewer_id), page::request_notes(request));
        let about = [safe(&request.task_description), why].map(|text| truncate(&text, available)).join("\n");
        table.add_row([
            Cell::new(ids),
            priority_label(request.priority).1.cell(urgency),
            status_tone(request.status).cell(status),
            Cell::new(about),
        ]);
    }
    table
}

/// The cells before the description, with two lines each.
fn leading_cells(request: &Approval, now: Timestamp) -> [String; 3] {
    [
        format!("{}\n{}", safe(&request.approval_id), safe(&request.task_id)),
        format!("{}\n{}", request.score, priority_label(request.priority).0),
        format!("{}\n{}", due(request, now), request.status),
    ]
}

fn due(request: &Approval, now: Timestamp) -> String {
    if request.status == ApprovalStatus::Pending { time::until(request.due_at, now) } else { String::new() }
}

fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

async fn show(client: &Client, args: &ShowArgs) -> Result<(), Failure> {
    let request = client.approval(&args.approval_id).await?;
    let task = client.task(&request.task_id).await?;
    if args.format.json {
        return output::json(&json!({ "approval": request, "task": task }));
    }
    let requests =
        fetch_all(async |query: &[(&str, &str)]| client.task_approvals(&request.task_id, query).await)
            .await?;
    let (id, reviewer) = (safe(&request.approval_id), safe(&request.reviewer_id));
    let status = status_tone(request.status).paint(&request.status.to_string());
    output::line(&format!("approval request {id} to {} is {status}", reviewer.bold()))?;
    if request.digest != task.digest {
        output::note("the task has changed since this request was created");
    }
    output::line(&format!("\n{}", page::page(&task, &requests, time::now())))
}

#[cfg(test)]
mod tests {
    use super::super::task::fixture;
    use super::*;

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
