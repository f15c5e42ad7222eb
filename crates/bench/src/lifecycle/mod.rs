//! `ade bench lifecycle`: how many tasks a minute go the whole way, from being proposed until they are completed.
//!
//! A figure is told only when everything was looked at afterwards: each task that was created is completed, once.

mod check;
mod client;
mod least;
mod place;
mod rows;
mod slice;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::MultiProgress;

use crate::approvals::{Distributed, bar};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use client::Deed;
use place::Place;

const HOW: &str = "\
What is measured, and how:
  noop      Each client proposes tasks that change nothing, and keeps a number of them under way: create, submit, and
            when its reviewer has found the request in the inbox, approve, all over HTTP and each with an answer of its
            own; the worker in the server process carries it out. A lifecycle counts when the client sees the task
            COMPLETED in the list of its completed tasks. It looks as often as it can expect a quarter of them to be new.
  files     The same with tasks that write a small file each, into a folder of its own below one root.
Both in turns with the bare minimum: as many clients with five transactions of one row each, in the same kind of database,
through the same driver, without HTTP.
Times count from sending create, and from sending approve, until COMPLETED is seen. Each row has a server process of its
own with new data. Afterwards every task is looked at: completed, once, and its file as it was wanted. A missed aim is no
failure: the exit code tells only whether everything could be measured, and nothing was lost.";

#[derive(Debug, ClapArgs)]
#[command(after_long_help = HOW, after_help = "--help tells what is measured, and how.")]
pub(super) struct Args {
    /// Only these rows
    #[arg(long, value_name = "ROW", value_enum)]
    only: Vec<Deed>,
    /// Clients, each with an author, a reviewer, and connections of their own
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=200))]
    clients: u32,
    /// Tasks that each client keeps under way
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=200))]
    window: u32,
    /// Tasks that the worker carries out at once
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    slots: u32,
    /// Seconds that each row is measured, besides the bare minimum
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = super::locks::seconds)]
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
    clients: usize,
    window: usize,
    slots: u32,
    /// How often ours and the bare minimum take turns.
    rounds: u32,
}

impl Sizes {
    fn of(args: &Args) -> Self {
        let (clients, window) = (args.clients as usize, args.window as usize);
        let (seconds, rounds) = if args.quick { (0.5, 1) } else { (args.seconds, 4) };
        Self { quick: args.quick, seconds, clients, window, slots: args.slots, rounds }
    }
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let on = match (&args.redis, &args.postgres) {
        (Some(redis), Some(postgres)) => Some(Distributed::open(redis, postgres).await?),
        _ => None,
    };
    let measured = crate::interruptible(measure(args, on.as_ref())).await;
    if let (Err(_), Some(on)) = (&measured, &on) {
        // The first failure is the one to report.
        let _ = on.clear(Deed::value_variants().len()).await;
    }
    measured
}

async fn measure(args: &Args, on: Option<&Distributed>) -> Result<Report, BenchError> {
    let sizes = Sizes::of(args);
    let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
    let (bars, mut rows) = (MultiProgress::new(), Vec::new());
    let chosen =
        Deed::value_variants().iter().filter(|deed| args.only.is_empty() || args.only.contains(deed));
    for (number, deed) in chosen.enumerate() {
        let bar = bars.add(bar(deed.name().to_owned()));
        bar.set_length(u64::from(sizes.rounds) + 1);
        let place = Place::make(&parent, on, number, *deed, &sizes).await?;
        let (done, clients) = slice::measure(&place, *deed, &sizes, &bar).await?;
        let checked = check::everything(&place, &clients).await?;
        bar.inc(1);
        rows.push(rows::of(*deed, &done, &checked, &sizes, on));
        place.clear().await?;
        bar.finish();
    }
    bars.clear()?;
    Ok(Report { machine: Machine::look(), quick: sizes.quick, seconds: sizes.seconds, rows })
}
