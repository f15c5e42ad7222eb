//! `ade bench locks`: the lock rows of the speed table, on an embedded server or on one with its locks on Redis.

mod acquire;
mod deadlock;
mod handover;
mod hold;
mod pair;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{BenchError, ErrorKind};
use crate::link::Target;
use crate::machine::Machine;
use crate::report::{Report, Row};
use crate::subject::{Choice, OnARedis};

const HOW: &str = "\
What is measured, and how:
  pair      With --redis only: 50 clients take and give back locks of their own, through the backend and not over HTTP,
            in turns with the least that any lock on Redis can cost: SET NX PX, then a compare-and-delete script, with
            the same client. Processor time of Redis is its own account of it.
  acquire   2,000 acquisitions a second are offered over 50 keep-alive connections, by the clock: a request counts from
            the moment at which it should have started, so a stall is charged for all that had to wait. Every acquisition
            is followed by its release, which is load but not measured: 4,000 requests a second in all. In turns with it
            runs the same load on GET /healthz, the HTTP stack without a lock; ratios compare the two.
  handover  10 and then 1,000 requests wait for one lock, each with its answer held open on a connection of its own. From
            sending the holder's release until the next waiter has its answer; the former holder queues again.
  hold      50,000 locks of 50 agents are held and renewed every 10 seconds, 1,000 locks in a call. Processor time of
            the server process over the window, less what it uses idle; resident memory, less what it had empty.
  deadlock  10,100 holders wait, in a graph that the search has to walk completely. From sending the request that closes
            a cycle until the victim has its answer.
Each row has a new server process of its own with a new data folder, both gone afterwards. A missed aim is no failure:
the exit code tells only whether everything could be measured.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = HOW, after_help = "--help tells what is measured, and how.")]
pub(super) struct Args {
    /// Only these rows
    #[arg(long, value_name = "ROW", value_enum)]
    only: Vec<RowName>,
    /// Seconds that each load lasts; other sizes follow
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Small sizes that show whether everything works; nothing is judged
    #[arg(long)]
    quick: bool,
    /// As JSON, with all quantiles and the machine
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder to make the data folders in: the disk matters [default: the system's folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Measure with locks on this Redis, which must be empty and is emptied after each row
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    redis: Option<String>,
    /// Measure a server that runs already, over plain HTTP; the row hold cannot be measured there
    #[arg(long, value_name = "URL", requires = "token", conflicts_with = "data")]
    server: Option<String>,
    /// Token to act with at that server
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowName {
    Pair,
    Acquire,
    Handover,
    Hold,
    Deadlock,
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) quick: bool,
    pub(super) seconds: f64,
    /// Acquisitions offered in a second.
    pub(super) rate: u32,
    pub(super) connections: usize,
    pub(super) handovers: usize,
    pub(super) short_queue: usize,
    pub(super) long_queue: usize,
    /// Locks that are held.
    pub(super) locks: usize,
    /// Branches of the graph, and leaves of each.
    pub(super) fan: usize,
    pub(super) closings: usize,
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
                fan: 10,
                closings: 3,
            };
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let times = |per_second: f64| (per_second * args.seconds).max(1.0) as usize;
        Self {
            quick: false,
            seconds: args.seconds,
            rate: 2_000,
            connections: 50,
            handovers: times(100.0),
            short_queue: 10,
            long_queue: 1_000,
            locks: 50_000,
            fan: 100,
            closings: times(20.0),
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.5..=600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number between 0.5 and 600".to_owned())
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let choice = match &args.server {
        Some(url) => Choice::Running(Target::new(url, args.token.as_deref().unwrap_or_default())?),
        None => Choice::Own(args.data.clone().unwrap_or_else(std::env::temp_dir), None),
    };
    allow_many_connections();
    crate::interruptible(measure(args, choice)).await
}

async fn measure(args: &Args, mut choice: Choice) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    if let (Choice::Own(_, redis), Some(address)) = (&mut choice, &args.redis) {
        *redis = Some(OnARedis::open(address).await?);
    }
    let (own, redis) = match &choice {
        Choice::Own(_, redis) => (true, redis.as_ref()),
        Choice::Running(_) => (false, None),
    };
    if redis.is_none() && args.only.contains(&RowName::Pair) {
        return Err(BenchError::new(ErrorKind::Input, "the row pair is measured on Redis")
            .hint("name one with --redis"));
    }
    let wanted = |row: &RowName| match args.only.as_slice() {
        [] => (own || *row != RowName::Hold) && (redis.is_some() || *row != RowName::Pair),
        only => only.contains(row),
    };
    let bars = MultiProgress::new();
    let mut rows = Vec::new();
    for row in RowName::value_variants().iter().filter(|row| wanted(row)) {
        let bar = bars.add(bar(*row));
        let measured = measure_one(*row, &choice, &sizes, &bar).await;
        bar.finish();
        if let Some(redis) = redis {
            redis.clear().await?;
        }
        rows.push(measured?);
    }
    bars.clear()?;
    Ok(Report { machine: Machine::look(), quick: sizes.quick, seconds: sizes.seconds, rows })
}

async fn measure_one(
    row: RowName,
    choice: &Choice,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    if let (RowName::Pair, Choice::Own(_, Some(redis))) = (row, choice) {
        return pair::measure(redis, sizes, bar).await;
    }
    let subject = choice.start()?;
    match row {
        RowName::Pair => Err(BenchError::new(ErrorKind::Input, "the row pair is measured on Redis")),
        RowName::Acquire => acquire::measure(&subject, sizes, bar).await,
        RowName::Handover => handover::measure(&subject, sizes, bar).await,
        RowName::Hold => hold::measure(&subject, sizes, bar).await,
        RowName::Deadlock => deadlock::measure(&subject, sizes, bar).await,
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

/// A thousand waiting connections need as many files, on both sides; the server inherits this. If it is refused, the
/// connections that cannot be had say so.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
