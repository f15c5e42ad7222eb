//! `ade resource`: manage the registry of resources: how critical they are and what depends on them.

use ade_client::Client;
use ade_client::wire::{RegisteredResource, ResourceRequest};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::Table;

use crate::failure::Failure;
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, safe};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List registered resources
    Ls(ListArgs),
    /// Show the registration of a pattern
    Show(ShowArgs),
    /// Register resources (admin)
    Add(AddArgs),
    /// Change the registration of a pattern (admin)
    Set(SetArgs),
    /// Remove the registration of a pattern (admin)
    Rm {
        /// Pattern as it is registered
        pattern: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// Pattern: type:id with * and ?, or an id alone
    pattern: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    /// Pattern: type:id with * and ?, or an id alone
    pattern: String,
    /// Criticality of the resources, from 0 to 100
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..=100))]
    criticality: u8,
    /// Resources that depend on them, as type:id
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    dependents: Vec<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct SetArgs {
    /// Pattern as it is registered
    pattern: String,
    /// Criticality of the resources, from 0 to 100
    #[arg(long, value_name = "NUMBER", group = "what", value_parser = clap::value_parser!(u8).range(0..=100))]
    criticality: Option<u8>,
    /// All resources that depend on them, as type:id
    #[arg(long, value_name = "RESOURCE", group = "what", value_delimiter = ',')]
    dependents: Option<Vec<String>>,
    /// No resource depends on them
    #[arg(long, group = "what", conflicts_with = "dependents")]
    no_dependents: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    let (format, resource) = match command {
        Command::Ls(args) => {
            let fetch = async |query: &[(&str, &str)]| client.resources(query).await;
            let empty = "no resources are registered: every resource has the criticality 50";
            return args.show(&[], fetch, empty, table).await;
        }
        Command::Rm { pattern } => {
            client.delete_resource(&pattern).await?;
            return output::line(&format!("registration of {} is removed", safe(&pattern)));
        }
        Command::Show(args) => (args.format, client.resource(&args.pattern).await?),
        Command::Add(args) => {
            let (criticality, dependents) = (Some(args.criticality), Some(args.dependents));
            let request = ResourceRequest { pattern: Some(args.pattern), criticality, dependents };
            (args.format, client.register_resource(&request).await?)
        }
        Command::Set(args) => {
            let dependents = if args.no_dependents { Some(Vec::new()) } else { args.dependents };
            let patch = ResourceRequest { pattern: None, criticality: args.criticality, dependents };
            (args.format, client.update_resource(&args.pattern, None, &patch).await?)
        }
    };
    format.print_row(&resource, table)
}

fn table(resources: &[RegisteredResource]) -> Table {
    let mut table = output::table(&["PATTERN", "CRITICALITY", "DEPENDENTS"]);
    for resource in resources {
        table.add_row([
            safe(&resource.pattern),
            resource.criticality.to_string(),
            safe(&resource.dependents.join(", ")),
        ]);
    }
    table
}
