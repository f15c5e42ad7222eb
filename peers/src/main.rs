//! `peers`: runs the same lock workload on ADE, on baselines and on other lock services, with servers of its own.
//!
//! Invariants: nothing here reaches the shipped binary; a peer that cannot be measured is reported with the reason; servers and
//! workers end with this process, however it ends.

mod ade;
mod bare;
mod clients;
mod clock;
mod cpu_time;
mod error;
mod etcd;
mod lock_service;
mod machine;
mod postgres;
mod python;
mod redlock;
mod registry;
mod report;
mod rounds;
mod rows;
mod servers;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::python::PythonPeer;
use crate::registry::{NAMES, Peer, Settings};
use crate::report::Report;
use crate::rows::{Row, RowName, WAITERS};
use crate::servers::{ServerKind, Servers};

/// Measure the locks of ADE and its peers, compared with a baseline, on this machine
#[derive(Debug, Parser)]
#[command(name = "peers")]
struct Args {
    /// Measure only these peers; without the baselines there are no ratios
    #[arg(long, value_name = "PEER", value_delimiter = ',', value_parser = NAMES.map(|(name, _)| name))]
    only: Vec<String>,
    /// Measure only these rows
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum)]
    row: Vec<RowName>,
    /// Seconds of each slice
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Number of rounds; in each, every peer has one slice of each row
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// One round of one second, to check that everything works
    #[arg(long)]
    quick: bool,
    /// Write all rounds, the versions and the machine to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Pause between two tries in milliseconds, for all peers that poll [default: their own]
    #[arg(long, value_name = "MS")]
    pause: Option<u64>,
    /// Threads of the clients in Rust; as many as in `ade bench locks`
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Python with the packages of peers/requirements.txt; `make bench` installs it
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Processes that share the clients of a Python peer [default: as many as cores, which is the fastest]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    python_processes: Option<u32>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.5..=60.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number between 0.5 and 60".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    raise_file_limit();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done if standard error is closed.
            let _ = writeln!(anstream::stderr(), "error: {error}");
            ExitCode::from(5)
        }
    }
}

fn run(args: &Args) -> Result<(), BenchError> {
    let threads = usize::try_from(args.threads).unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(BenchError::context("start threads"))?;
    let report = runtime.block_on(async {
        let listen = |kind| signal(kind).map_err(BenchError::context("handle signals"));
        let (mut terminate, mut interrupt) =
            (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let mut hangup = listen(SignalKind::hangup())?;
        // Leaving this block in any way drops servers and workers.
        let interrupted = || Err(BenchError::new("interrupted; all servers are stopped"));
        tokio::select! {
            report = measure(args, threads) => report,
            _ = interrupt.recv() => interrupted(),
            _ = terminate.recv() => interrupted(),
            _ = hangup.recv() => interrupted(),
        }
    })?;
    if let Some(file) = &args.json {
        let text =
            serde_json::to_string_pretty(&report).map_err(BenchError::context("serialise the report"))?;
        std::fs::write(file, text + "\n").map_err(BenchError::context("write the file of --json"))?;
    }
    report.print().map_err(BenchError::context("write the report"))
}

async fn measure(args: &Args, threads: usize) -> Result<Report, BenchError> {
    let (seconds, rounds) = if args.quick { (1.0, 1) } else { (args.seconds, args.rounds as usize) };
    let settings = Settings {
        pause: args.pause.map(Duration::from_millis),
        python: args.python.clone(),
        python_processes: args.python_processes.map_or_else(cores, |processes| processes as usize),
    };
    let is_selected = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let selected: Vec<(&'static str, ServerKind)> =
        NAMES.into_iter().filter(|(name, _)| is_selected(name)).collect();
    let kinds: Vec<ServerKind> = selected.iter().map(|(_, kind)| *kind).collect();
    let servers = Servers::start(&kinds, WAITERS.into_iter().max().unwrap_or_default());
    let mut peers = Vec::new();
    for (name, kind) in selected {
        peers.push(Peer::new(name, kind, &servers, &settings).await);
    }
    let names =
        RowName::value_variants().iter().filter(|name| args.row.is_empty() || args.row.contains(name));
    let rows: Vec<Row> = names.flat_map(|name| Row::all(*name)).collect();
    let bar = bar(rows.len() * rounds * peers.len());
    let mut reports = Vec::new();
    for row in rows {
        reports.push(rounds::measure(row, &peers, &servers, seconds, rounds, &bar).await);
    }
    bar.finish_and_clear();
    let mut versions = servers.versions().await;
    versions.extend(machine::client_crates());
    versions.extend(PythonPeer::versions(&settings.python).await.unwrap_or_default());
    Ok(Report {
        machine: Machine::detect(),
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

/// A thousand waiting connections need as many file descriptors; servers inherit the limit. If it cannot be raised, opening the
/// connections fails with an error.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
