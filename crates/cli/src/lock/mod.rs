//! `ade lock`: locks from the command line.

mod act;
mod graph;
mod hold;
mod see;
mod telling;

use std::process::ExitCode;
use std::time::Duration;

use ade_client::wire::Mode;
use clap::{Args as ClapArgs, Subcommand};

use crate::connect::{Connection, block_on};
use crate::failure::Failure;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Locks that are held or waited for
    Ls(see::ListArgs),
    /// One lock: who holds it and why, and who waits
    Show(see::ShowArgs),
    /// The same as ls, again and again
    Watch(see::WatchArgs),
    /// Who waits for whom, with deadlocks marked
    Graph(see::GraphArgs),
    /// Take locks and print their tokens; nothing renews them
    Acquire(act::AcquireArgs),
    /// Hold locks while a command runs; it is stopped if they are lost
    Hold(hold::Args),
    /// Give a lock up, by its token
    Release(act::ReleaseArgs),
    /// Take a lock from whoever holds it (admin)
    Break(act::BreakArgs),
}

/// Who takes a lock, and how.
#[derive(Debug, Clone, ClapArgs)]
struct Taking {
    /// Locks, such as resource:database:prod or task:42
    #[arg(required = true, value_name = "LOCK")]
    locks: Vec<String>,
    /// Share them with others that share
    #[arg(long)]
    shared: bool,
    /// The agent that holds them (default: you@this-machine)
    #[arg(long, env = "ADE_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Seconds until the locks expire if nothing renews them
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    ttl: Duration,
    /// What for; others see it
    #[arg(long, default_value = "")]
    purpose: String,
    /// How important it is; others see it
    #[arg(long, default_value_t = 0)]
    priority: i64,
}

impl Taking {
    fn mode(&self) -> Mode {
        if self.shared { Mode::Shared } else { Mode::Exclusive }
    }
}

/// The agent that was named, or whoever sits at this machine.
fn agent(named: Option<String>) -> String {
    named.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{}@{machine}", user())
    })
}

#[expect(clippy::disallowed_methods, reason = "the name of whoever sits at this terminal")]
fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "someone".to_owned())
}

/// Seconds, with a fraction if need be.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a number of seconds, such as 30 or 0.5".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Hold(args) => return hold::run(&client, args).await,
            Command::Ls(args) => see::list(&client, &args).await?,
            Command::Show(args) => see::show(&client, &args).await?,
            Command::Watch(args) => see::watch(&client, &args).await?,
            Command::Graph(args) => see::graph(&client, &args).await?,
            Command::Acquire(args) => act::acquire(&client, args).await?,
            Command::Release(args) => act::release(&client, args).await?,
            Command::Break(args) => act::break_lock(&client, &args).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}
