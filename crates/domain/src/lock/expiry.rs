//! What is due at a lock: expired leases, timed-out and abandoned waits, and promotions. Each command processes a bounded
//! number of them.

use super::command::{EndReason, LockChange};
use super::machine::{Hold, Lock};
use super::queue::Waiter;
use super::{FencingToken, LockLimits, RequestKey, SharedStr};
use crate::Moment;

/// A command in progress, with the changes it has made so far.
pub(super) struct CommandExecution<'a> {
    pub(super) lock: &'a mut Lock,
    pub(super) now: Moment,
    pub(super) limits: &'a LockLimits,
    pub(super) changes: Vec<LockChange>,
    /// The server that sends the command and answers the waiters it serves from the reply.
    pub(super) server: Option<&'a SharedStr>,
}

impl CommandExecution<'_> {
    /// Applies a change to the lock and records it.
    pub(super) fn record(&mut self, change: LockChange) {
        self.lock.apply(&change, self.limits);
        self.changes.push(change);
    }

    /// Ends expired leases, and timed-out waits at any position of the queue.
    pub(super) fn reap_expired(&mut self) {
        self.lock.tombstones.evict_expired(self.now, self.limits.batch_size);
        if self.lock.next_expiry.is_some_and(|next| next <= self.now) {
            let expired = self.lock.holds().iter().filter(|hold| hold.expires_at <= self.now);
            let expired: Vec<Hold> = expired.take(self.limits.batch_size).cloned().collect();
            for hold in expired {
                self.end_if_expired(&hold);
            }
            self.lock.refresh_next_expiry();
        }
        for _ in 0..self.limits.batch_size {
            let next = self.lock.queue.next_to_time_out();
            let Some(waiter) = next.filter(|waiter| waiter.deadline <= self.now).cloned() else { break };
            self.end_wait(&waiter, EndReason::TimedOut);
        }
    }

    pub(super) fn end_if_expired(&mut self, hold: &Hold) {
        if hold.expires_at <= self.now {
            self.end_hold(hold, if hold.claimed { &EndReason::Expired } else { &EndReason::Unclaimed });
        }
    }

    /// Grants the lock to the waiters at the head of the queue, as far as they are compatible. Abandoned waiters are
    /// removed instead.
    pub(super) fn promote_waiters(&mut self) {
        for _ in 0..self.limits.batch_size {
            let Some(head) = self.lock.queue.head() else { return };
            if !self.lock.can_grant(head.mode, &head.holder, self.limits) {
                return;
            }
            let head = head.clone();
            if head.deadline <= self.now {
                self.end_wait(&head, EndReason::TimedOut);
            } else if self.is_abandoned(&head) {
                self.end_wait(&head, EndReason::ServerLost);
            } else {
                let upgraded_from = self.lock.hold_of(&head.holder).cloned().map(Box::new);
                // The caller of an upgrade knows the token of its shared hold, which stays until the claim.
                let lease_ms = head.lease_ms.filter(|_| self.answers(&head) && upgraded_from.is_none());
                let window_ms = self.claim_window_ms(head.served_by.is_some());
                let promoted = self.with_token(Hold {
                    requests: vec![head.request],
                    mode: head.mode,
                    token: FencingToken::default(),
                    acquired_at: self.now,
                    expires_at: self.now.plus_ms(lease_ms.unwrap_or(window_ms)),
                    claimed: lease_ms.is_some(),
                    unreported_by: head.served_by.filter(|_| lease_ms.is_some()),
                    purpose: head.purpose,
                    priority: head.priority,
                    heartbeat_count: 0,
                    leave_tombstone: head.leave_tombstone,
                    upgraded_from,
                    holder: head.holder,
                });
                self.record(LockChange::Promoted(promoted));
            }
        }
    }

    /// How long a grant may stay unclaimed.
    pub(super) const fn claim_window_ms(&self, is_served: bool) -> u64 {
        if is_served { self.limits.long_poll_claim_ms } else { self.limits.ticket_claim_ms }
    }

    /// A hold with a new fencing token.
    pub(super) fn with_token(&self, hold: Hold) -> Hold {
        let token = self.lock.last_token.next(self.now);
        // Who upgrades a hold knows of it.
        let upgraded_from =
            hold.upgraded_from.map(|previous| Box::new(Hold { unreported_by: None, ..*previous }));
        Hold { token, upgraded_from, ..hold }
    }

    /// Ends a hold. An unclaimed upgrade falls back to the shared hold it replaced.
    pub(super) fn end_hold(&mut self, hold: &Hold, reason: &EndReason) {
        self.record(LockChange::HoldEnded {
            holder: hold.holder.clone(),
            token: hold.token,
            reason: reason.clone(),
        });
        if hold.leave_tombstone {
            for request in &hold.requests {
                self.add_tombstone(*request, reason);
            }
        }
        match hold.upgraded_from.as_deref() {
            Some(previous) if reason.restores_previous_hold() && previous.expires_at > self.now => {
                self.record(LockChange::Granted(previous.clone()));
            }
            Some(previous) if previous.leave_tombstone => {
                previous.requests.iter().for_each(|request| self.add_tombstone(*request, reason));
            }
            _ => {}
        }
    }

    pub(super) fn end_wait(&mut self, waiter: &Waiter, reason: EndReason) {
        if waiter.leave_tombstone
            || matches!(reason, EndReason::Cancelled | EndReason::Deadlock(_) | EndReason::Superseded)
        {
            self.add_tombstone(waiter.request, &reason);
        }
        self.record(LockChange::WaitEnded { holder: waiter.holder.clone(), request: waiter.request, reason });
    }

    pub(super) fn add_tombstone(&mut self, request: RequestKey, reason: &EndReason) {
        if reason.leaves_tombstone() {
            let expires_at = self.now.plus_ms(self.limits.idempotency_ttl_ms);
            self.record(LockChange::TombstoneAdded { request, reason: reason.clone(), expires_at });
        }
    }

    fn is_lost(&self, last_heartbeat: Moment) -> bool {
        last_heartbeat.plus_ms(self.limits.server_timeout_ms) <= self.now
    }

    /// Whether the server that sends the command serves this waiter.
    fn answers(&self, waiter: &Waiter) -> bool {
        self.server.is_some() && self.server == waiter.served_by.as_ref()
    }

    fn is_abandoned(&self, waiter: &Waiter) -> bool {
        !self.answers(waiter)
            && waiter.served_by.as_ref().is_some_and(|server| {
                let last_heartbeat = self.lock.server_heartbeats.get(server);
                last_heartbeat.is_none_or(|last_heartbeat| self.is_lost(*last_heartbeat))
            })
    }

    /// Removes the waiters of lost servers at any position of the queue, and lost servers without waiters.
    ///
    /// Only [`LockCommand::Sweep`](super::LockCommand::Sweep) does this: a server that resumes after a pause sends its
    /// heartbeats before it sweeps, and so keeps its waiters.
    pub(super) fn reap_lost_servers(&mut self) {
        let heartbeats = self.lock.server_heartbeats.iter();
        let lost: Vec<SharedStr> = heartbeats
            .filter(|(_, last_heartbeat)| self.is_lost(**last_heartbeat))
            .map(|(server, _)| server.clone())
            .collect();
        for server in lost {
            let served = self.lock.waiters().filter(|waiter| waiter.served_by.as_ref() == Some(&server));
            let served: Vec<Waiter> = served.take(self.limits.batch_size + 1).cloned().collect();
            for waiter in served.iter().take(self.limits.batch_size) {
                self.end_wait(waiter, EndReason::ServerLost);
            }
            if served.len() <= self.limits.batch_size {
                self.record(LockChange::ServerRemoved { server });
            }
        }
    }
}
