//! `ade bench locks`: latency, throughput and cost of locks, embedded or on Redis.

mod acquire;
mod contended;
mod deadlock;
mod handover;
mod hold;
mod pair;
mod stall;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client_threads::ClientThreads;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::Target;
use crate::machine::Machine;
use crate::report::{Deployment, Report, Row};
use crate::server::{BenchRedis, ServerChoice, ServerProgram};

/// Of rows whose clients call the lock library in this process. All others have one.
const CLIENT_THREADS: usize = 2;
const METHOD: &str = "\
What is measured, and how:
  pair      With --redis only: 50 clients acquire and release their own locks through the
            backend, without HTTP. Alternates with the cheapest possible lock on Redis, SET NX
            PX and a compare-and-delete script, through the same client. Both run on two threads
            of this process, so --binary does not apply.
  contended With --redis only: 50 clients want one lock all the time, through the backend
            without HTTP. Each releases it as soon as it has it and queues again. --binary does
            not apply.
  acquire   2,000 acquisitions per second are offered over 50 keep-alive connections. Latency
            counts from the scheduled start of a request, so a stall counts for every request
            that it delays. Each acquisition is followed by its release, which is load but not
            measured: 4,000 requests per second in total. Alternates with the same load on GET
            /healthz, the HTTP stack without a lock; ratios compare the two.
  handover  10 and then 1,000 requests wait for one lock, each in a long poll on its own
            connection. Measured from sending the release of the holder until the next waiter
            has its response. The previous holder queues again.
  hold      50 agents hold 50,000 locks and renew them every 10 seconds, 1,000 locks per
            request. CPU time of the server process above idle; resident memory above an empty
            server.
  stall     1,000,000 locks (50,000 on Redis) are acquired and renewed, while one more is taken
            and given back every 5 ms: the longest of these, and the longest GET /healthz
            meanwhile, which is the noise of the machine. The same while pages of the full
            server are read, and after it was killed and started again.
  deadlock  10,100 holders wait in a graph that the search has to visit completely. Measured
            from sending the request that closes a cycle until the victim has its response.
Each row has a new server process with a new data folder; both are removed afterwards. A missed
aim is not an error: the exit code is 0 if everything could be measured.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for what is measured, and how.")]
pub(super) struct Args {
    /// Measure only these rows
    #[arg(long, value_name = "ROW", value_enum)]
    only: Vec<RowName>,
    /// Seconds of each load; other sizes scale with it
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
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
    /// Keep locks on this Redis, which must be empty and is flushed after each row
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    redis: Option<String>,
    #[command(flatten)]
    program: ServerProgram,
    /// Measure a running server over plain HTTP, without the row hold
    #[arg(long, value_name = "URL", requires = "token", conflicts_with_all = ["binary", "data"])]
    server: Option<String>,
    /// Token for the running server
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowName {
    Pair,
    Contended,
    Acquire,
    Handover,
    Hold,
    Stall,
    Deadlock,
}

impl RowName {
    /// Whether it measures the backend itself, without a server.
    const fn needs_redis(self) -> bool {
        matches!(self, Self::Pair | Self::Contended)
    }
}

fn needs_redis() -> BenchError {
    BenchError::new(ErrorKind::Input, "the rows pair and contended can only be measured on Redis")
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) quick: bool,
    pub(super) seconds: f64,
    /// Acquisitions offered per second.
    pub(super) rate: u32,
    pub(super) connections: usize,
    pub(super) handovers: usize,
    pub(super) short_queue: usize,
    pub(super) long_queue: usize,
    pub(super) locks: usize,
    /// Of the row stall, embedded.
    pub(super) stall_locks: usize,
    /// Branches of the graph, and leaves of each.
    pub(super) fan_out: usize,
    pub(super) deadlocks: usize,
}

