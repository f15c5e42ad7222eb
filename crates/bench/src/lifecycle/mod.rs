//! `ade bench lifecycle`: tasks per minute through the whole lifecycle, from create to COMPLETED.
//!
//! Figures are reported only if a verification afterwards shows that every created task was completed exactly once.

mod baseline;
mod client;
mod environment;
mod rounds;
mod rows;
mod verify;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::MultiProgress;

use crate::approvals::{Distributed, bar};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::{Deployment, Report};
use crate::server::ServerProgram;
pub(crate) use client::Workload;
pub(crate) use environment::{Environment, author};
pub(crate) use rounds::{LifecycleResults, measure as measure_rounds};

const METHOD: &str = "\
What is measured, and how:
  noop      Each client proposes tasks that change nothing and keeps a number of them in flight:
            create, submit and, when its reviewer finds the request in the inbox, approve, each
            as an HTTP request of its own. The worker in the server process applies the task. A
            lifecycle counts when the client sees the task in the list of its COMPLETED tasks,
            which it polls about as often as a quarter of the tasks in flight complete.
  files     The same with tasks that write one small file each, into a folder of its own below
            one root.
Both alternate with a baseline: as many clients with five transactions of one row each, in the
same kind of database, through the same driver, without HTTP. Latency counts from sending
create, and from sending approve, until the client sees COMPLETED. Each row has a server process
with new data. Afterwards every task is verified: completed exactly once, and its file as
requested. A missed aim is not an error: the exit code is 0 if everything could be measured and
nothing was lost.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for what is measured, and how.")]
pub(super) struct Args {
    /// Measure only these rows
    #[arg(long, value_name = "ROW", value_enum)]
    only: Vec<Workload>,
    /// Number of clients, each with its own author, reviewer and connections
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    clients: u32,
    /// Tasks that each client keeps in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=200))]
    window: u32,
    /// Tasks that the worker applies in parallel
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    slots: u32,
    /// Seconds of each row, without the baseline
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = super::locks::parse_seconds)]
    seconds: f64,
    /// Small sizes, to check that everything works; without verdicts
    #[arg(long)]
    quick: bool,
    /// Print JSON with all quantiles and the machine
    #[arg(long)]
    pub(crate) json: bool,
    /// Parent of the data folders; its disk affects the results [default: the system folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    #[command(flatten)]
    program: ServerProgram,
    /// Keep locks on this Redis, which must be empty and is flushed afterwards
    #[arg(long, value_name = "URL", requires = "postgres")]
    redis: Option<String>,
    /// Store tasks in this PostgreSQL database, which must be empty and is emptied afterwards
    #[arg(long, value_name = "URL", requires = "redis")]
    postgres: Option<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) quick: bool,
    pub(crate) seconds: f64,
    pub(crate) clients: usize,
    pub(crate) window: usize,
    pub(crate) slots: u32,
    /// How often benchmark and baseline alternate.
    pub(crate) rounds: u32,
    /// Whether the server writes projections and streams; on Redis and PostgreSQL only.
    pub(crate) relay: bool,
}

impl Sizes {
    fn of(args: &Args) -> Self {
        let (clients, window) = (args.clients as usize, args.window as usize);
        let (seconds, rounds) = if args.quick { (0.5, 1) } else { (args.seconds, 4) };
        Self { quick: args.quick, seconds, clients, window, slots: args.slots, rounds, relay: true }
    }
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let distributed = match (&args.redis, &args.postgres) {
        (Some(redis), Some(postgres)) => Some(Distributed::open(redis, postgres).await?),
        _ => None,
    };
    let measured = crate::interruptible(measure(args, distributed.as_ref())).await;
    if let (Err(_), Some(distributed)) = (&measured, &distributed) {
        // The error of the benchmark is reported, not one of the cleanup.
        let _ = distributed.clear(Workload::value_variants().len()).await;
    }
    measured
}

async fn measure(args: &Args, distributed: Option<&Distributed>) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    let (bars, mut rows) = (MultiProgress::new(), Vec::new());
    let selected = Workload::value_variants()
        .iter()
        .filter(|workload| args.only.is_empty() || args.only.contains(workload));
    for (number, workload) in selected.enumerate() {
        let bar = bars.add(bar(workload.name().to_owned()));
        bar.set_length(u64::from(sizes.rounds) + 1);
        let environment =
            Environment::create(&args.program, &parent, distributed, number, *workload, &sizes).await?;
        let (results, clients) = rounds::measure(&environment, *workload, &sizes, &bar).await?;
        let verified = verify::verify_tasks(&environment, &clients).await?;
        bar.inc(1);
        rows.push(rows::row(*workload, &results, &verified, &sizes, distributed));
        environment.remove().await?;
        bar.finish();
    }
    bars.clear()?;
    let deployment = distributed.map_or(Deployment::Embedded, |_| Deployment::Distributed);
    let Sizes { quick, seconds, .. } = sizes;
    Ok(Report {
        machine: Machine::detect(),
        deployment,
        binary: args.program.binary.clone(),
        quick,
        seconds,
        rows,
    })
}
