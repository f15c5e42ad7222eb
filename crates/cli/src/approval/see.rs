//! Looking at requests: `ls`, `show`.

use ade_client::Client;
use ade_client::wire::Approval;
use ade_domain::review::RequestStatus;
use ade_domain::review::policy::Priority;
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
    args.list.print(&listed, "nothing waits here", |requests| table(requests, times::now()))
}

fn table(requests: &[Approval], now: Timestamp) -> Table {
    let mut table =
        output::table(&["APPROVAL", "SCORE", "PRIORITY", "TASK", "REVIEWER", "STATUS", "DUE IN", "WHY"]);
    for request in requests {
        let due = if request.status == RequestStatus::Pending {
            times::until(request.due_at, now)
        } else {
            String::new()
        };
        let (word, tone) = status(request.status);
        let (urgency, alarm) = priority(request.priority);
        table.add_row([
            Cell::new(safe(&request.approval_id)),
            Cell::new(request.score),
            alarm.cell(urgency),
            Cell::new(safe(&request.task_id)),
            Cell::new(safe(&request.reviewer_id)),
            tone.cell(word),
            Cell::new(due),
            Cell::new(page::said(request)),
        ]);
    }
    table
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
