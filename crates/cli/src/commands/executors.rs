//! `ade executors`: what operators allow tasks to work on.

use ade_client::Client;
use ade_client::wire::ExecutorBinding;
use clap::Subcommand;

use crate::failure::Result;
use crate::output::list::ListArgs;
use crate::output::{self, Table, safe};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List roots, connections, templates and hosts, who may use them, and which workers serve them
    Ls(ListArgs),
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    let Command::Ls(args) = command;
    args.show(&[], async |query| client.executors(query).await, table).await
}

fn table(bindings: &[ExecutorBinding]) -> Table<'_, ExecutorBinding> {
    let all = |list: &[String]| if list.is_empty() { "all".to_owned() } else { safe(&list.join(", ")) };
    output::list(bindings, "no executors are configured: an operator lists them in the configuration file")
        .column("NAME", |binding| safe(&binding.name))
        .column("RESOURCES", |binding| safe(&binding.resources.join(", ")))
        .column("CRITICALITY", |binding| {
            binding.criticality.map_or_else(|| "-".to_owned(), |criticality| criticality.to_string())
        })
        .column("TASK TYPES", move |binding| all(&binding.task_types))
        .column("AUTHORS", move |binding| all(&binding.authors))
        .column("WORKERS", |binding| match binding.workers.len() {
            0 => "none".to_owned(),
            count => count.to_string(),
        })
}
