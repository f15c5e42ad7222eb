//! `ade`, the one binary: arguments in, use cases called, results laid out.
//!
//! Data goes to standard output, everything else to standard error. Nothing is decided here: a command that needs a
//! decision calls a room below.

mod failure;
mod keys;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Approvals and locks for fleets of agents.
#[derive(Debug, Parser)]
#[command(name = "ade", version, max_term_width = 110, arg_required_else_help = true, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The Redis keyspace: every key, channel and consumer group, from one catalog
    Keys(keys::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Keys(args) => keys::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests;
