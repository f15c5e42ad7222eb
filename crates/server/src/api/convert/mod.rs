//! From what the rooms below know to what goes over the wire.

pub(crate) mod execution;
pub(crate) mod jobs;
pub(crate) mod reviews;
pub(crate) mod settings;

use ade_app::agents::Known;
use ade_app::locks::{Granted, HoldResult, TicketState, Waiting};
use ade_client::wire;
use ade_domain::agent::Status;
use ade_domain::lock::{Edge, HeldBy, Holder, RequestKey, Waiter};
use ade_store::coordination::{LockView, WaitView};

/// A page of what was found, which is one more than fits if there are more; the next one begins after the last of this.
pub(crate) fn page<V, T>(
    mut found: Vec<V>,
    limit: usize,
    cursor: impl Fn(&V) -> String,
    item: impl Fn(&V) -> T,
) -> wire::Page<T> {
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| more).map(cursor);
    wire::Page { items: found.iter().map(item).collect(), next_cursor }
}

pub(crate) fn grant(granted: &Granted) -> wire::Grant {
    let Granted { ask, grant } = granted;
    wire::Grant {
        lock: ask.lock.to_string(),
        mode: grant.mode.into(),
        fencing_token: grant.token.number(),
        acquired_at: grant.acquired_at.into(),
        expires_at: grant.expires_at.into(),
    }
}

pub(crate) fn grants(granted: &[Granted]) -> wire::Grants {
    wire::Grants { grants: granted.iter().map(grant).collect() }
}

fn empty_ticket(ticket: RequestKey, status: wire::TicketStatus) -> wire::Ticket {
    let ticket = ticket.to_string();
    wire::Ticket {
        ticket,
        status,
        waiting_for: None,
        position: None,
        deadline: None,
        claim_by: None,
        grants: Vec::new(),
    }
}

pub(crate) fn waiting(waiting: &Waiting) -> wire::Ticket {
    wire::Ticket {
        waiting_for: Some(waiting.waiting_for.to_string()),
        position: Some(waiting.position as u64),
        deadline: Some(waiting.deadline.into()),
        ..empty_ticket(waiting.ticket, wire::TicketStatus::Waiting)
    }
}

pub(crate) fn ticket(key: RequestKey, state: &TicketState) -> wire::Ticket {
    match state {
        TicketState::Waiting(found) => waiting(found),
        TicketState::Ready { claim_by, .. } => wire::Ticket {
            claim_by: Some((*claim_by).into()),
            ..empty_ticket(key, wire::TicketStatus::Ready)
        },
        TicketState::Granted(granted) => {
            wire::Ticket { grants: grants(granted).grants, ..empty_ticket(key, wire::TicketStatus::Granted) }
        }
    }
}

pub(crate) fn hold_result(result: &HoldResult) -> wire::HoldResult {
    let grant = result.result.as_ref().ok().and_then(Option::as_ref);
    wire::HoldResult {
        lock: result.lock.to_string(),
        ok: result.result.is_ok(),
        code: result.result.is_err().then(|| "LOCK_LOST".to_owned()),
        mode: grant.map(|grant| grant.mode.into()),
        expires_at: grant.map(|grant| grant.expires_at.into()),
    }
}

pub(crate) fn holder(by: &HeldBy) -> wire::LockHolder {
    wire::LockHolder {
        agent_id: by.holder.agent_id().to_owned(),
        holder_id: by.holder.holder_id().to_owned(),
        fencing_token: by.grant.token.number(),
        acquired_at: by.grant.acquired_at.into(),
        expires_at: by.grant.expires_at.into(),
        purpose: by.purpose.to_string(),
        heartbeat_count: by.heartbeat_count,
    }
}

fn waiter((at, waiter): (usize, &Waiter)) -> wire::LockWaiter {
    wire::LockWaiter {
        position: at as u64 + 1,
        agent_id: waiter.holder.agent_id().to_owned(),
        holder_id: waiter.holder.holder_id().to_owned(),
        mode: waiter.mode.into(),
        priority: waiter.priority,
        requested_at: waiter.requested_at.into(),
        deadline: waiter.deadline.into(),
        purpose: waiter.purpose.to_string(),
    }
}

pub(crate) fn lock(view: &LockView) -> wire::Lock {
    wire::Lock {
        lock: view.lock.to_string(),
        mode: view.mode.map(Into::into),
        holders: view.holders.iter().map(holder).collect(),
        queue: view.queue.iter().enumerate().map(waiter).collect(),
        queue_length: view.queue_length as u64,
    }
}

fn holder_ref(holder: &Holder) -> wire::HolderRef {
    wire::HolderRef { agent_id: holder.agent_id().to_owned(), holder_id: holder.holder_id().to_owned() }
}

pub(crate) fn wait(view: &WaitView) -> wire::GraphWait {
    wire::GraphWait {
        agent_id: view.holder.agent_id().to_owned(),
        holder_id: view.holder.holder_id().to_owned(),
        mode: view.mode.into(),
        waits_for: view.lock.to_string(),
        holders: view.holders.iter().map(holder_ref).collect(),
        ahead: view.ahead.iter().map(holder_ref).collect(),
    }
}

pub(crate) fn cycle_edge(edge: &Edge) -> wire::CycleEdge {
    wire::CycleEdge {
        agent_id: edge.holder.agent_id().to_owned(),
        holder_id: edge.holder.holder_id().to_owned(),
        waits_for: edge.waits_for.to_string(),
    }
}

pub(crate) fn agent(known: &Known) -> wire::Agent {
    let Known { sponsor_id, view } = known;
    wire::Agent {
        agent_id: view.agent_id.clone(),
        name: view.profile.name.clone(),
        sponsor_id: sponsor_id.as_ref().map(ToString::to_string),
        model: view.profile.model.clone(),
        version: view.profile.version.clone(),
        capabilities: view.profile.capabilities.clone(),
        max_tasks: view.max_tasks,
        active_tasks: view.active_tasks as u64,
        queued_tasks: view.queued_tasks as u64,
        status: match view.status {
            Status::Active => "active",
            Status::Draining => "draining",
            Status::Offline => "offline",
        }
        .to_owned(),
        last_heartbeat: view.last_heartbeat.into(),
        // Only what was JSON was stored.
        config: serde_json::from_str(&view.profile.config).unwrap_or_default(),
    }
}
