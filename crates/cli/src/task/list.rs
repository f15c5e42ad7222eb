//! Lists of tasks, of what was said about one, and of what was done about it.

use ade_client::Client;
use ade_client::wire::{Comment, Task};
use clap::Args as ClapArgs;
use comfy_table::{Cell, Table};
use jiff::Timestamp;
use owo_colors::OwoColorize;

use super::ListedArgs;
use super::parts::{level, tone};
use crate::failure::Failure;
use crate::lists::{ListArgs, given};
use crate::output::{self, Tone, safe, safe_lines};
use crate::times;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// In this state, such as REVIEWING
    #[arg(long)]
    state: Option<String>,
    /// By this author
    #[arg(long, value_name = "USER")]
    author: Option<String>,
    /// That touch this resource, as type:id
    #[arg(long)]
    resource: Option<String>,
    /// With this tag
    #[arg(long)]
    tag: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "TYPE")]
    task_type: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn tasks(client: &Client, args: &Args) -> Result<(), Failure> {
    let state = args.state.as_deref().map(str::to_uppercase);
    let filters = given(&[
        ("state", &state),
        ("author", &args.author),
        ("resource", &args.resource),
        ("tag", &args.tag),
        ("type", &args.task_type),
    ]);
    let listed = args.list.fetch(&filters, async |query: &[(&str, &str)]| client.tasks(query).await).await?;
    args.list.print(&listed, "there is no such task", |tasks| table(tasks, times::now()))
}

fn table(tasks: &[Task], now: Timestamp) -> Table {
    let mut table = output::table(&["TASK", "STATE", "FOR", "RISK", "TYPE", "AUTHOR", "MISSING", "WHAT"]);
    for task in tasks {
        let since = task.metadata.since.get(task.state.word());
        let missing: u32 = task.requirements.iter().map(|requirement| requirement.needed).sum();
        let risk = task.risk.as_ref().map(|risk| (risk.score, level(risk.level)));
        let risk = risk.map(|(score, (word, tone))| tone.cell(format!("{score} {word}")));
        table.add_row([
            Cell::new(safe(&task.task_id)),
            tone(task.state).cell(task.state.word()),
            Cell::new(since.map(|since| times::since(*since, now)).unwrap_or_default()),
            risk.unwrap_or_else(|| Tone::Plain.cell("")),
            Cell::new(safe(&task.config.task_type)),
            Cell::new(safe(&task.metadata.author_id)),
            Cell::new(if missing > 0 { missing.to_string() } else { String::new() }),
            Cell::new(safe_lines(&task.config.description).next().unwrap_or_default()),
        ]);
    }
    table
}

pub(super) async fn comments(client: &Client, args: &ListedArgs) -> Result<(), Failure> {
    let ask = async |query: &[(&str, &str)]| client.comments(&args.task_id, query).await;
    let listed = args.list.fetch(&[], ask).await?;
    if args.list.json || listed.items.is_empty() || listed.more {
        return args.list.print(&listed, "nothing was said about it", comment_table);
    }
    let now = times::now();
    for comment in &listed.items {
        let when = format!("{} ago", times::since(comment.created_at, now));
        output::line(&format!("{} {}", safe(&comment.author_id).bold(), when.dimmed()))?;
        for line in safe_lines(&comment.text) {
            output::line(&format!("  {line}"))?;
        }
    }
    Ok(())
}

fn comment_table(comments: &[Comment]) -> Table {
    let mut table = output::table(&["WHEN", "WHO", "WHAT"]);
    for comment in comments {
        let text: Vec<String> = safe_lines(&comment.text).collect();
        table.add_row([times::short(comment.created_at), safe(&comment.author_id), text.join("\n")]);
    }
    table
}

pub(super) async fn audit(client: &Client, args: &ListedArgs) -> Result<(), Failure> {
    let ask = async |query: &[(&str, &str)]| client.task_audit(&args.task_id, query).await;
    let listed = args.list.fetch(&[], ask).await?;
    args.list.print(&listed, "nothing was done about it", crate::audit::table)
}
