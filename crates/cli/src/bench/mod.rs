//! `ade bench`: the product measured on this machine, against its aims. A missed aim is shown as missed.

mod acquire;
mod approvals;
mod deadlock;
mod handover;
mod hold;
mod lifecycle;
mod link;
mod locks;
mod machine;
mod open_loop;
mod pair;
mod report;
mod samples;
mod subject;

use clap::{Args as ClapArgs, Subcommand};

use crate::failure::Failure;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Locks, embedded or on Redis: latency, handover, heartbeats, deadlocks
    Locks(locks::Args),
    /// Approvals, embedded or on Redis and PostgreSQL: deciding, listing and searching with many tasks stored
    Approvals(approvals::Args),
    /// Whole lifecycles, embedded or on Redis and PostgreSQL: proposed, approved, carried out, completed
    Lifecycle(lifecycle::Args),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Locks(args) => locks::run(&args),
        Command::Approvals(args) => approvals::run(&args),
        Command::Lifecycle(args) => lifecycle::run(&args),
    }
}
