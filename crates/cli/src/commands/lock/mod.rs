//! `ade lock`: list, acquire, release and break locks.

mod graph;
mod hold;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ade_client::wire::{self, BrokenLock, Grant, Lock, LockHolder, LockMode, Time};
use ade_client::{AcquireOutcome, Client};
use clap::{Args as ClapArgs, Subcommand};
use jiff::Timestamp;
use owo_colors::OwoColorize;

use crate::failure::{Failure, FailureKind, Result};
use crate::output::list::present;
use crate::output::page::Page;
use crate::output::time::{now, since, until};
use crate::output::{self, OutputFormat, safe};

const MIN_WATCH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List locks that have holders or waiters
    Ls {
        #[command(flatten)]
        filters: Filters,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Show a lock: its holders, their purposes, and the queue
    Show {
        /// Name of the lock
        lock: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Show the list, refreshed until Ctrl-C
    Watch {
        #[command(flatten)]
        filters: Filters,
        /// Seconds between two updates
        #[arg(long, default_value = "1", value_parser = parse_seconds)]
        every: Duration,
    },
    /// Show who waits for whom, with deadlocks marked
    Graph(OutputFormat),
    /// Acquire locks and print their fencing tokens; they are not renewed
    Acquire(AcquireArgs),
    /// Hold locks while a command runs; the command is stopped if they are lost
    Hold(hold::Args),
    /// Release a lock by its fencing token
    Release {
        /// Name of the lock
        lock: String,
        /// Fencing token of the grant
        #[arg(long = "fencing-token", value_name = "NUMBER")]
        fencing_token: u64,
        /// Agent that holds it [default: the one that the token acts as: you, or its agent]
        #[arg(long, env = "ADE_AGENT", hide_env_values = true)]
        agent: Option<String>,
        /// Activity of the agent that holds it
        #[arg(long)]
        holder: Option<String>,
    },
    /// Break a lock: take it from its holders (admin)
    Break {
        /// Name of the lock
        lock: String,
        /// Reason, recorded in the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        format: OutputFormat,
    },
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
    /// Agent that holds them [default: the one that the token acts as: you, or its agent]
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
pub(crate) struct Filters {
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

pub(crate) async fn run(client: &Client, command: Command) -> Result<ExitCode> {
    match command {
        Command::Hold(args) => return hold::run(client, args).await,
        Command::Ls { filters, format } => list(client, &filters, format).await,
        Command::Show { lock, format } => format.print(&client.lock(&lock).await?, |lock| page(lock, now())),
        Command::Watch { filters, every } => watch(client, &filters, every).await,
        Command::Graph(format) => format.print(&client.wait_graph().await?, graph::draw),
        Command::Acquire(args) => acquire(client, args).await,
        Command::Release { lock, fencing_token, agent, holder: holder_id } => {
            let (agent_id, locks) = (named(agent), vec![wire::LockToken { lock, fencing_token }]);
            client.release_locks(&wire::HeldLocksRequest { agent_id, holder_id, locks }).await?;
            Ok(())
        }
        Command::Break { lock, reason, format } => {
            format.print(&client.break_lock(&lock, &reason).await?, broken_summary)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn acquire(client: &Client, args: AcquireArgs) -> Result {
    let AcquireArgs { lock, holder, wait, request_id, format } = args;
    let mode = Some(lock.mode());
    let request = wire::AcquireRequest {
        agent_id: named(lock.agent),
        locks: lock.locks.into_iter().map(|lock| wire::LockSpec { lock, mode }).collect(),
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
            Err(Failure::unavailable("the server returned a ticket instead of grants"))
        }
    }
}

fn grant_table(grants: &[Grant]) -> String {
    let now = now();
    let table = output::table(grants)
        .column("LOCK", |grant| safe(&grant.lock))
        .column("FENCING TOKEN", |grant| grant.fencing_token)
        .column("EXPIRES IN", |grant| until(grant.expires_at, now));
    table.to_string()
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

async fn list(client: &Client, filters: &Filters, format: OutputFormat) -> Result {
    let page = fetch(client, filters).await?;
    format.print(&page.items, |locks| table(locks, now()))?;
    if page.next_cursor.is_some() && !format.json {
        let count = page.items.len();
        output::note(&format!("showing the first {count}; use --limit to see more (at most 200)"));
    }
    Ok(())
}

fn page(lock: &Lock, now: Timestamp) -> Page {
    let holders = output::table(&lock.holders)
        .column("HOLDER", |holder| holder_name(&holder.agent_id, &holder.holder_id))
        .column("TOKEN", |holder| holder.fencing_token)
        .column("HELD FOR", |holder| since(holder.acquired_at, now))
        .column("EXPIRES IN", |holder| until(holder.expires_at, now))
        .column("HEARTBEATS", |holder| holder.heartbeat_count)
        .column("PURPOSE", |holder| safe(&holder.purpose));
    let queue = output::table(&lock.queue)
        .column("#", |waiter| waiter.position)
        .column("WAITER", |waiter| holder_name(&waiter.agent_id, &waiter.holder_id))
        .column("MODE", |waiter| mode_name(waiter.mode))
        .column("WAITED", |waiter| since(waiter.requested_at, now))
        .column("TIMES OUT IN", |waiter| until(waiter.deadline, now))
        .column("PRIORITY", |waiter| waiter.priority)
        .column("PURPOSE", |waiter| safe(&waiter.purpose));
    let mut page = Page::default();
    page.line(format_args!("{} {}", safe(&lock.lock).bold(), lock.mode.map_or("free", mode_name)));
    page.table(&holders);
    page.line("");
    page.table(&queue);
    page
}

async fn watch(client: &Client, filters: &Filters, every: Duration) -> Result {
    let is_terminal = std::io::stdout().is_terminal();
    let mut interval = tokio::time::interval(every.max(MIN_WATCH_INTERVAL));
    let mut last: Option<(wire::Page<Lock>, Time)> = None;
    loop {
        interval.tick().await;
        // While the server is unavailable the last state stays on the screen, with its time and the reason.
        let trouble = match (fetch(client, filters).await, &last) {
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
        let text = format!("{}  {} {noun}\n{}{trouble}\n", Time(now), locks.len(), table(locks, now));
        let mut text = output::visible(&text).into_owned();
        if is_terminal {
            // Move to the top left, and clear what the new text does not cover.
            text = format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        }
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
}

async fn fetch(client: &Client, filters: &Filters) -> Result<wire::Page<Lock>> {
    let limit = Some(filters.limit.to_string());
    let Filters { agent, resource_type, kind, .. } = filters;
    let filters = [("limit", &limit), ("agent", agent), ("resource_type", resource_type), ("kind", kind)];
    Ok(client.locks(&present(&filters)).await?)
}

fn table(locks: &[Lock], now: Timestamp) -> String {
    let held_by = |lock: &Lock| match lock.holders.as_slice() {
        [] => String::new(),
        [holder] => holder_name(&holder.agent_id, &holder.holder_id),
        [holder, more @ ..] => {
            format!("{} and {} more", holder_name(&holder.agent_id, &holder.holder_id), more.len())
        }
    };
    let expires = |holder: &LockHolder| until(holder.expires_at, now);
    let table = output::list(locks, "no locks found")
        .column("LOCK", |lock| safe(&lock.lock))
        .column("MODE", |lock| lock.mode.map_or("free", mode_name))
        .column("HELD BY", held_by)
        .column("EXPIRES IN", |lock| lock.holders.first().map(expires).unwrap_or_default())
        .column("WAITING", |lock| lock.queue_length)
        .column("PURPOSE", |lock| lock.holders.first().map(|it| safe(&it.purpose)).unwrap_or_default());
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

/// An agent that was named: a variable may be empty.
fn named(agent: Option<String>) -> Option<String> {
    agent.filter(|name| !name.is_empty())
}

/// Parses a number of seconds, which may have a fraction.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected a number of seconds, such as 30 or 0.5".to_owned())
}
