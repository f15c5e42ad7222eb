//! `peers`: the same workload on the bare minimum and on peers, in one run, on servers of its own.
//!
//! Invariants: nothing here reaches the shipped binary; a peer or a row that cannot be measured is reported with the
//! reason; servers and workers end with this process, however it ends.

mod ade;
mod advisory;
mod bare;
mod clock;
mod contestants;
mod crowd;
mod etcd;
mod failure;
mod machine;
mod peer;
mod python;
mod redlock;
mod report;
mod rounds;
mod rows;
mod servers;
mod usage;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::contestants::{Contestant, NAMES, Settings};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::python::Python;
use crate::report::Report;
use crate::rows::{Row, RowName, WAITERS};
use crate::servers::{Kind, Servers};

/// Locks of ADE's peers, measured beside the bare minimum on this machine.
#[derive(Debug, Parser)]
#[command(name = "peers")]
struct Args {
    /// Only these peers; without the bare minimum there are no ratios
    #[arg(long, value_name = "PEER", value_delimiter = ',', value_parser = NAMES.map(|(name, _)| name))]
    only: Vec<String>,
    /// Only these rows
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum)]
    row: Vec<RowName>,
    /// Seconds that each slice lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds: in each, every peer has one slice of each row
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// One round of one second: shows whether everything works
    #[arg(long)]
    quick: bool,
    /// Write all rounds, the versions and the machine to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Pause between two tries in milliseconds, for all peers that ask again and again [default: their own]
    #[arg(long, value_name = "MS")]
    pause: Option<u64>,
    /// Threads that clients in Rust run on
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Python with the packages of peers/requirements.txt; `make bench` makes one
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Processes that share the clients of a Python peer [default: as many as cores, which is the fastest]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    python_processes: Option<u32>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.5..=60.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number between 0.5 and 60".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    allow_many_connections();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is gone there is nobody left to tell.
            let _ = writeln!(anstream::stderr(), "error: {failure}");
            ExitCode::from(5)
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let threads = usize::try_from(args.threads).unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(Failure::of("start threads"))?;
    let report = runtime.block_on(async {
        let listen = |kind| signal(kind).map_err(Failure::of("listen to signals"));
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let mut hangup = listen(SignalKind::hangup())?;
        // Leaving this block drops servers and workers, whichever way it is left.
        let interrupted = || Err(Failure::new("interrupted; all servers are stopped"));
        tokio::select! {
            report = measure(args, threads) => report,
            _ = interrupt.recv() => interrupted(),
            _ = terminate.recv() => interrupted(),
            _ = hangup.recv() => interrupted(),
        }
    })?;
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::of("write JSON"))?;
        std::fs::write(file, text + "\n").map_err(Failure::of("write the file of --json"))?;
    }
    report.print().map_err(Failure::of("write the report"))
}

async fn measure(args: &Args, threads: usize) -> Result<Report, Failure> {
    let (seconds, rounds) = if args.quick { (1.0, 1) } else { (args.seconds, args.rounds as usize) };
    let settings = Settings {
        pause: args.pause.map(Duration::from_millis),
        python: args.python.clone(),
        python_processes: args.python_processes.map_or_else(cores, |processes| processes as usize),
    };
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let chosen: Vec<(&'static str, Kind)> = NAMES.into_iter().filter(|(name, _)| wanted(name)).collect();
    let kinds: Vec<Kind> = chosen.iter().map(|(_, kind)| *kind).collect();
    let servers = Servers::start(&kinds, WAITERS.into_iter().max().unwrap_or_default());
    let mut contestants = Vec::new();
    for (name, kind) in chosen {
        contestants.push(Contestant::new(name, kind, &servers, &settings).await);
    }
    let names =
        RowName::value_variants().iter().filter(|name| args.row.is_empty() || args.row.contains(name));
    let rows: Vec<Row> = names.flat_map(|name| Row::all(*name)).collect();
    let bar = bar(rows.len() * rounds * contestants.len());
    let mut reports = Vec::new();
    for row in rows {
        reports.push(rounds::measure(row, &contestants, &servers, seconds, rounds, &bar).await);
    }
    bar.finish_and_clear();
    let mut versions = servers.versions().await;
    versions.extend(machine::crates());
    versions.extend(Python::versions(&settings.python).await.unwrap_or_default());
    Ok(Report {
        machine: Machine::look(),
        quick: args.quick,
        seconds,
        rounds,
        threads,
        versions,
        rows: reports,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn bar(slices: usize) -> ProgressBar {
    let bar = ProgressBar::new(slices as u64);
    match ProgressStyle::with_template("  {bar:40.cyan/dim} {percent:>3} %  {elapsed}  {msg}") {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}

/// A thousand waiting connections need as many files, on both sides; servers inherit this. If it is refused, the
/// connections that cannot be had say so.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
