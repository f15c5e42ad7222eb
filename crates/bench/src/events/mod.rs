//! `ade bench events`: how long events take to followers and to streams, how fast projections are written, and what they cost.

mod latency;
mod relay_cost;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::MultiProgress;

use crate::approvals::{Distributed, bar};
use crate::error::{BenchError, ErrorKind};
use crate::lifecycle::Sizes;
use crate::machine::Machine;
use crate::report::{Deployment, Report};
use crate::server::ServerProgram;

const METHOD: &str = "\
What is measured, and how:
  followers    WebSocket clients of several auditors follow all events of tasks, while others
               create drafts at a constant rate. Each event counts from its timestamp, which is
               read before the commit, until each client has it. Memory is that of the server
               process with all clients connected, less that without, for each client.
  stream       The same from the timestamp until a client that blocks on ade:events:task has it.
  projections  `ade rebuild` beside the server, on the tasks of the rows before.
  relay        Whole lifecycles as in `ade bench lifecycle --only noop`, by two servers with new
               data, one of which writes projections and streams; in turns.
All rows but the first need --redis and --postgres. A missed aim is not an error.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for what is measured, and how.")]
pub(super) struct Args {
    /// Measure only these rows
    #[arg(long, value_name = "ROW", value_enum)]
    only: Vec<Measurement>,
    /// Clients that follow events at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    followers: u32,
    /// Events per second
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    rate: u32,
    /// Seconds of each row
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    Followers,
    Stream,
    Projections,
    Relay,
}

/// Schemas that a run creates.
const SCHEMAS: usize = 3;

impl Args {
    fn followers(&self) -> usize {
        if self.quick { 20 } else { self.followers as usize }
    }

    fn seconds(&self) -> f64 {
        if self.quick { 0.5 } else { self.seconds }
    }

    fn sizes(&self, relay: bool) -> Sizes {
        let (clients, rounds) = if self.quick { (2, 1) } else { (8, 1) };
        let seconds = if self.quick { 0.5 } else { self.seconds / f64::from(relay_cost::TURNS) };
        Sizes { quick: self.quick, seconds, clients, window: 32, slots: 32, rounds, relay }
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
        let _ = distributed.clear(SCHEMAS).await;
    }
    measured
}

async fn measure(args: &Args, distributed: Option<&Distributed>) -> Result<Report, BenchError> {
    let is_selected = |row: Measurement| args.only.is_empty() || args.only.contains(&row);
    if distributed.is_none() && args.only.iter().any(|row| *row != Measurement::Followers) {
        let message = "only the row followers can be measured without --redis and --postgres";
        return Err(BenchError::new(ErrorKind::Input, message));
    }
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    let bars = MultiProgress::new();
    let mut rows = Vec::new();
    if [Measurement::Followers, Measurement::Stream, Measurement::Projections].into_iter().any(is_selected) {
        let bar = bars.add(bar("latency".to_owned()));
        rows.extend(latency::rows(args, &parent, distributed, is_selected).await?);
        bar.finish();
    }
    if let Some(distributed) = distributed.filter(|_| is_selected(Measurement::Relay)) {
        let bar = bars.add(bar("relay".to_owned()));
        rows.push(relay_cost::row(args, &parent, distributed, &bar).await?);
        bar.finish();
    }
    bars.clear()?;
    Ok(Report {
        machine: Machine::detect(),
        deployment: distributed.map_or(Deployment::Embedded, |_| Deployment::Distributed),
        binary: args.program.binary.clone(),
        quick: args.quick,
        seconds: args.seconds(),
        rows,
    })
}
