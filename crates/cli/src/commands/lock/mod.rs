//! `ade lock`: list, acquire, release and break locks.

mod graph;
mod hold;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ade_client::wire::{
    AcquireRequest, BrokenLock, Grant, HeldLocksRequest, Lock, LockHolder, LockMode, LockSpec, LockToken,
    Page, Time,
};
use ade_client::{AcquireOutcome, Client};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::Table;
use jiff::Timestamp;
use owo_colors::OwoColorize;

use crate::failure::{Failure, FailureKind};
use crate::output::list::present;
use crate::output::time::{now, since, until};
use crate::output::{self, OutputFormat, safe};

const MIN_WATCH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List locks that have holders or waiters
    Ls(LsArgs),
    /// Show a lock: its holders, their purposes, and the queue
    Show(ShowArgs),
    /// Show the list, refreshed until Ctrl-C
    Watch(WatchArgs),
    /// Show who waits for whom, with deadlocks marked
    Graph(OutputFormat),
    /// Acquire locks and print their fencing tokens; they are not renewed
    Acquire(AcquireArgs),
    /// Hold locks while a command runs; the command is stopped if they are lost
    Hold(hold::Args),
    /// Release a lock by its fencing token
    Release(ReleaseArgs),
    /// Break a lock: take it from its holders (admin)
    Break(BreakArgs),
}

/// Arguments of commands that acquire locks.
#[derive(Debug, Clone, ClapArgs)]
struct LockArgs {
    /// Locks, such as resource:database:prod or task:42
    #[arg(required = true, value_name = "LOCK")]
    locks: Vec<String>,
    /// Acquire them in shared mode
    #[arg(long)]
    shared: bool,
    /// Agent that holds them (default: you@this-machine)
    #[arg(long, env = "ADE_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Seconds until the locks expire unless they are renewed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    ttl: Duration,
    /// Purpose, shown to others
    #[arg(long, default_value = "")]
    purpose: String,
    /// Priority, shown to others
    #[arg(long, default_value_t = 0)]
    priority: i64,
}

impl LockArgs {
    fn mode(&self) -> LockMode {
        if self.shared { LockMode::Shared } else { LockMode::Exclusive }
    }
}

