//! `ade policy`: which tasks need whose agreement.

mod page;

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{Policy, PolicyRequest, Replay};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use owo_colors::OwoColorize;

use crate::connect::{Connection, block_on};
use crate::documents;
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape};
use crate::output::{self, Tone, safe};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Policies
    Ls(ListArgs),
    /// One policy, in words
    Show(Named),
    /// Make a policy; a draft, unless the file says active: true (admin)
    Add(AddArgs),
    /// Change a policy; what is in force stays so until it is activated (admin)
    Set(SetArgs),
    /// Put what is drafted in force (admin)
    Activate(Named),
    /// Take a policy out of force (admin)
    Deactivate(Named),
    /// Remove a policy (admin)
    Rm(OnlyNamed),
    /// Which past tasks would have gone another way with what is drafted
    Replay(Named),
}

#[derive(Debug, ClapArgs)]
struct Named {
    /// The policy, by its id
    #[arg(value_name = "POLICY")]
    policy_id: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct OnlyNamed {
    /// The policy, by its id
    #[arg(value_name = "POLICY")]
    policy_id: String,
}

#[derive(Debug, ClapArgs)]
struct AddArgs {
    /// The policy as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct SetArgs {
    /// The policy, by its id
    #[arg(value_name = "POLICY")]
    policy_id: String,
    /// The fields that change, as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    shape: Shape,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => list(&client, args).await,
            Command::Show(args) => {
                let policy = client.policy(&args.policy_id).await?;
                if args.shape.json {
                    output::json(&policy)
                } else {
                    output::line(page::page(&policy).trim_end())
                }
            }
            Command::Add(args) => {
                let request: PolicyRequest = documents::read(&args.file)?;
                told(args.shape, &client.make_policy(&request).await?)
            }
            Command::Set(args) => {
                let patch: PolicyRequest = documents::read(&args.file)?;
                told(args.shape, &client.change_policy(&args.policy_id, args.revision, &patch).await?)
            }
            Command::Activate(args) => told(args.shape, &client.activate_policy(&args.policy_id).await?),
            Command::Deactivate(args) => {
                let patch = PolicyRequest { active: Some(false), ..PolicyRequest::default() };
                told(args.shape, &client.change_policy(&args.policy_id, None, &patch).await?)
            }
            Command::Rm(args) => {
                client.remove_policy(&args.policy_id).await?;
                output::line(&format!("{} is removed", safe(&args.policy_id)))
            }
            Command::Replay(args) => replayed(args.shape, &client.replay_policy(&args.policy_id).await?),
        }
    })
}

async fn list(client: &Client, args: ListArgs) -> Result<(), Failure> {
    let listed = args.fetch(&[], async |query: &[(&str, &str)]| client.policies(query).await).await?;
    args.print(&listed, "there is no policy: one reviewer decides about each task", table)
}

fn table(policies: &[Policy]) -> Table {
    let mut table = output::table(&["POLICY", "NAME", "IN FORCE", "ABOUT", "ASKS FOR"]);
    for policy in policies {
        let (standing, tone) = match (policy.active, &policy.draft) {
            (true, None) => ("yes", Tone::Good),
            (true, Some(_)) => ("yes, and a draft", Tone::Good),
            (false, _) => ("no", Tone::Open),
        };
        table.add_row([
            Cell::new(safe(&policy.policy_id)),
            Cell::new(safe(&policy.name)),
            tone.cell(standing),
            Cell::new(page::about(&policy.rules)),
            Cell::new(page::asks(&policy.rules)),
        ]);
    }
    table
}

fn told(shape: Shape, policy: &Policy) -> Result<(), Failure> {
    if shape.json {
        return output::json(policy);
    }
    let (id, name) = (safe(&policy.policy_id), safe(&policy.name));
    let standing = match (policy.active, &policy.draft) {
        (true, None) => "is in force",
        (true, Some(_)) => "is in force as before; what changed is drafted: ade policy activate",
        (false, _) => "is drafted: ade policy activate puts it in force",
    };
    output::line(&format!("{} ({id}) {standing}", name.bold()))
}

fn replayed(shape: Shape, replay: &Replay) -> Result<(), Failure> {
    if shape.json {
        return output::json(replay);
    }
    if replay.differs.is_empty() {
        return output::line("no past task would have gone another way");
    }
    let mut table = output::table(&["TASK", "ASKED FOR THEN", "WOULD ASK FOR"]);
    for task in &replay.differs {
        table.add_row([safe(&task.task_id), safe(&task.was), safe(&task.would_be)]);
    }
    output::line(&table.to_string())
}
