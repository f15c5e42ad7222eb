//! Conversions of locks, grants, tickets and the wait graph.

use ade_app::locks::{GrantedLock, HeldLockResult, StoredTicket, TicketState, WaitingTicket};
use ade_client::wire;
use ade_domain::lock::{HoldView, Holder, LockLimits, LockMode, RequestKey, WaitEdge, Waiter};
use ade_store::coordination::{LockView, WaitView};

use super::{Convert, convert_enums};

convert_enums! {
    LockMode = wire::LockMode { Shared, Exclusive }
}

#[expect(clippy::cast_precision_loss, reason = "the milliseconds of a lease are far below 2^52")]
fn grant(granted: &GrantedLock, limits: &LockLimits) -> wire::Grant {
    let GrantedLock { requested, grant } = granted;
    let lease_ms = grant.expires_at.ms_since(grant.acquired_at);
    wire::Grant {
        lock: requested.lock.to_string(),
        mode: grant.mode.convert(),
        fencing_token: grant.token.number(),
        acquired_at: grant.acquired_at.convert(),
        expires_at: grant.expires_at.convert(),
        heartbeat_seconds: Some(limits.heartbeat_after_ms(lease_ms) as f64 / 1_000.0),
    }
}

pub(crate) fn grants(granted: &[GrantedLock], limits: &LockLimits) -> wire::Grants {
    wire::Grants { grants: granted.iter().map(|granted| grant(granted, limits)).collect() }
}

fn empty_ticket(ticket: RequestKey, status: wire::TicketStatus) -> wire::Ticket {
    wire::Ticket {
        ticket: ticket.to_string(),
        status,
        stored: false,
        waiting_for: None,
        position: None,
        deadline: None,
        claim_by: None,
        grants: Vec::new(),
    }
}

pub(crate) fn waiting_ticket(waiting: &WaitingTicket) -> wire::Ticket {
    wire::Ticket {
        waiting_for: Some(waiting.waiting_for.to_string()),
        position: Some(waiting.position as u64),
        deadline: Some(waiting.deadline.convert()),
        ..empty_ticket(waiting.ticket, wire::TicketStatus::Waiting)
    }
}

pub(crate) fn stored_ticket(stored: StoredTicket) -> wire::Ticket {
    wire::Ticket {
        stored: true,
        deadline: Some(stored.deadline.convert()),
        ..empty_ticket(stored.ticket, wire::TicketStatus::Waiting)
    }
}

/// The release of a lock that is stored.
pub(crate) fn stored_release(lock: &str) -> wire::HeldLockResult {
    wire::HeldLockResult { lock: lock.to_owned(), ok: true, code: None, mode: None, expires_at: None }
}

pub(crate) fn ticket(key: RequestKey, state: &TicketState, limits: &LockLimits) -> wire::Ticket {
    match state {
        TicketState::Waiting(waiting) => waiting_ticket(waiting),
        TicketState::Ready { claim_by, .. } => wire::Ticket {
            claim_by: Some(claim_by.convert()),
            ..empty_ticket(key, wire::TicketStatus::Ready)
        },
        TicketState::Granted(granted) => {
            let grants = grants(granted, limits).grants;
            wire::Ticket { grants, ..empty_ticket(key, wire::TicketStatus::Granted) }
        }
        TicketState::Stored(stored) => stored_ticket(*stored),
    }
}

pub(crate) fn held_lock_result(result: &HeldLockResult) -> wire::HeldLockResult {
    let grant = result.result.as_ref().ok().and_then(Option::as_ref);
    wire::HeldLockResult {
        lock: result.lock.to_string(),
        ok: result.result.is_ok(),
        code: result.result.is_err().then(|| "LOCK_LOST".to_owned()),
        mode: grant.map(|grant| grant.mode.convert()),
        expires_at: grant.map(|grant| grant.expires_at.convert()),
    }
}

pub(crate) fn lock_holder(held: &HoldView) -> wire::LockHolder {
    wire::LockHolder {
        agent_id: held.holder.agent_id().to_owned(),
        holder_id: held.holder.holder_id().to_owned(),
        fencing_token: held.grant.token.number(),
        acquired_at: held.grant.acquired_at.convert(),
        expires_at: held.grant.expires_at.convert(),
        purpose: held.purpose.to_string(),
        heartbeat_count: held.heartbeat_count,
    }
}

fn lock_waiter((index, waiter): (usize, &Waiter)) -> wire::LockWaiter {
    wire::LockWaiter {
        position: index as u64 + 1,
        agent_id: waiter.holder.agent_id().to_owned(),
        holder_id: waiter.holder.holder_id().to_owned(),
        mode: waiter.mode.convert(),
        priority: waiter.priority,
        requested_at: waiter.requested_at.convert(),
        deadline: waiter.deadline.convert(),
        purpose: waiter.purpose.to_string(),
    }
}

pub(crate) fn lock(view: &LockView) -> wire::Lock {
    wire::Lock {
        lock: view.lock.to_string(),
        mode: view.mode.convert(),
        holders: view.holders.iter().map(lock_holder).collect(),
        queue: view.queue.iter().enumerate().map(lock_waiter).collect(),
        queue_length: view.queue_length as u64,
    }
}

fn holder_ref(holder: &Holder) -> wire::HolderRef {
    wire::HolderRef { agent_id: holder.agent_id().to_owned(), holder_id: holder.holder_id().to_owned() }
}

pub(crate) fn wait_graph_edge(view: &WaitView) -> wire::WaitGraphEdge {
    wire::WaitGraphEdge {
        agent_id: view.holder.agent_id().to_owned(),
        holder_id: view.holder.holder_id().to_owned(),
        mode: view.mode.convert(),
        waits_for: view.lock.to_string(),
        holders: view.holders.iter().map(holder_ref).collect(),
        ahead: view.ahead.iter().map(holder_ref).collect(),
    }
}

pub(crate) fn cycle_edge(edge: &WaitEdge) -> wire::CycleEdge {
    wire::CycleEdge {
        agent_id: edge.holder.agent_id().to_owned(),
        holder_id: edge.holder.holder_id().to_owned(),
        waits_for: edge.waits_for.to_string(),
    }
}
