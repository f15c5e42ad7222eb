//! Looking at requests: `ls`, `show`.

use ade_client::Client;
use ade_client::wire::Approval;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::Priority;
use clap::Args as ClapArgs;
use comfy_table::{Cell, Table};
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde_json::json;

use super::status;
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape, all};
use crate::output::{self, Tone, safe};
use crate::task::page;
use crate::times;

/// Characters of what a request is about, however narrow a terminal is.
const LEAST_ROOM: usize = 12;

#[derive(Debug, ClapArgs)]
pub(super) struct ListedArgs {
    /// Everybody's that you may see, not yours alone
    #[arg(long)]
    all: bool,
    /// With this status instead of PENDING; any shows all of them
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ShowArgs {
    /// The request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) async fn list(client: &Client, args: &ListedArgs) -> Result<(), Failure> {
    let wanted = args.status.as_deref().unwrap_or("PENDING").to_uppercase().replace('-', "_");
    let mut filters = Vec::new();
    filters.push(("reviewer", if args.all { "*" } else { "me" }));
    filters.extend((wanted != "ANY").then_some(("status", wanted.as_str())));
    let listed =
        args.list.fetch(&filters, async |query: &[(&str, &str)]| client.approvals(query).await).await?;
    args.list.print(&listed, "nothing waits here", |requests| {
        table(requests, output::terminal_width(&Table::new()), times::now())
    })
}

/// A line for each request; on a terminal two, because two ids and what they are about do not fit into one.
fn table(requests: &[Approval], width: Option<usize>, now: Timestamp) -> Table {
    let Some(width) = width else {
        let titles = ["APPROVAL", "TASK", "SCORE", "PRIORITY", "REVIEWER", "STATUS", "DUE IN", "WHAT", "WHY"];
        let mut table = output::table(&titles);
        for request in requests {
            let ((urgency, _), (word, _)) = (priority(request.priority), status(request.status));
            table.add_row([
                safe(&request.approval_id),
                safe(&request.task_id),
                request.score.to_string(),
                urgency.to_owned(),
                safe(&request.reviewer_id),
                word.to_owned(),
                due(request, now),
                safe(&request.task_description),
                page::said(request),
            ]);
        }
        return table;
    };
    let titles = ["APPROVAL\nTASK", "SCORE\nPRIORITY", "DUE IN\nSTATUS", "WHAT\nWHO AND WHY"];
    let mut table = output::table(&titles);
    let rows: Vec<[String; 3]> = requests.iter().map(|request| pairs(request, now)).collect();
    let widest = |column: usize| {
        let texts = rows.iter().filter_map(|row| row.get(column).map(String::as_str));
        let lines = texts.chain(titles.get(column).copied()).flat_map(str::lines);
        lines.map(|line| line.chars().count()).max().unwrap_or(0)
    };
    // A column has a space on each side, and there is one more between two.
    let taken: usize = (0..3).map(|column| widest(column) + 3).sum();
    let room = width.saturating_sub(taken + 2).max(LEAST_ROOM);
    for (request, [ids, urgency, stands]) in requests.iter().zip(rows) {
        let who = format!("{}: {}", safe(&request.reviewer_id), page::said(request));
        let about = [safe(&request.task_description), who].map(|text| cut(&text, room)).join("\n");
        let ((_, alarm), (_, tone)) = (priority(request.priority), status(request.status));
        table.add_row([Cell::new(ids), alarm.cell(urgency), tone.cell(stands), Cell::new(about)]);
    }
    table
}

/// What stands before what a request is about, in two lines each.
fn pairs(request: &Approval, now: Timestamp) -> [String; 3] {
    let ((urgency, _), (word, _)) = (priority(request.priority), status(request.status));
    [
        format!("{}\n{}", safe(&request.approval_id), safe(&request.task_id)),
        format!("{}\n{urgency}", request.score),
        format!("{}\n{word}", due(request, now)),
    ]
}

fn due(request: &Approval, now: Timestamp) -> String {
    if request.status == ApprovalStatus::Pending { times::until(request.due_at, now) } else { String::new() }
}

/// As much of a text as there is room for.
fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

const fn priority(priority: Priority) -> (&'static str, Tone) {
    match priority {
        Priority::Low => ("LOW", Tone::Dim),
        Priority::Normal => ("NORMAL", Tone::Plain),
        Priority::High => ("HIGH", Tone::Open),
        Priority::Urgent => ("URGENT", Tone::Bad),
    }
}

pub(super) async fn show(client: &Client, args: &ShowArgs) -> Result<(), Failure> {
    let request = client.approval(&args.approval_id).await?;
    let task = client.task(&request.task_id).await?;
    if args.shape.json {
        return output::json(&json!({ "approval": request, "task": task }));
    }
    let others =
        all(async |query: &[(&str, &str)]| client.task_approvals(&request.task_id, query).await).await?;
    let (word, tone) = status(request.status);
    let asked = format!(
        "{} is asked by request {}, which is {}",
        safe(&request.reviewer_id).bold(),
        safe(&request.approval_id),
        tone.paint(word)
    );
    output::line(&asked)?;
    if request.digest != task.digest {
        output::note("the task was changed since this request was made");
    }
    output::line("")?;
    output::line(page::page(&task, &others, times::now()).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPROVAL: &str = "0197c1a2-0000-7000-8000-000000000001";
    const TASK: &str = "0197c1a2-0000-7000-8000-000000000002";

    fn listed(width: Option<usize>) -> String {
        let mut request = page::fixture::approvals().remove(1);
        request.approval_id = APPROVAL.to_owned();
        request.task_id = TASK.to_owned();
        request.task_description = "Add an index on orders so that the report of the month ends".to_owned();
        table(&[request], width, "2026-07-01T12:00:00Z".parse().expect("a time")).to_string()
    }

    #[test]
    fn ids_are_whole_on_a_narrow_terminal_and_what_it_is_about_is_cut() {
        let shown = listed(Some(80));
        assert!(shown.lines().all(|line| line.trim_end().chars().count() <= 80), "{shown}");
        for part in
            [APPROVAL, TASK, " Add an index on o", "…", " eve: has the role", "720", "NORMAL", "PENDING"]
        {
            assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
        }
        assert_eq!(
            shown.lines().count(),
            5,
            "two lines of titles, one below them, and two for the request:\n{shown}"
        );
    }

    #[test]
    fn whoever_reads_it_by_a_program_has_a_line_for_each() {
        let shown = listed(None);
        let line = shown.lines().find(|line| line.contains(APPROVAL)).expect("the request");
        assert!(line.contains(TASK) && line.contains("so that the report of the month ends"), "{shown}");
    }
}
