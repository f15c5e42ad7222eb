//! `ade resource`: how critical things are, and what depends on them.

use ade_client::wire::{RegisteredResource, ResourceRequest};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::Table;

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape};
use crate::output::{self, safe};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Registered resources
    Ls(ListArgs),
    /// What is registered under a pattern
    Show(Named),
    /// Register resources (admin)
    Add(AddArgs),
    /// Change what is registered under a pattern (admin)
    Set(SetArgs),
    /// Forget what is registered under a pattern (admin)
    Rm(OnlyNamed),
}

#[derive(Debug, ClapArgs)]
struct Named {
    /// As type:id with * and ?, or an id alone
    pattern: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct OnlyNamed {
    /// As it was registered
    pattern: String,
}

#[derive(Debug, ClapArgs)]
struct AddArgs {
    /// As type:id with * and ?, or an id alone
    pattern: String,
    /// How critical they are, from 0 to 100
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..=100))]
    criticality: u8,
    /// What depends on them, as type:id
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    dependents: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
struct SetArgs {
    /// As it was registered
    pattern: String,
    /// How critical they are, from 0 to 100
    #[arg(long, value_name = "NUMBER", group = "what", value_parser = clap::value_parser!(u8).range(0..=100))]
    criticality: Option<u8>,
    /// All that depends on them, as type:id
    #[arg(long, value_name = "RESOURCE", group = "what", value_delimiter = ',')]
    dependents: Option<Vec<String>>,
    /// Nothing depends on them
    #[arg(long, group = "what", conflicts_with = "dependents")]
    no_dependents: bool,
    #[command(flatten)]
    shape: Shape,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => {
                let listed =
                    args.fetch(&[], async |query: &[(&str, &str)]| client.resources(query).await).await?;
                args.print(&listed, "nothing is registered: everything counts as 50", table)
            }
            Command::Show(args) => told(args.shape, client.resource(&args.pattern).await?),
            Command::Add(args) => {
                let (criticality, dependents) = (Some(args.criticality), Some(args.dependents));
                let request = ResourceRequest { pattern: Some(args.pattern), criticality, dependents };
                told(args.shape, client.register_resource(&request).await?)
            }
            Command::Set(args) => {
                let dependents = if args.no_dependents { Some(Vec::new()) } else { args.dependents };
                let patch = ResourceRequest { pattern: None, criticality: args.criticality, dependents };
                told(args.shape, client.change_resource(&args.pattern, None, &patch).await?)
            }
            Command::Rm(args) => {
                client.remove_resource(&args.pattern).await?;
                output::line(&format!("{} is forgotten", safe(&args.pattern)))
            }
        }
    })
}

fn told(shape: Shape, resource: RegisteredResource) -> Result<(), Failure> {
    if shape.json { output::json(&resource) } else { output::line(&table(&[resource]).to_string()) }
}

fn table(resources: &[RegisteredResource]) -> Table {
    let mut table = output::table(&["PATTERN", "CRITICALITY", "WHAT DEPENDS ON IT"]);
    for resource in resources {
        table.add_row([
            safe(&resource.pattern),
            resource.criticality.to_string(),
            safe(&resource.dependents.join(", ")),
        ]);
    }
    table
}
