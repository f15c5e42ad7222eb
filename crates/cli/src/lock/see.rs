//! Looking at locks: `ls`, `show`, `watch`, `graph`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{Lock, LockHolder, Time};
use clap::Args as ClapArgs;
use jiff::Timestamp;
use owo_colors::OwoColorize;

use super::graph::draw;
use crate::failure::{Failure, Kind};
use crate::output::{self, safe};
use crate::times::{now, since, until};

#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Filters {
    /// Held or waited for by this agent
    #[arg(long)]
    agent: Option<String>,
    /// Of resources of this type
    #[arg(long = "type", value_name = "TYPE")]
    resource_type: Option<String>,
    /// task or resource
    #[arg(long)]
    kind: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50)]
    limit: u16,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filters: Filters,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ShowArgs {
    /// The lock
    lock: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    filters: Filters,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_parser = super::seconds)]
    every: Duration,
}

#[derive(Debug, ClapArgs)]
pub(super) struct GraphArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn list(client: &Client, args: &ListArgs) -> Result<(), Failure> {
    let page = fetch(client, &args.filters).await?;
    if args.json {
        return output::json(&page.items);
    }
    output::line(&table(&page.items, now()))?;
    if page.next_cursor.is_some() {
        output::note(&format!(
            "there are more; --limit shows up to 200 of them ({} shown)",
            page.items.len()
        ));
    }
    Ok(())
}

pub(super) async fn show(client: &Client, args: &ShowArgs) -> Result<(), Failure> {
    let lock = client.lock(&args.lock).await?;
    if args.json {
        return output::json(&lock);
    }
    let now = now();
    let mode = lock
        .mode
        .map_or("free", |mode| if mode == ade_client::wire::Mode::Shared { "shared" } else { "exclusive" });
    output::line(&format!("{} {}", safe(&lock.lock).bold(), mode))?;
    if !lock.holders.is_empty() {
        let mut holders =
            output::table(&["HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "HEARTBEATS", "PURPOSE"]);
        for holder in &lock.holders {
            holders.add_row([
                name(&holder.agent_id, &holder.holder_id),
                holder.fencing_token.to_string(),
                since(holder.acquired_at, now),
                until(holder.expires_at, now),
                holder.heartbeat_count.to_string(),
                safe(&holder.purpose),
            ]);
        }
        output::line(&holders.to_string())?;
    }
    if !lock.queue.is_empty() {
        output::line("")?;
        let mut queue = output::table(&["#", "WAITING", "MODE", "FOR", "GIVES UP IN", "PRIORITY", "PURPOSE"]);
        for waiter in &lock.queue {
            queue.add_row([
                waiter.position.to_string(),
                name(&waiter.agent_id, &waiter.holder_id),
                mode_word(waiter.mode).to_owned(),
                since(waiter.requested_at, now),
                until(waiter.deadline, now),
                waiter.priority.to_string(),
                safe(&waiter.purpose),
            ]);
        }
        output::line(&queue.to_string())?;
    }
    Ok(())
}

pub(super) async fn watch(client: &Client, args: &WatchArgs) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let mut tick = tokio::time::interval(args.every.max(Duration::from_millis(100)));
    let mut last: Option<(ade_client::wire::Page<Lock>, Time)> = None;
    loop {
        tick.tick().await;
        // A server that restarts is watched too: what was seen last stays, with the reason why it is old.
        let trouble = match (fetch(client, &args.filters).await, &last) {
            (Ok(page), _) => {
                last = Some((page, Time(now())));
                String::new()
            }
            (Err(failure), Some((_, at))) if failure.kind == Kind::Unavailable => {
                format!("\n{}", safe(&format!("as it was at {at}; {}", failure.message())))
            }
            (Err(failure), _) => return Err(failure),
        };
        let (now, locks) = (now(), last.as_ref().map_or(&[] as &[Lock], |(page, _)| &page.items));
        let many = if locks.len() == 1 { "lock" } else { "locks" };
        let mut text = format!("{}  {} {many}\n{}{trouble}\n", Time(now), locks.len(), table(locks, now));
        if terminal {
            // Home, the new text, and nothing of the old one below it.
            text = format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        }
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
}

pub(super) async fn graph(client: &Client, args: &GraphArgs) -> Result<(), Failure> {
    let graph = client.graph().await?;
    if args.json {
        return output::json(&graph);
    }
    output::line(draw(&graph).trim_end())
}

async fn fetch(client: &Client, filters: &Filters) -> Result<ade_client::wire::Page<Lock>, Failure> {
    let limit = filters.limit.to_string();
    let mut query = vec![("limit", limit.as_str())];
    query.extend(filters.agent.as_deref().map(|agent| ("agent", agent)));
    query.extend(filters.resource_type.as_deref().map(|kind| ("resource_type", kind)));
    query.extend(filters.kind.as_deref().map(|kind| ("kind", kind)));
    Ok(client.locks(&query).await?)
}

fn table(locks: &[Lock], now: Timestamp) -> String {
    if locks.is_empty() {
        return "nobody holds a lock".to_owned();
    }
    let mut table = output::table(&["LOCK", "MODE", "HELD BY", "EXPIRES IN", "WAITING", "PURPOSE"]);
    for lock in locks {
        let first = lock.holders.first();
        let more = lock.holders.len().saturating_sub(1);
        let held_by = first.map_or_else(String::new, |by| name(&by.agent_id, &by.holder_id));
        table.add_row([
            safe(&lock.lock),
            lock.mode.map_or("free", mode_word).to_owned(),
            if more > 0 { format!("{held_by} and {more} more") } else { held_by },
            first.map_or_else(String::new, |by: &LockHolder| until(by.expires_at, now)),
            lock.queue_length.to_string(),
            first.map_or_else(String::new, |by| safe(&by.purpose)),
        ]);
    }
    table.to_string()
}

const fn mode_word(mode: ade_client::wire::Mode) -> &'static str {
    match mode {
        ade_client::wire::Mode::Shared => "shared",
        ade_client::wire::Mode::Exclusive => "exclusive",
    }
}

/// An agent, and which of its activities if it is not the whole.
pub(super) fn name(agent_id: &str, holder_id: &str) -> String {
    if agent_id == holder_id {
        safe(agent_id)
    } else {
        format!("{}/{}", safe(agent_id), safe(short(holder_id)))
    }
}

/// Ids that were made up are long; their beginning tells them apart.
fn short(id: &str) -> &str {
    let is_uuid = id.len() == 36 && id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    if is_uuid { id.get(..8).unwrap_or(id) } else { id }
}
