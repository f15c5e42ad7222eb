//! `ade`, the one binary: parses arguments, calls the server or the crates below, prints results.
//!
//! Data goes to standard output, everything else to standard error. No business rule is decided here.

mod commands;
mod connect;
mod failure;
mod input;
mod output;
mod prompt;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::*;
use connect::{Connection, DecidingCommand, Remote, RemoteCommand};
use failure::{Failure, Result};
use output::OutputFormat;

/// Approvals and locks for fleets of agents.
#[derive(Debug, Parser)]
#[command(name = "ade", version, max_term_width = 110, arg_required_else_help = true, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server, with its data in one folder or on Redis and PostgreSQL
    Serve(serve::Args),
    /// Run a worker that applies approved tasks, next to servers on the same Redis and PostgreSQL
    Worker(worker::Args),
    /// Write the projections in Redis again from PostgreSQL, while the servers run
    Rebuild(rebuild::Args),
    /// Sign in with a password and store a token on this machine
    Login(login::LoginArgs),
    /// Use an invitation: set your own password
    Join(login::JoinArgs),
    /// Sign out: revoke and remove the token that ade login stored
    Logout(Connection),
    /// Show who you are and what your token allows
    Whoami(Remote<OutputFormat>),
    /// Manage users, their roles, passwords and tokens
    User(RemoteCommand<user::Command>),
    /// Register agents, grant them capabilities, and create the tokens that they work with
    Agent(RemoteCommand<agent::Command>),
    /// Create, submit, inspect and control tasks
    Task(DecidingCommand<task::Command>),
    /// List the approval requests that wait for your decision, and decide
    Approval(DecidingCommand<approval::Command>),
    /// Show, confirm and reject changes of who decides, and by which rules, that wait for a second administrator
    Change(DecidingCommand<change::Command>),
    /// Manage policies: which tasks need whose approval
    Policy(RemoteCommand<policy::Command>),
    /// Manage delegations: who decides in place of whom
    Delegation(DecidingCommand<delegation::Command>),
    /// Manage the registry of resources: how critical they are and what depends on them
    Resource(RemoteCommand<resource::Command>),
    /// Show what operators allow tasks to work on, and who serves it
    Executors(RemoteCommand<executors::Command>),
    /// Send events to others, and let others propose tasks (admin)
    Webhook(RemoteCommand<webhook::Command>),
    /// Simulate the submission of a task: risk, reviewers, locks; nothing is changed
    Simulate(Remote<simulate::Args>),
    /// Search, export and verify the audit log
    Audit(RemoteCommand<audit::Command>),
    /// List the latest events, or follow them as they happen
    Events(Remote<events::Args>),
    /// Show background jobs and how their last runs went (admin, auditor)
    Jobs(Remote<OutputFormat>),
    /// List and restore archives of finished tasks (admin)
    Archive(RemoteCommand<jobs::ArchiveCommand>),
    /// Acquire locks, hold them while a command runs, see holders and waiters
    Lock(RemoteCommand<lock::Command>),
    /// Check a server and its rules, and say what to improve
    Doctor(Remote<doctor::Args>),
    /// Rotate or disable the admin token of a server, or recover when no administrator is left
    #[command(subcommand)]
    Admin(admin::Command),
    /// Show the configuration of a local server, and manage the settings that all servers share
    Config(config::Args),
    /// Explore the Redis keyspace: every key, channel and consumer group in the catalogs
    Keys(keys::Args),
    /// Measure the performance on this machine and compare it with the targets
    Bench(ade_bench::Args),
    /// Stops the command of `ade lock hold` or of a worker when its parent is gone
    #[command(hide = true, name = ade_executors::watchdog::SUBCOMMAND)]
    Watchdog,
    /// Runs a preview with limits on memory, CPU time and files
    #[command(hide = true, name = ade_executors::limited_process::SUBCOMMAND)]
    Limited(limited::Args),
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(Failure::report)
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        // Exits with the code of the command that it runs.
        Command::Lock(args) => return args.run(lock::run),
        Command::Serve(args) => serve::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Rebuild(args) => rebuild::run(&args),
        Command::Login(args) => login::login(&args),
        Command::Join(args) => login::join(&args),
        Command::Logout(connection) => login::logout(&connection),
        Command::Whoami(args) => args.run(login::whoami),
        Command::User(args) => args.run(user::run),
        Command::Agent(args) => args.run(agent::run),
        Command::Task(args) => args.run(task::run),
        Command::Approval(args) => args.run(approval::run),
        Command::Change(args) => args.run(change::run),
        Command::Policy(args) => args.run(policy::run),
        Command::Delegation(args) => args.run(delegation::run),
        Command::Resource(args) => args.run(resource::run),
        Command::Executors(args) => args.run(executors::run),
        Command::Webhook(args) => args.run(webhook::run),
        Command::Simulate(args) => args.run(simulate::run),
        Command::Audit(args) => args.run(audit::run),
        Command::Events(args) => args.run(events::run),
        Command::Jobs(args) => args.run(jobs::jobs),
        Command::Archive(args) => args.run(jobs::archive),
        Command::Doctor(args) => args.run(doctor::run),
        Command::Admin(command) => admin::run(command),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Keys(args) => keys::run(&args),
        Command::Watchdog => watchdog::run(),
        Command::Limited(args) => limited::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
