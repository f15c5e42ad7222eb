//! `ade resource`: manage the registry of resources: how critical they are and what depends on them.

use ade_client::Client;
use ade_client::wire::{RegisteredResource, ResourceRequest};
use clap::{Args as ClapArgs, Subcommand};

use crate::failure::Result;
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, Table, safe};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List registered resources
    Ls(ListArgs),
    /// Show the registration of a pattern
    Show {
        /// Pattern: type:id with * and ?, or an id alone
        pattern: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Register resources (admin)
    Add {
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
    },
    /// Change the registration of a pattern (admin)
    Set(SetArgs),
    /// Remove the registration of a pattern (admin)
    Rm {
        /// Pattern as it is registered
        pattern: String,
    },
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

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    let (format, resource) = match command {
        Command::Ls(args) => return args.show(&[], async |query| client.resources(query).await, table).await,
        Command::Rm { pattern } => {
            client.delete_resource(&pattern).await?;
            return output::line(format_args!("registration of {} is removed", safe(&pattern)));
        }
        Command::Show { pattern, format } => (format, client.resource(&pattern).await?),
        Command::Add { pattern, criticality, dependents, format } => {
            let (criticality, dependents) = (Some(criticality), Some(dependents));
            let request = ResourceRequest { pattern: Some(pattern), criticality, dependents };
            (format, client.register_resource(&request).await?)
        }
        Command::Set(args) => {
            let dependents = if args.no_dependents { Some(Vec::new()) } else { args.dependents };
            let patch = ResourceRequest { pattern: None, criticality: args.criticality, dependents };
            (args.format, client.update_resource(&args.pattern, None, &patch).await?)
        }
    };
    format.print_row(&resource, table)
}

fn table(resources: &[RegisteredResource]) -> Table<'_, RegisteredResource> {
    output::list(resources, "no resources are registered: every resource has the criticality 50")
        .column("PATTERN", |resource| safe(&resource.pattern))
        .column("CRITICALITY", |resource| resource.criticality)
        .column("DEPENDENTS", |resource| safe(&resource.dependents.join(", ")))
}