#[derive(Debug, Clone, ClapArgs)]
struct Filters {
    /// Only locks that this agent holds or waits for
    #[arg(long)]
    agent: Option<String>,
    /// Only locks of resources of this type
    #[arg(long = "type", value_name = "TYPE")]
    resource_type: Option<String>,
    /// Only locks of this kind: task or resource
    #[arg(long)]
    kind: Option<String>,
    /// Show at most this many
    #[arg(long, default_value_t = 50)]
    limit: u16,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// Name of the lock
    lock: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    filters: Filters,
    /// Seconds between two updates
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    every: Duration,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    lock: LockArgs,
    /// Activity of the agent that holds them [default: the agent as a whole]
    #[arg(long)]
    holder: Option<String>,
    /// Seconds to wait for them
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    wait: Option<Duration>,
    /// Makes the request idempotent: repeated with the same id, it returns the same grant
    #[arg(long)]
    request_id: Option<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock
    lock: String,
    /// Fencing token of the grant
    #[arg(long = "fencing-token", value_name = "NUMBER")]
    fencing_token: u64,
    /// Agent that holds it (default: you@this-machine)
    #[arg(long, env = "ADE_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Activity of the agent that holds it
    #[arg(long)]
    holder: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct BreakArgs {
    /// Name of the lock
    lock: String,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Hold(args) => return hold::run(client, args).await,
        Command::Ls(args) => list(client, &args).await,
        Command::Show(args) => args.format.print(&client.lock(&args.lock).await?, |lock| page(lock, now())),
        Command::Watch(args) => watch(client, &args).await,
        Command::Graph(format) => format.print(&client.wait_graph().await?, graph::draw),
        Command::Acquire(args) => acquire(client, args).await,
        Command::Release(args) => {
            let locks = vec![LockToken { lock: args.lock, fencing_token: args.fencing_token }];
            let agent_id = Some(agent_or_default(args.agent));
            client.release_locks(&HeldLocksRequest { agent_id, holder_id: args.holder, locks }).await?;
            Ok(())
        }
        Command::Break(args) => {
            args.format.print(&client.break_lock(&args.lock, &args.reason).await?, broken_summary)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn acquire(client: &Client, args: AcquireArgs) -> Result<(), Failure> {
    let AcquireArgs { lock, holder, wait, request_id, format } = args;
    let mode = Some(lock.mode());
    let request = AcquireRequest {
        agent_id: Some(agent_or_default(lock.agent)),
        locks: lock.locks.into_iter().map(|lock| LockSpec { lock, mode }).collect(),
        holder_id: holder,
        ttl_seconds: Some(lock.ttl.as_secs_f64()),
        wait_seconds: wait.map(|wait| wait.as_secs_f64()),
        queue: false,
        priority: Some(lock.priority),
        purpose: Some(lock.purpose),
        request_id,
    };
    match client.acquire_locks(&request).await? {
        AcquireOutcome::Granted(grants) => format.print(&grants.grants, |grants| grant_table(grants)),
        AcquireOutcome::Queued(_) => {
            Err(Failure::new(FailureKind::Unavailable, "the server returned a ticket instead of grants"))
        }
    }
}

fn grant_table(grants: &[Grant]) -> Table {
    let mut table = output::table(&["LOCK", "FENCING TOKEN", "EXPIRES IN"]);
    let now = now();
    for grant in grants {
        table.add_row([safe(&grant.lock), grant.fencing_token.to_string(), until(grant.expires_at, now)]);
    }
    table
}

fn broken_summary(broken: &BrokenLock) -> String {
    if broken.holders.is_empty() {
        return format!("{} had no holder", safe(&broken.lock));
    }
    let line = |holder: &LockHolder| {
        let name = holder_name(&holder.agent_id, &holder.holder_id);
        format!("{} was taken from {name} ({})", safe(&broken.lock), safe(&holder.purpose))
    };
    broken.holders.iter().map(line).collect::<Vec<_>>().join("\n")
}

async fn list(client: &Client, args: &LsArgs) -> Result<(), Failure> {
    let page = fetch(client, &args.filters).await?;
    args.format.print(&page.items, |locks| table(locks, now()))?;
    if page.next_cursor.is_some() && !args.format.json {
        output::note(&format!(
            "showing the first {}; use --limit to see more (at most 200)",
            page.items.len()
        ));
    }
    Ok(())
}

fn page(lock: &Lock, now: Timestamp) -> String {
    let mut parts = vec![format!("{} {}", safe(&lock.lock).bold(), lock.mode.map_or("free", mode_name))];
    if !lock.holders.is_empty() {
        let mut holders =
            output::table(&["HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "HEARTBEATS", "PURPOSE"]);
        for holder in &lock.holders {
            holders.add_row([
                holder_name(&holder.agent_id, &holder.holder_id),
                holder.fencing_token.to_string(),
                since(holder.acquired_at, now),
                until(holder.expires_at, now),
                holder.heartbeat_count.to_string(),
                safe(&holder.purpose),
            ]);
        }
        parts.push(holders.to_string());
    }
    if !lock.queue.is_empty() {
        let titles = ["#", "WAITER", "MODE", "WAITED", "TIMES OUT IN", "PRIORITY", "PURPOSE"];
        let mut queue = output::table(&titles);
        for waiter in &lock.queue {
            queue.add_row([
                waiter.position.to_string(),
                holder_name(&waiter.agent_id, &waiter.holder_id),
                mode_name(waiter.mode).to_owned(),
                since(waiter.requested_at, now),
                until(waiter.deadline, now),
                waiter.priority.to_string(),
                safe(&waiter.purpose),
            ]);
        }
        parts.push(format!("\n{queue}"));
    }
    parts.join("\n")
}

async fn watch(client: &Client, args: &WatchArgs) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut interval = tokio::time::interval(args.every.max(MIN_WATCH_INTERVAL));
    let mut last: Option<(Page<Lock>, Time)> = None;
    loop {
        interval.tick().await;
        // While the server is unavailable the last state stays on the screen, with its time and the reason.
        let trouble = match (fetch(client, &args.filters).await, &last) {
            (Ok(page), _) => {
                last = Some((page, Time(now())));
                String::new()
            }
            (Err(failure), Some((_, at))) if failure.kind == FailureKind::Unavailable => {
                format!("\n{}", safe(&format!("last updated at {at}: {}", failure.message())))
            }
            (Err(failure), _) => return Err(failure),
        };
        let (now, locks) = (now(), last.as_ref().map_or(&[] as &[Lock], |(page, _)| &page.items));
        let noun = if locks.len() == 1 { "lock" } else { "locks" };
        let mut text = format!("{}  {} {noun}\n{}{trouble}\n", Time(now), locks.len(), table(locks, now));
        if is_terminal {
            // Move to the top left, and clear what the new text does not cover.
            text = format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        }
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
}

async fn fetch(client: &Client, filters: &Filters) -> Result<Page<Lock>, Failure> {
    let limit = Some(filters.limit.to_string());
    let query = present(&[
        ("limit", &limit),
        ("agent", &filters.agent),
        ("resource_type", &filters.resource_type),
        ("kind", &filters.kind),
    ]);
    Ok(client.locks(&query).await?)
}

fn table(locks: &[Lock], now: Timestamp) -> String {
    if locks.is_empty() {
        return "no locks found".to_owned();
    }
    let mut table = output::table(&["LOCK", "MODE", "HELD BY", "EXPIRES IN", "WAITING", "PURPOSE"]);
    for lock in locks {
        let first = lock.holders.first();
        let more = lock.holders.len().saturating_sub(1);
        let holder = first.map(|holder| holder_name(&holder.agent_id, &holder.holder_id)).unwrap_or_default();
        table.add_row([
            safe(&lock.lock),
            lock.mode.map_or("free", mode_name).to_owned(),
            if more > 0 { format!("{holder} and {more} more") } else { holder },
            first.map(|holder| until(holder.expires_at, now)).unwrap_or_default(),
            lock.queue_length.to_string(),
            first.map(|holder| safe(&holder.purpose)).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

pub(crate) const fn mode_name(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}

/// The agent, followed by its activity unless it is the agent as a whole.
fn holder_name(agent_id: &str, holder_id: &str) -> String {
    if agent_id == holder_id {
        return safe(agent_id);
    }
    // The first part of a UUID is enough to tell activities apart.
    let is_uuid = holder_id.len() == 36 && holder_id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    let short_id = holder_id.get(..8).filter(|_| is_uuid).unwrap_or(holder_id);
    format!("{}/{}", safe(agent_id), safe(short_id))
}

/// The agent that was named, or the user of this machine.
fn agent_or_default(name: Option<String>) -> String {
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{}@{machine}", user_name())
    })
}

#[expect(clippy::disallowed_methods, reason = "the name of the user at this terminal")]
fn user_name() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "someone".to_owned())
}

/// Parses a number of seconds, which may have a fraction.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected a number of seconds, such as 30 or 0.5".to_owned())
}
