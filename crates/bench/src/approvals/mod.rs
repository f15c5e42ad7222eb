//! `ade bench approvals`: what deciding, listing and searching costs with a thousand and with a million tasks stored.

mod history;
mod lists;
mod people;
mod place;
mod rows;
mod writes;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use place::Filled;

pub(super) use people::sign_in;
pub(super) use place::{CHECKPOINT_SECONDS, Distributed, REQUESTS_PER_MINUTE, away};
pub(super) use rows::number;

const HOW: &str = "\
What is measured, and how:
  lists     Tasks by state, author, resource, tag and type, as somebody who sees everything; all tasks that an ordinary
            person may see; its inbox; the audit log by task, actor, action and time. The first page of 50, and one
            from the middle. One request after the other, all lists and all numbers of tasks in turns.
  create    Clients that create tasks as fast as they are answered, each with an author of its own, in turns with the
            bare minimum: as many clients with one transaction and one row each, in the same kind of database, through
            the same driver.
  submit    The same tasks are submitted: scored, assigned, two people are asked.
  approve   200 approvals a second are offered, by the clock: latency counts from the moment at which a request should
            have started. Each decides its task.
Everything is measured with each number of tasks, on a server process of its own with new data. The tasks of the past
year are loaded in bulk, past the server: decided like real ones, most of them completed, with everything that was
recorded about them. Those of the rows create and submit come on top. A missed aim is no failure: the exit code tells
only whether everything could be measured.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = HOW, after_help = "--help tells what is measured, and how.")]
pub(super) struct Args {
    /// Tasks stored; may be given several times, the smallest first [default: 1000, then 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(40..=100_000_000))]
    tasks: Vec<u64>,
    /// Seconds that the load of approvals lasts; other sizes follow
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = super::locks::seconds)]
    seconds: f64,
    /// Small sizes that show whether everything works, with 1,000 and 20,000 tasks; nothing is judged
    #[arg(long)]
    quick: bool,
    /// As JSON, with all quantiles and the machine
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder to make the data folders in: the disk matters, and a million tasks need 16 GB [default: the system's
    /// folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Measure with locks on this Redis, which must be empty and is emptied
    #[arg(long, value_name = "URL", requires = "postgres")]
    redis: Option<String>,
    /// Measure with the record in this database, which must be empty and is emptied
    #[arg(long, value_name = "URL", requires = "redis")]
    postgres: Option<String>,
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    quick: bool,
    seconds: f64,
    /// Approvals offered in a second.
    rate: u32,
    connections: usize,
    /// How often each list is asked for.
    rounds: usize,
}

impl Sizes {
    fn of(args: &Args) -> Self {
        let (rate, connections) = (200, 8);
        if args.quick {
            return Self { quick: true, seconds: 1.0, rate: 50, connections, rounds: 10 };
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let rounds = (20.0 * args.seconds).max(1.0) as usize;
        Self { quick: false, seconds: args.seconds, rate, connections, rounds }
    }

    /// How long a load runs before it counts.
    fn warm_seconds(&self) -> f64 {
        self.seconds.min(1.0)
    }
}

/// Everything about one number of tasks.
#[derive(Debug)]
struct Measured {
    tasks: usize,
    load_seconds: f64,
    bytes: Option<u64>,
    lists: Vec<lists::Listed>,
    written: writes::Written,
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let on = match (&args.redis, &args.postgres) {
        (Some(redis), Some(postgres)) => Some(Distributed::open(redis, postgres).await?),
        _ => None,
    };
    let measured = crate::interruptible(measure(args, on.as_ref())).await;
    if let (Err(_), Some(on)) = (&measured, &on) {
        // The first failure is the one to report.
        let _ = on.clear(args.tasks.len().max(2)).await;
    }
    measured
}

async fn measure(args: &Args, on: Option<&Distributed>) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    let many: &[u64] = match (args.tasks.as_slice(), args.quick) {
        ([], true) => &[1_000, 20_000],
        ([], false) => &[1_000, 1_000_000],
        (many, _) => many,
    };
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    if on.is_none() {
        place::has_room(&parent, many.iter().sum())?;
    }
    let (bars, mut places, mut all) = (MultiProgress::new(), Vec::new(), Vec::new());
    let step = |what: &str| bars.add(bar(what.to_owned()));
    for (number, tasks) in many.iter().enumerate() {
        let tasks = usize::try_from(*tasks).unwrap_or(usize::MAX);
        let loading = step(&format!("load {}", rows::number(tasks)));
        let connections = u32::try_from(sizes.connections).unwrap_or(u32::MAX);
        places.push(Filled::make(&parent, on, number, tasks, connections, &loading).await?);
        loading.finish();
    }
    // All servers in turns, so that a noisy neighbour disturbs all alike.
    let listing = step("lists");
    let lists = lists::measure(&places, sizes.rounds, &listing).await?;
    listing.finish();
    for (filled, lists) in places.into_iter().zip(lists) {
        let writing = step(&format!("writes {}", number(filled.tasks)));
        let written = writes::measure(&filled, &sizes, &writing).await?;
        writing.finish();
        let (tasks, load_seconds, bytes) = (filled.tasks, filled.load_seconds, filled.bytes());
        filled.clear().await?;
        all.push(Measured { tasks, load_seconds, bytes, lists, written });
    }
    if let Some(on) = on {
        on.clear(0).await?;
    }
    bars.clear()?;
    let settings = on.map(|on| on.postgres.settings.as_str());
    let rows = rows::of(&all, &sizes, settings);
    Ok(Report { machine: Machine::look(), quick: sizes.quick, seconds: sizes.seconds, rows })
}

pub(super) fn bar(name: String) -> ProgressBar {
    let bar = ProgressBar::new(1).with_prefix(name);
    let style = ProgressStyle::with_template("  {prefix:<18} {bar:40.cyan/dim} {percent:>3} %  {elapsed}");
    match style {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}
