//! `ade bench approvals`: latency of decisions, lists and searches with a thousand and with a million stored tasks.

mod bulk_load;
mod environment;
mod history;
mod lists;
mod organisation;
mod pages;
mod rows;
mod writes;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::{Deployment, Report};
use crate::server::ServerProgram;
use environment::Environment;

pub(super) use environment::{CHECKPOINT_SECONDS, Distributed, REQUESTS_PER_MINUTE};
pub(super) use organisation::with_token_of;
pub(super) use rows::{format_number, group_thousands};

const METHOD: &str = "\
What is measured, and how:
  lists     Tasks by state, author, resource, tag and type, for a user who sees everything; all
            tasks that an ordinary user may see; the inbox of that user; the audit log by task,
            actor, action and time. The first page of 50, and one from the middle. One request
            at a time; lists and numbers of tasks alternate.
  create    Clients create tasks as fast as they get responses, each with its own author.
            Alternates with a baseline: as many clients with one transaction of one row each, in
            the same kind of database, through the same driver.
  submit    The same tasks are submitted: scored, assigned, and two reviewers requested.
  approve   200 approvals per second are offered. Latency counts from the scheduled start of a
            request. Each approval decides its task.
  start     From starting the server process with the stored tasks until it serves requests.
Everything is measured with each number of tasks, on a server process with new data. The tasks
of the past year are loaded in bulk, not through the server: decided like real ones, most of
them completed, with all audit entries and events. The rows create and submit add to them. So
the tables of another build (--binary) must be those of this one. A missed aim is not an error:
the exit code is 0 if everything could be measured.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for what is measured, and how.")]
pub(super) struct Args {
    /// Number of stored tasks; may be repeated, the smallest first [default: 1000, then 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(40..=100_000_000))]
    tasks: Vec<u64>,
    /// Seconds of the load of approvals; other sizes scale with it
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = super::locks::parse_seconds)]
    seconds: f64,
    /// Small sizes with 1,000 and 20,000 tasks, to check that everything works; without verdicts
    #[arg(long)]
    quick: bool,
    /// Print JSON with all quantiles and the machine
    #[arg(long)]
    pub(crate) json: bool,
    /// Parent of the data folders; its disk affects the results, and a million tasks need 16 GB [default: the system
    /// folder for temporary files]
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
struct Sizes {
    quick: bool,
    seconds: f64,
    /// Approvals offered per second.
    rate: u32,
    connections: usize,
    /// Requests per list.
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

    fn warm_up_seconds(&self) -> f64 {
        self.seconds.min(1.0)
    }
}

/// Results with one number of tasks.
#[derive(Debug)]
struct Measured {
    tasks: usize,
    load_seconds: f64,
    start_seconds: f64,
    bytes: Option<u64>,
    lists: lists::ListResults,
    pages: pages::PageResults,
    writes: writes::WriteResults,
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let distributed = match (&args.redis, &args.postgres) {
        (Some(redis), Some(postgres)) => Some(Distributed::open(redis, postgres).await?),
        _ => None,
    };
    let measured = crate::interruptible(measure(args, distributed.as_ref())).await;
    if let (Err(_), Some(distributed)) = (&measured, &distributed) {
        // The error of the benchmark is reported, not one of the cleanup.
        let _ = distributed.clear(args.tasks.len().max(2)).await;
    }
    measured
}

async fn measure(args: &Args, distributed: Option<&Distributed>) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    let task_counts: &[u64] = match (args.tasks.as_slice(), args.quick) {
        ([], true) => &[1_000, 20_000],
        ([], false) => &[1_000, 1_000_000],
        (counts, _) => counts,
    };
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    if distributed.is_none() {
        environment::check_disk_space(&parent, task_counts.iter().sum())?;
    }
    let (bars, mut environments, mut all) = (MultiProgress::new(), Vec::new(), Vec::new());
    let add_bar = |name: &str| bars.add(bar(name.to_owned()));
    for (number, tasks) in task_counts.iter().enumerate() {
        let tasks = usize::try_from(*tasks).unwrap_or(usize::MAX);
        let loading = add_bar(&format!("load {}", format_number(tasks)));
        let connections = u32::try_from(sizes.connections).unwrap_or(u32::MAX);
        environments.push(
            Environment::create(&args.program, &parent, distributed, number, tasks, connections, &loading)
                .await?,
        );
        loading.finish();
    }
    // All servers alternate, so that noise affects all alike.
    let listing = add_bar("lists");
    let lists = lists::measure(&environments, sizes.rounds, &listing).await?;
    listing.finish();
    for (environment, lists) in environments.into_iter().zip(lists) {
        let opening = add_bar(&format!("pages {}", format_number(environment.tasks)));
        let pages = pages::measure(&environment, sizes.rounds, &opening).await?;
        opening.finish();
        let writing = add_bar(&format!("writes {}", format_number(environment.tasks)));
        let writes = writes::measure(&environment, &sizes, &writing).await?;
        writing.finish();
        let Environment { tasks, load_seconds, start_seconds, .. } = environment;
        let bytes = environment.database_bytes();
        environment.remove().await?;
        all.push(Measured { tasks, load_seconds, start_seconds, bytes, lists, pages, writes });
    }
    if let Some(distributed) = distributed {
        distributed.clear(0).await?;
    }
    bars.clear()?;
    let settings = distributed.map(|distributed| distributed.postgres.settings.as_str());
    let rows = rows::all_rows(&all, &sizes, settings);
    let deployment = distributed.map_or(Deployment::Embedded, |_| Deployment::Distributed);
    let Sizes { quick, seconds, .. } = sizes;
    let binary = args.program.binary.clone();
    Ok(Report { machine: Machine::detect(), deployment, binary, quick, seconds, rows })
}

pub(super) fn bar(name: String) -> ProgressBar {
    let bar = ProgressBar::new(1).with_prefix(name);
    let style = ProgressStyle::with_template("  {prefix:<18} {bar:40.cyan/dim} {percent:>3} %  {elapsed}");
    match style {
        Ok(style) => bar.with_style(style.progress_chars("━╸─")),
        Err(_) => bar,
    }
}