impl Sizes {
    fn of(args: &Args) -> Self {
        if args.quick {
            return Self {
                quick: true,
                seconds: 1.0,
                rate: 200,
                connections: 10,
                handovers: 20,
                short_queue: 10,
                long_queue: 50,
                locks: 2_000,
                stall_locks: 2_000,
                fan_out: 10,
                deadlocks: 3,
            };
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let scaled = |per_second: f64| (per_second * args.seconds).max(1.0) as usize;
        Self {
            quick: false,
            seconds: args.seconds,
            rate: 2_000,
            connections: 50,
            handovers: scaled(100.0),
            short_queue: 10,
            long_queue: 1_000,
            locks: 50_000,
            stall_locks: 1_000_000,
            fan_out: 100,
            deadlocks: scaled(20.0),
        }
    }
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.5..=600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number between 0.5 and 600".to_owned())
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let choice = match &args.server {
        Some(url) => ServerChoice::External(Target::new(url, args.token.as_deref().unwrap_or_default())?),
        None => {
            let data = args.data.clone().unwrap_or_else(std::env::temp_dir);
            ServerChoice::Spawned(args.program.clone(), data, None)
        }
    };
    raise_file_limit();
    crate::interruptible(measure(args, choice)).await
}

async fn measure(args: &Args, mut choice: ServerChoice) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    if let (ServerChoice::Spawned(.., redis), Some(address)) = (&mut choice, &args.redis) {
        *redis = Some(BenchRedis::open(address).await?);
    }
    let (is_spawned, redis) = match &choice {
        ServerChoice::Spawned(.., redis) => (true, redis.as_ref()),
        ServerChoice::External(_) => (false, None),
    };
    if redis.is_none() && args.only.iter().any(|row| row.needs_redis()) {
        return Err(needs_redis().hint("add --redis URL"));
    }
    let is_selected = |row: &RowName| match args.only.as_slice() {
        [] => (is_spawned || *row != RowName::Hold) && (redis.is_some() || !row.needs_redis()),
        only => only.contains(row),
    };
    let bars = MultiProgress::new();
    let mut rows = Vec::new();
    for row in RowName::value_variants().iter().filter(|row| is_selected(row)) {
        let bar = bars.add(bar(*row));
        let measured = measure_row(*row, &choice, &sizes, &bar).await;
        bar.finish();
        if let Some(redis) = redis {
            redis.clear().await?;
        }
        rows.push(measured?);
    }
    bars.clear()?;
    let deployment = match (is_spawned, redis) {
        (true, None) => Deployment::Embedded,
        (true, Some(_)) => Deployment::Redis,
        (false, _) => Deployment::External,
    };
    let binary = args.program.binary.clone();
    let Sizes { quick, seconds, .. } = sizes;
    Ok(Report { machine: Machine::detect(), deployment, binary, quick, seconds, rows })
}

async fn measure_row(
    row: RowName,
    choice: &ServerChoice,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let redis = match choice {
        ServerChoice::Spawned(.., redis) => redis.clone(),
        ServerChoice::External(_) => None,
    };
    if let (RowName::Pair | RowName::Contended, Some(redis)) = (row, redis) {
        let (sizes, bar) = (*sizes, bar.clone());
        let threads = ClientThreads::start(CLIENT_THREADS)?;
        return threads
            .run(async move {
                match row {
                    RowName::Pair => pair::measure(&redis, &sizes, &bar).await,
                    _ => contended::measure(&redis, &sizes, &bar).await,
                }
            })
            .await;
    }
    let server = choice.start()?;
    match row {
        RowName::Pair | RowName::Contended => Err(needs_redis()),
        RowName::Acquire => acquire::measure(&server, sizes, bar).await,
        RowName::Handover => handover::measure(&server, sizes, bar).await,
        RowName::Hold => hold::measure(&server, sizes, bar).await,
        RowName::Stall => stall::measure(choice, server, sizes, bar).await,
        RowName::Deadlock => deadlock::measure(&server, sizes, bar).await,
    }
}

fn bar(row: RowName) -> ProgressBar {
    let name = row.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let bar = ProgressBar::new(1).with_prefix(name);
    let style = ProgressStyle::with_template("  {prefix:<10} {bar:40.cyan/dim} {percent:>3} %  {elapsed}");
    match style {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}

/// A thousand waiting connections need as many file descriptors; the server inherits the limit. If it cannot be raised, opening
/// the connections fails with an error.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
