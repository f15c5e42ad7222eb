//! `ade`, the one binary: arguments in, use cases called, results laid out.
//!
//! Data goes to standard output, everything else to standard error. Nothing is decided here: a command that needs a
//! decision calls a room below.

mod bench;
mod config;
mod connect;
mod failure;
mod keys;
mod lock;
mod output;
mod serve;

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
    /// Run the server, with its locks in one data folder or on Redis
    Serve(serve::Args),
    /// Locks: take them, hold them while a command runs, see who holds and who waits
    Lock(lock::Args),
    /// The configuration in force, and where each value comes from
    Config(config::Args),
    /// The Redis keyspace: every key, channel and consumer group, from one catalog
    Keys(keys::Args),
    /// Measure the product on this machine, against its aims
    Bench(bench::Args),
    /// A part of `ade lock hold`
    #[command(hide = true, name = lock::watchdog::NAME)]
    LockWatchdog(lock::watchdog::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Lock(args) => lock::run(args),
        Command::Config(args) => config::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::Keys(args) => keys::run(&args).map(|()| ExitCode::SUCCESS),
        Command::LockWatchdog(args) => lock::watchdog::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests;
