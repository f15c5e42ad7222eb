//! Changing locks by hand: `acquire`, `release`, `break`.

use std::time::Duration;

use ade_client::wire::{AcquireRequest, HeldLock, HoldRequest, LockAsk};
use ade_client::{Acquired, Client};
use clap::Args as ClapArgs;

use super::see::name;
use super::{Taking, agent};
use crate::failure::{Failure, Kind};
use crate::output::{self, safe};
use crate::times::{now, until};

#[derive(Debug, ClapArgs)]
pub(super) struct AcquireArgs {
    #[command(flatten)]
    taking: Taking,
    /// Which activity of the agent holds them [default: the agent as a whole]
    #[arg(long)]
    holder: Option<String>,
    /// Seconds to wait for them
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    wait: Option<Duration>,
    /// Makes the request repeatable: the same id answers how it stands
    #[arg(long)]
    request_id: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ReleaseArgs {
    /// The lock
    lock: String,
    /// The fencing token of its grant
    #[arg(long = "fencing-token", value_name = "NUMBER")]
    fencing_token: u64,
    /// The agent that holds it (default: you@this-machine)
    #[arg(long, env = "ADE_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Which activity of the agent holds it
    #[arg(long)]
    holder: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct BreakArgs {
    /// The lock
    lock: String,
    /// Why; it is kept in the audit log
    #[arg(long)]
    reason: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn acquire(client: &Client, args: AcquireArgs) -> Result<(), Failure> {
    let AcquireArgs { taking, holder, wait, request_id, json } = args;
    let mode = Some(taking.mode());
    let request = AcquireRequest {
        agent_id: Some(agent(taking.agent.clone())),
        locks: taking.locks.iter().map(|lock| LockAsk { lock: lock.clone(), mode }).collect(),
        holder_id: holder,
        ttl_seconds: Some(taking.ttl.as_secs_f64()),
        wait_seconds: wait.map(|wait| wait.as_secs_f64()),
        queue: false,
        priority: Some(taking.priority),
        purpose: Some(taking.purpose),
        request_id,
    };
    let grants = match client.acquire(&request).await? {
        Acquired::Granted(grants) => grants.grants,
        Acquired::Ticket(_) => {
            return Err(Failure::new(Kind::Unavailable, "the server answered with a ticket"));
        }
    };
    if json {
        return output::json(&grants);
    }
    let mut table = output::table(&["LOCK", "FENCING TOKEN", "EXPIRES IN"]);
    let now = now();
    for grant in &grants {
        table.add_row([safe(&grant.lock), grant.fencing_token.to_string(), until(grant.expires_at, now)]);
    }
    output::line(&table.to_string())
}

pub(super) async fn release(client: &Client, args: ReleaseArgs) -> Result<(), Failure> {
    let locks = vec![HeldLock { lock: args.lock, fencing_token: args.fencing_token }];
    let request = HoldRequest { agent_id: Some(agent(args.agent)), holder_id: args.holder, locks };
    client.release(&request).await?;
    Ok(())
}

pub(super) async fn break_lock(client: &Client, args: &BreakArgs) -> Result<(), Failure> {
    let broken = client.break_lock(&args.lock, &args.reason).await?;
    if args.json {
        return output::json(&broken);
    }
    if broken.holders.is_empty() {
        return output::line(&format!("nobody held {}", safe(&broken.lock)));
    }
    for holder in &broken.holders {
        let who = name(&holder.agent_id, &holder.holder_id);
        output::line(&format!("{} was taken from {who} ({})", safe(&broken.lock), safe(&holder.purpose)))?;
    }
    Ok(())
}
