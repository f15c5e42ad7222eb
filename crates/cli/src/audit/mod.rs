//! `ade audit`: what was done, by whom, and whether the record of it is whole.

mod export;
mod verify;

use ade_client::Client;
use ade_client::wire::AuditEntry;
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::Table;

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::{ListArgs, given};
use crate::output::{self, safe};
use crate::times::{self, When};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Entries of the audit log
    Ls(ListedArgs),
    /// The audit log as NDJSON or CSV
    Export(export::Args),
    /// Whether nobody changed, removed or reordered an entry
    Verify(verify::Args),
}

#[derive(Debug, ClapArgs)]
struct ListedArgs {
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
struct Filters {
    /// About this task
    #[arg(long)]
    task: Option<String>,
    /// By this user or agent
    #[arg(long)]
    actor: Option<String>,
    /// Of this kind, such as task.submit
    #[arg(long)]
    action: Option<String>,
    /// From then on: a time, a day, or a length ago such as 24h
    #[arg(long, value_name = "TIME", value_parser = times::when)]
    from: Option<When>,
    /// Until before then: a time, a day, or a length ago
    #[arg(long, value_name = "TIME", value_parser = times::when)]
    to: Option<When>,
}

impl Filters {
    /// As the server wants them.
    fn query(&self) -> Vec<(&'static str, String)> {
        let now = times::now();
        let [from, to] = [&self.from, &self.to].map(|when| when.map(|when| when.back(now).to_string()));
        let filters = [
            ("task", &self.task),
            ("actor", &self.actor),
            ("action", &self.action),
            ("from", &from),
            ("to", &to),
        ];
        given(&filters).into_iter().map(|(name, value)| (name, value.to_owned())).collect()
    }
}

fn borrowed<'a>(query: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    query.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => list(&client, &args).await,
            Command::Export(args) => export::run(&client, &args).await,
            Command::Verify(args) => verify::run(&client, &args).await,
        }
    })
}

async fn list(client: &Client, args: &ListedArgs) -> Result<(), Failure> {
    let query = args.filters.query();
    let ask = async |query: &[(&str, &str)]| client.audit(query).await;
    let listed = args.list.fetch(&borrowed(&query), ask).await?;
    args.list.print(&listed, "there is no such entry", table)
}

/// Entries as they are read.
pub(crate) fn table(entries: &[AuditEntry]) -> Table {
    let mut table = output::table(&["#", "WHEN", "WHO", "ACTION", "ABOUT", "FROM → TO", "WHY"]);
    for entry in entries {
        let moved = match (entry.from, entry.to) {
            (Some(from), Some(to)) if from != to => format!("{from} → {to}"),
            (_, Some(at)) | (Some(at), None) => at.to_string(),
            (None, None) => String::new(),
        };
        let why = [entry.ticket.as_deref(), entry.reason.as_deref()];
        table.add_row([
            entry.number.to_string(),
            times::short(entry.at),
            who(entry),
            safe(&entry.action),
            format!("{} {}", safe(&entry.object_type), safe(&entry.object_id)),
            moved,
            safe(&why.into_iter().flatten().collect::<Vec<_>>().join(": ")),
        ]);
    }
    table
}

fn who(entry: &AuditEntry) -> String {
    match (&entry.who.user_id, &entry.who.agent_id) {
        (Some(user), Some(agent)) => format!("{} for {}", safe(agent), safe(user.as_str())),
        (Some(user), None) => safe(user.as_str()),
        (None, Some(agent)) => safe(agent),
        (None, None) => "ade".to_owned(),
    }
}
