//! The measurements behind `ade bench`: locks, approvals and whole lifecycles, each beside the bare minimum in the same run.
//!
//! A report shows a missed aim as missed. Servers and data made for a measurement are removed however it ends.

mod approvals;
mod error;
mod lifecycle;
mod link;
mod locks;
mod machine;
mod open_loop;
mod report;
mod samples;
mod subject;

use std::future::Future;

use clap::{Args as ClapArgs, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

pub use error::{BenchError, ErrorKind};
pub use machine::Machine;
pub use report::{Figure, Ratio, Report, Row, Verdict};

#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Locks, embedded or on Redis: latency, handover, heartbeats, deadlocks
    Locks(locks::Args),
    /// Approvals, embedded or on Redis and PostgreSQL: deciding, listing and searching with many tasks stored
    Approvals(approvals::Args),
    /// Whole lifecycles, embedded or on Redis and PostgreSQL: proposed, approved, applied, completed
    Lifecycle(lifecycle::Args),
}

impl Args {
    /// Whether the report is wanted as JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        match &self.command {
            Command::Locks(args) => args.json,
            Command::Approvals(args) => args.json,
            Command::Lifecycle(args) => args.json,
        }
    }
}

/// Measures. A quick run is too small to judge by: its report has no verdicts.
pub async fn run(args: Args) -> Result<Report, BenchError> {
    let report = match &args.command {
        Command::Locks(args) => locks::run(args).await?,
        Command::Approvals(args) => approvals::run(args).await?,
        Command::Lifecycle(args) => lifecycle::run(args).await?,
    };
    Ok(if report.quick { report.without_verdicts() } else { report })
}

/// Runs a measurement until it ends or a signal interrupts it. Dropping the future removes its servers and folders.
async fn interruptible<T>(measurement: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let interrupted = || {
        let message = "interrupted; the server process and its data are removed";
        Err(BenchError::new(ErrorKind::Unavailable, message))
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        done = measurement => done,
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
        _ = hangup.recv() => interrupted(),
    }
}
