//! The benchmarks behind `ade bench`: locks, approvals, whole task lifecycles, events and audits, each compared with a baseline in the same run.
//!
//! A report shows a missed aim as missed. Servers and data of a benchmark are removed however it ends.

mod approvals;
mod audit;
mod chart;
mod client_threads;
mod compare;
mod cpu;
mod database;
mod error;
mod events;
mod http_client;
mod lifecycle;
mod locks;
mod machine;
mod open_loop;
mod processes;
mod redis_baseline;
mod report;
mod samples;
mod server;

use std::future::Future;

use clap::{Args as ClapArgs, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

pub use compare::{ComparedFigure, Difference, Spread};
pub use cpu::CpuCost;
pub use error::{BenchError, ErrorKind};
pub use machine::Machine;
pub use report::{Deployment, Figure, Ratio, Report, Row, Verdict};

#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure locks, embedded or on Redis: latency, handover, heartbeats, deadlocks
    Locks(locks::Args),
    /// Measure approvals, embedded or on Redis and PostgreSQL: decisions, lists and searches with many stored tasks
    Approvals(approvals::Args),
    /// Measure whole lifecycles, embedded or on Redis and PostgreSQL: create, submit, approve, apply, complete
    Lifecycle(lifecycle::Args),
    /// Measure events: from commit to followers and streams, projections, and what they cost
    Events(events::Args),
    /// Measure audits of a keyspace: keys per second, and what another client of the server notices
    Audit(audit::Args),
    /// Compare the reports of two builds: which figures differ by more than noise
    Compare(compare::Args),
    /// Draw the comparison with other lock services as SVG, to standard output
    Chart(chart::Args),
}

impl Args {
    #[must_use]
    pub fn is_json(&self) -> bool {
        match &self.command {
            Command::Locks(args) => args.json,
            Command::Approvals(args) => args.json,
            Command::Lifecycle(args) => args.json,
            Command::Events(args) => args.json,
            Command::Audit(args) => args.json,
            Command::Compare(args) => args.json,
            Command::Chart(_) => false,
        }
    }
}

/// What a command of `ade bench` shows.
#[derive(Debug)]
pub enum Outcome {
    Measured(Report),
    Compared(Vec<ComparedFigure>),
    /// SVG.
    Drawn(String),
}

/// Runs a benchmark, or compares or draws earlier ones. A quick run is too small to judge, so its report has no verdicts.
pub async fn run(args: Args) -> Result<Outcome, BenchError> {
    let report = match &args.command {
        Command::Locks(args) => locks::run(args).await?,
        Command::Approvals(args) => approvals::run(args).await?,
        Command::Lifecycle(args) => lifecycle::run(args).await?,
        Command::Events(args) => events::run(args).await?,
        Command::Audit(args) => audit::run(args).await?,
        Command::Compare(args) => return compare::run(args).map(Outcome::Compared),
        Command::Chart(args) => return chart::run(args).map(Outcome::Drawn),
    };
    Ok(Outcome::Measured(if report.quick { report.without_verdicts() } else { report }))
}

/// Runs a benchmark until it ends or a signal interrupts it. Dropping the future removes its servers and folders.
async fn interruptible<T>(benchmark: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let interrupted = || {
        let message = "interrupted; the server process and its data are removed";
        Err(BenchError::new(ErrorKind::Unavailable, message))
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        result = benchmark => result,
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
        _ = hangup.recv() => interrupted(),
    }
}
