//! `ade`, the one binary: arguments in, use cases called, results laid out.
//!
//! Data goes to standard output, everything else to standard error. Nothing is decided here: a command that needs a
//! decision calls a room below.

mod approval;
mod audit;
mod bench;
mod config;
mod connect;
mod delegation;
mod documents;
mod failure;
mod jobs;
mod keys;
mod lists;
mod lock;
mod login;
mod output;
mod policy;
mod resource;
mod serve;
mod simulate;
mod task;
mod times;
mod user;
mod watchdog;
mod worker;

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
    /// Carry out what is approved, beside servers on the same Redis and PostgreSQL
    Worker(worker::Args),
    /// Sign in with a password; the token is kept for this machine
    Login(login::LoginArgs),
    /// Take the token back that ade login made
    Logout(login::LogoutArgs),
    /// Who you are, and what your token is good for
    Whoami(login::WhoamiArgs),
    /// People, their roles, passwords and tokens
    User(user::Args),
    /// Tasks: propose them, submit them, see what they would do and who must agree
    Task(task::Args),
    /// What waits for your answer, and your answers
    Approval(approval::Args),
    /// Policies: which tasks need whose agreement
    Policy(policy::Args),
    /// Delegations: who stands in for whom
    Delegation(delegation::Args),
    /// Resources: how critical things are, and what depends on them
    Resource(resource::Args),
    /// What would happen if: risk, reviewers, locks; nothing is changed
    Simulate(simulate::Args),
    /// The audit log: search, export, verify
    Audit(audit::Args),
    /// Work that repeats, and how it goes (admin, auditor)
    Jobs(jobs::JobArgs),
    /// What ended long ago and was taken out of the record (admin)
    Archive(jobs::ArchiveArgs),
    /// Locks: take them, hold them while a command runs, see who holds and who waits
    Lock(lock::Args),
    /// The configuration of a server here, and settings that all servers share
    Config(config::Args),
    /// The Redis keyspace: every key, channel and consumer group, from one catalog
    Keys(keys::Args),
    /// Measure the product on this machine, against its aims
    Bench(ade_bench::Args),
    /// Ends a command of `ade lock hold` or of a worker that is gone itself
    #[command(hide = true, name = ade_executors::watchdog::NAME)]
    Watchdog,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Worker(args) => worker::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Login(args) => login::login(&args).map(|()| ExitCode::SUCCESS),
        Command::Logout(args) => login::logout(&args).map(|()| ExitCode::SUCCESS),
        Command::Whoami(args) => login::whoami(&args).map(|()| ExitCode::SUCCESS),
        Command::User(args) => user::run(args).map(|()| ExitCode::SUCCESS),
        Command::Task(args) => task::run(args).map(|()| ExitCode::SUCCESS),
        Command::Approval(args) => approval::run(args).map(|()| ExitCode::SUCCESS),
        Command::Policy(args) => policy::run(args).map(|()| ExitCode::SUCCESS),
        Command::Delegation(args) => delegation::run(args).map(|()| ExitCode::SUCCESS),
        Command::Resource(args) => resource::run(args).map(|()| ExitCode::SUCCESS),
        Command::Simulate(args) => simulate::run(args).map(|()| ExitCode::SUCCESS),
        Command::Audit(args) => audit::run(args).map(|()| ExitCode::SUCCESS),
        Command::Jobs(args) => jobs::jobs(&args).map(|()| ExitCode::SUCCESS),
        Command::Archive(args) => jobs::archive(args).map(|()| ExitCode::SUCCESS),
        Command::Lock(args) => lock::run(args),
        Command::Config(args) => config::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench::run(args).map(|()| ExitCode::SUCCESS),
        Command::Keys(args) => keys::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Watchdog => watchdog::run().map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests;
