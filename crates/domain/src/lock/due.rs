//! What is due at a lock: leases that ended, waiters that gave up, and the next ones to hold. Bounded per step.

use super::command::{Change, End};
use super::machine::{Hold, Lock};
use super::queue::Waiter;
use super::{LockLimits, RequestKey, Text, Token};
use crate::Moment;

/// A step in progress: the lock, the time, and the changes so far.
pub(super) struct Doing<'a> {
    pub(super) lock: &'a mut Lock,
    pub(super) now: Moment,
    pub(super) rules: &'a LockLimits,
    pub(super) changes: Vec<Change>,
}

impl Doing<'_> {
    pub(super) fn make(&mut self, change: Change) {
        self.lock.apply(&change, self.rules);
        self.changes.push(change);
    }

    /// Ends leases and waits whose time has come, at any place of the queue.
    pub(super) fn reap(&mut self) {
        self.lock.gone.expire(self.now, self.rules.batch);
        if self.lock.next_expiry.is_some_and(|next| next <= self.now) {
            let over = self.lock.holds().iter().filter(|hold| hold.expires_at <= self.now);
            let over: Vec<Hold> = over.take(self.rules.batch).cloned().collect();
            for hold in over {
                self.end_if_over(&hold);
            }
            self.lock.find_next_expiry();
        }
        for _ in 0..self.rules.batch {
            let Some(waiter) =
                self.lock.queue.first_to_give_up().filter(|waiter| waiter.deadline <= self.now)
            else {
                break;
            };
            let waiter = waiter.clone();
            self.leave(&waiter, End::TimedOut);
        }
    }

    /// Ends a hold whose lease ran out.
    pub(super) fn end_if_over(&mut self, hold: &Hold) {
        if hold.expires_at <= self.now {
            self.free(hold, if hold.claimed { &End::Expired } else { &End::Unclaimed });
        }
    }

    /// Grants to whoever is first and may hold, and skips those whom nobody serves any more.
    pub(super) fn promote(&mut self) {
        for _ in 0..self.rules.batch {
            let Some(head) = self.lock.queue.first() else { return };
            if !self.lock.admits(head.mode, &head.holder, self.rules) {
                return;
            }
            let head = head.clone();
            if head.deadline <= self.now {
                self.leave(&head, End::TimedOut);
            } else if self.is_abandoned(&head) {
                self.leave(&head, End::ServerSilent);
            } else {
                let before = self.lock.hold_of(&head.holder).cloned().map(Box::new);
                self.grant(Hold {
                    requests: vec![head.request],
                    mode: head.mode,
                    token: Token::default(),
                    acquired_at: self.now,
                    expires_at: self.now.plus_ms(self.claim_ms(head.served_by.is_some())),
                    claimed: false,
                    purpose: head.purpose,
                    priority: head.priority,
                    heartbeat_count: 0,
                    remember: head.remember,
                    before,
                    holder: head.holder,
                });
            }
        }
    }

    /// How long a grant may stay unclaimed.
    pub(super) const fn claim_ms(&self, served: bool) -> u64 {
        if served { self.rules.served_claim_ms } else { self.rules.ticket_claim_ms }
    }

    /// Makes a hold with a token of its own.
    pub(super) fn grant(&mut self, hold: Hold) {
        let token = self.lock.last_token.next(self.now);
        self.make(Change::Granted(Hold { token, ..hold }));
    }

    /// Ends a hold. An upgrade that was not claimed falls back to the shared hold it came from.
    pub(super) fn free(&mut self, hold: &Hold, why: &End) {
        self.make(Change::Freed { holder: hold.holder.clone(), token: hold.token, why: why.clone() });
        if hold.remember {
            for request in &hold.requests {
                self.remember(*request, why);
            }
        }
        match hold.before.as_deref() {
            Some(before) if why.is_given_back() && before.expires_at > self.now => {
                self.make(Change::Granted(before.clone()));
            }
            Some(before) if before.remember => {
                before.requests.iter().for_each(|request| self.remember(*request, why));
            }
            _ => {}
        }
    }

    pub(super) fn leave(&mut self, waiter: &Waiter, why: End) {
        if waiter.remember || matches!(why, End::Cancelled | End::Deadlock(_) | End::Superseded) {
            self.remember(waiter.request, &why);
        }
        self.make(Change::Left { holder: waiter.holder.clone(), request: waiter.request, why });
    }

    pub(super) fn remember(&mut self, request: RequestKey, why: &End) {
        if why.is_remembered() {
            let until = self.now.plus_ms(self.rules.repeat_ms);
            self.make(Change::Gone { request, why: why.clone(), until });
        }
    }

    fn is_silent(&self, heard: Moment) -> bool {
        heard.plus_ms(self.rules.server_silence_ms) <= self.now
    }

    fn is_abandoned(&self, waiter: &Waiter) -> bool {
        let server = waiter.served_by.as_ref();
        server.is_some_and(|server| self.lock.marks.get(server).is_none_or(|heard| self.is_silent(*heard)))
    }

    /// Waiters of servers that were silent for too long leave, at any place. A server without waiters here is forgotten.
    /// Only the sweep does this: a server that comes back from a pause renews its marks before it sweeps.
    pub(super) fn reap_silent(&mut self) {
        let silent = self.lock.marks.iter().filter(|(_, heard)| self.is_silent(**heard));
        let servers: Vec<Text> = silent.map(|(server, _)| server.clone()).collect();
        for server in servers {
            let served = self.lock.waiters().filter(|waiter| waiter.served_by.as_ref() == Some(&server));
            let served: Vec<Waiter> = served.take(self.rules.batch + 1).cloned().collect();
            for waiter in served.iter().take(self.rules.batch) {
                self.leave(waiter, End::ServerSilent);
            }
            if served.len() <= self.rules.batch {
                self.make(Change::Silenced { server });
            }
        }
    }
}
