//! Executes one command on one lock: first what is due, then the command, then promotions. It must not read the clock.

use super::command::{
    AcquireStatus, Acquisition, EndReason, Grant, LockChange, LockCommand, LockCommandResult, LockOutcome,
    LockRefusal, UnreportedLease, WaitOptions,
};
use super::expiry::CommandExecution;
use super::machine::{Hold, Lock, MAX_REQUESTS_PER_HOLD};
use super::queue::{QueueScore, Waiter};
use super::{FencingToken, Holder, LockLimits, LockMode, RequestKey};
use crate::Moment;

/// Holders that a refusal lists.
pub const MAX_REFUSAL_HOLDERS: usize = 20;
/// A retry extends the deadline of its wait only by more than this: the remaining time it sends is rounded.
pub const MIN_WAIT_EXTENSION_MS: u64 = 1_000;

impl Lock {
    /// `now` must not be earlier than at the previous command.
    pub fn execute(&mut self, command: &LockCommand, now: Moment, limits: &LockLimits) -> LockCommandResult {
        let server = match command {
            LockCommand::Release { server, .. } => server.as_ref(),
            _ => None,
        };
        let mut execution = CommandExecution { lock: self, now, limits, changes: Vec::new(), server };
        if let LockCommand::ServerHeartbeat { server } = command {
            execution.record(LockChange::ServerHeartbeat { server: server.clone(), at: now });
        }
        execution.reap_expired();
        if *command == LockCommand::Sweep {
            execution.reap_lost_servers();
        }
        execution.promote_waiters();
        let outcome = execution.execute(command);
        execution.promote_waiters();
        LockCommandResult { outcome, changes: execution.changes }
    }
}

impl CommandExecution<'_> {
    fn execute(&mut self, command: &LockCommand) -> LockOutcome {
        // The batch limit may have left this holder's expired hold in place.
        if let Some(hold) = command.holder().and_then(|holder| self.lock.hold_of(holder)).cloned() {
            self.end_if_expired(&hold);
        }
        match command {
            LockCommand::Acquire(acquisition) => LockOutcome::Status(self.acquire(acquisition)),
            LockCommand::Claim { holder, request, ttl_ms } => self.claim(holder, *request, *ttl_ms),
            LockCommand::ExtendUnclaimed { holder, request, ttl_ms } => {
                self.extend_unclaimed(holder, *request, *ttl_ms)
            }
            LockCommand::Extend { holder, token, ttl_ms } => self.extend(holder, *token, *ttl_ms),
            LockCommand::Release { holder, token, .. } => self.release(holder, *token),
            LockCommand::ReturnUnreported { holder, lease } => self.return_unreported(holder, lease),
            LockCommand::Downgrade { holder, token } => self.downgrade(holder, *token),
            LockCommand::Verify { token } => self.verify(*token),
            LockCommand::Query { holder, request } => self.query(holder, *request),
            LockCommand::Cancel { holder, request, reason, include_claimed } => {
                self.cancel(holder, *request, reason, *include_claimed)
            }
            LockCommand::Disconnect { holder, request, server, include_claimed } => {
                let waiter = self.waiter_for(holder, *request);
                if waiter.is_some_and(|waiter| waiter.served_by.as_ref() != Some(server)) {
                    return LockOutcome::Done;
                }
                self.cancel(holder, *request, &EndReason::Disconnected, *include_claimed)
            }
            LockCommand::Break => self.break_holds(),
            LockCommand::Abort { holder, expected_request, cycle } => {
                self.abort(holder, *expected_request, &EndReason::Deadlock(cycle.clone()))
            }
            LockCommand::ServerHeartbeat { .. } | LockCommand::Tick | LockCommand::Sweep => LockOutcome::Done,
        }
    }

    fn acquire(&mut self, acquisition: &Acquisition) -> AcquireStatus {
        if let Some(reason) = self.lock.tombstones.get(acquisition.request, self.now) {
            return AcquireStatus::Ended(reason.clone());
        }
        if let Some(hold) = self.lock.hold_of(&acquisition.holder).cloned() {
            if let Some(own) = hold.for_request(acquisition.request) {
                // The caller of an open request learns of its grant now, so its lease starts now. A ticket is claimed by a
                // command of its own.
                let is_open = acquisition.wait.as_ref().is_some_and(|wait| wait.served_by.is_some());
                let shares_current_hold = hold.requests.contains(&acquisition.request);
                let starts_lease =
                    acquisition.claimed && is_open && !own.claimed || own.unreported_by.is_some();
                if starts_lease && shares_current_hold {
                    let expires_at = self.now.plus_ms(acquisition.ttl_ms);
                    self.record(LockChange::Claimed { holder: acquisition.holder.clone(), expires_at });
                    return self.held_status(&acquisition.holder);
                }
                return AcquireStatus::Held(own.grant());
            }
            if hold.mode >= acquisition.mode {
                return self.join(&hold, acquisition);
            }
            if self.lock.can_grant(acquisition.mode, &acquisition.holder, self.limits) {
                return self.grant_now(acquisition, Some(Box::new(hold)));
            }
        }
        if let Some(waiter) = self.lock.waiter_of(&acquisition.holder).cloned() {
            if waiter.request == acquisition.request {
                return self.renew_wait(&waiter, acquisition);
            }
            if let Some(wait) = &acquisition.wait {
                return self.supersede(&waiter, acquisition, wait);
            }
        }
        if self.lock.queue.is_empty()
            && self.lock.can_grant(acquisition.mode, &acquisition.holder, self.limits)
        {
            return self.grant_now(acquisition, None);
        }
        if self.lock.circuit.open_until > self.now {
            return AcquireStatus::Refused(LockRefusal::CircuitOpen {
                retry_at: self.lock.circuit.open_until,
            });
        }
        match &acquisition.wait {
            None => {
                let others = self.lock.holds().iter().filter(|hold| hold.holder != acquisition.holder);
                let holders = others.take(MAX_REFUSAL_HOLDERS).map(Hold::view).collect();
                AcquireStatus::Refused(LockRefusal::Held { holders, queue_length: self.lock.queue.len() })
            }
            Some(_) if self.lock.queue.len() >= self.limits.max_queue => self.refuse_full_queue(),
            Some(wait) => self.enqueue(acquisition, wait, self.lock.last_score.next(self.now)),
        }
    }

    /// The holder already has the lock in the same or a stronger mode: the request shares that grant and extends its lease
    /// if needed.
    fn join(&mut self, hold: &Hold, acquisition: &Acquisition) -> AcquireStatus {
        let holder = acquisition.holder.clone();
        if hold.requests.len() >= MAX_REQUESTS_PER_HOLD
            && let Some(oldest) = hold.requests.first()
        {
            self.record(LockChange::RequestDetached { holder: holder.clone(), request: *oldest });
            self.add_tombstone(*oldest, &EndReason::Superseded);
        }
        self.record(LockChange::RequestJoined {
            holder: holder.clone(),
            request: acquisition.request,
            leave_tombstone: acquisition.leave_tombstone,
        });
        let expires_at = self.now.plus_ms(acquisition.ttl_ms);
        if acquisition.claimed && (!hold.claimed || expires_at > hold.expires_at) {
            self.record(LockChange::Claimed { holder, expires_at: expires_at.max(hold.expires_at) });
        }
        self.held_status(&acquisition.holder)
    }

    fn grant_now(&mut self, acquisition: &Acquisition, upgraded_from: Option<Box<Hold>>) -> AcquireStatus {
        let is_served = acquisition.wait.as_ref().is_none_or(|wait| wait.served_by.is_some());
        let lease_ms = if acquisition.claimed { acquisition.ttl_ms } else { self.claim_window_ms(is_served) };
        let hold = self.with_token(Hold {
            holder: acquisition.holder.clone(),
            requests: vec![acquisition.request],
            mode: acquisition.mode,
            token: FencingToken::default(),
            acquired_at: self.now,
            expires_at: self.now.plus_ms(lease_ms),
            claimed: acquisition.claimed,
            unreported_by: None,
            purpose: acquisition.purpose.clone(),
            priority: acquisition.priority,
            heartbeat_count: 0,
            leave_tombstone: acquisition.leave_tombstone,
            upgraded_from: upgraded_from.filter(|_| !acquisition.claimed),
        });
        self.record(LockChange::Granted(hold));
        self.held_status(&acquisition.holder)
    }

    fn held_status(&self, holder: &Holder) -> AcquireStatus {
        match self.lock.hold_of(holder) {
            Some(hold) => AcquireStatus::Held(hold.grant()),
            None => AcquireStatus::Ended(EndReason::Expired),
        }
    }

    /// A retry of a waiting request, possibly through another server or with a later deadline. Its position stays the same.
    fn renew_wait(&mut self, waiter: &Waiter, acquisition: &Acquisition) -> AcquireStatus {
        let mut deadline = waiter.deadline;
        if let Some(wait) = &acquisition.wait {
            let requested_deadline = self.now.plus_ms(wait.timeout_ms);
            let is_later = requested_deadline > deadline.plus_ms(MIN_WAIT_EXTENSION_MS);
            if is_later {
                deadline = requested_deadline;
            }
            if is_later || waiter.served_by != wait.served_by {
                let served_by = wait.served_by.clone();
                self.record(LockChange::WaitRenewed {
                    holder: waiter.holder.clone(),
                    served_by: served_by.clone(),
                    deadline,
                });
                if let Some(server) = served_by {
                    self.record(LockChange::ServerHeartbeat { server, at: self.now });
                }
            }
        }
        AcquireStatus::Waiting { position: self.lock.queue.position(waiter), deadline }
    }

    /// The status that a retry would get, without its effects.
    fn query(&self, holder: &Holder, request: RequestKey) -> LockOutcome {
        if let Some(reason) = self.lock.tombstones.get(request, self.now) {
            return LockOutcome::Status(AcquireStatus::Ended(reason.clone()));
        }
        if let Some(hold) = self.lock.hold_of(holder).and_then(|hold| hold.for_request(request)) {
            return LockOutcome::Status(AcquireStatus::Held(hold.grant()));
        }
        self.waiter_for(holder, request).map_or(LockOutcome::NotFound, |waiter| {
            let (position, deadline) = (self.lock.queue.position(waiter), waiter.deadline);
            LockOutcome::Status(AcquireStatus::Waiting { position, deadline })
        })
    }

    /// A holder waits once: its newer request replaces the older one. It keeps the position if the mode is the same, and
    /// goes to the end of the queue otherwise.
    fn supersede(&mut self, older: &Waiter, acquisition: &Acquisition, wait: &WaitOptions) -> AcquireStatus {
        self.end_wait(older, EndReason::Superseded);
        let is_same_mode = older.mode == acquisition.mode;
        let score = if is_same_mode { older.score } else { self.lock.last_score.next(self.now) };
        self.enqueue(acquisition, wait, score)
    }

    fn enqueue(&mut self, acquisition: &Acquisition, wait: &WaitOptions, score: QueueScore) -> AcquireStatus {
        if let Some(server) = &wait.served_by {
            self.record(LockChange::ServerHeartbeat { server: server.clone(), at: self.now });
        }
        let waiter = Waiter {
            holder: acquisition.holder.clone(),
            request: acquisition.request,
            mode: acquisition.mode,
            score,
            is_upgrade: self.lock.hold_of(&acquisition.holder).is_some(),
            priority: acquisition.priority,
            purpose: acquisition.purpose.clone(),
            requested_at: self.now,
            deadline: self.now.plus_ms(wait.timeout_ms),
            served_by: wait.served_by.clone(),
            lease_ms: acquisition.claimed.then_some(acquisition.ttl_ms),
            leave_tombstone: acquisition.leave_tombstone,
        };
        self.record(LockChange::Queued(waiter.clone()));
        AcquireStatus::Waiting { position: self.lock.queue.position(&waiter), deadline: waiter.deadline }
    }

    /// Counts the refusal for the circuit breaker.
    fn refuse_full_queue(&mut self) -> AcquireStatus {
        let mut circuit = self.lock.circuit;
        let window_end = circuit.window_start.plus_ms(self.limits.breaker_window_ms);
        if circuit.refusals == 0 || window_end <= self.now {
            (circuit.window_start, circuit.refusals) = (self.now, 0);
        }
        circuit.refusals += 1;
        if circuit.refusals >= self.limits.breaker_threshold {
            circuit.refusals = 0;
            circuit.open_until = self.now.plus_ms(self.limits.breaker_open_ms);
        }
        self.record(LockChange::RefusalCounted(circuit));
        AcquireStatus::Refused(LockRefusal::QueueFull { queue_length: self.lock.queue.len() })
    }

    fn claim(&mut self, holder: &Holder, request: RequestKey, ttl_ms: u64) -> LockOutcome {
        let Some(hold) = self.hold_with_request(holder, request) else { return LockOutcome::NotFound };
        let expires_at = self.now.plus_ms(ttl_ms);
        // A repeated claim does not restart the lease; a request that joined an older grant may need a longer one.
        let is_first = hold.requests.first() == Some(&request);
        let is_reported = hold.claimed && hold.unreported_by.is_none();
        let is_running = is_reported && (is_first || expires_at <= hold.expires_at);
        if !is_running {
            self.record(LockChange::Claimed { holder: holder.clone(), expires_at });
        }
        self.updated(holder)
    }

    fn extend_unclaimed(&mut self, holder: &Holder, request: RequestKey, ttl_ms: u64) -> LockOutcome {
        let Some(hold) = self.hold_with_request(holder, request) else { return LockOutcome::NotFound };
        let (token, heartbeat_count) = (hold.token, hold.heartbeat_count);
        let expires_at = self.now.plus_ms(ttl_ms);
        if expires_at > hold.expires_at {
            self.record(LockChange::Extended { holder: holder.clone(), token, expires_at, heartbeat_count });
        }
        self.updated(holder)
    }

    fn extend(&mut self, holder: &Holder, token: FencingToken, ttl_ms: u64) -> LockOutcome {
        let Some(hold) = self.hold_with_token(holder, token) else { return LockOutcome::NotFound };
        let expires_at = self.now.plus_ms(ttl_ms).max(hold.expires_at);
        let heartbeat_count = hold.heartbeat_count + 1;
        let grant = Grant { expires_at, ..hold.grant() };
        self.record(LockChange::Extended { holder: holder.clone(), token, expires_at, heartbeat_count });
        LockOutcome::Updated(grant)
    }

    fn release(&mut self, holder: &Holder, token: FencingToken) -> LockOutcome {
        if self.hold_with_token(holder, token).is_none() {
            return LockOutcome::NotFound;
        }
        if let Some(hold) = self.lock.hold_of(holder).cloned() {
            self.end_hold(&hold, &EndReason::Released);
        }
        LockOutcome::Done
    }

    fn return_unreported(&mut self, holder: &Holder, lease: &UnreportedLease) -> LockOutcome {
        let is_meant = |hold: &&Hold| match (&hold.unreported_by, lease) {
            (None, _) => false,
            (Some(_), UnreportedLease::WithToken(token)) => hold.token == *token,
            (Some(server), UnreportedLease::StartedBy(sender, request)) => {
                server == sender && hold.requests.contains(request)
            }
        };
        let hold = self.lock.hold_of(holder).filter(is_meant);
        let Some(hold) = hold.cloned() else { return LockOutcome::NotFound };
        self.end_hold(&hold, &EndReason::Disconnected);
        LockOutcome::Done
    }

    fn downgrade(&mut self, holder: &Holder, token: FencingToken) -> LockOutcome {
        let Some(hold) = self.hold_with_token(holder, token) else { return LockOutcome::NotFound };
        let grant = Grant { mode: LockMode::Shared, ..hold.grant() };
        if hold.mode == LockMode::Exclusive {
            self.record(LockChange::Downgraded { holder: holder.clone() });
        }
        LockOutcome::Updated(grant)
    }

    fn verify(&self, token: FencingToken) -> LockOutcome {
        let holds = self.lock.holds().iter().flat_map(|hold| [Some(hold), hold.upgraded_from.as_deref()]);
        let hold = holds.flatten().find(|hold| hold.token == token && hold.expires_at > self.now);
        hold.map_or(LockOutcome::NotFound, |hold| LockOutcome::Valid(hold.view()))
    }

    fn cancel(
        &mut self,
        holder: &Holder,
        request: RequestKey,
        reason: &EndReason,
        include_claimed: bool,
    ) -> LockOutcome {
        if let Some(waiter) = self.waiter_for(holder, request).cloned() {
            self.end_wait(&waiter, reason.clone());
        } else if let Some(hold) = self.hold_with_request(holder, request).cloned() {
            if hold.requests.len() > 1 {
                self.record(LockChange::RequestDetached { holder: holder.clone(), request });
            } else if !hold.claimed || include_claimed || *reason == EndReason::Cancelled {
                self.end_hold(&hold, reason);
            }
        }
        if self.lock.tombstones.get(request, self.now).is_none() {
            self.add_tombstone(request, reason);
        }
        LockOutcome::Done
    }

    fn break_holds(&mut self) -> LockOutcome {
        let holds = self.lock.holds().to_vec();
        for hold in &holds {
            self.end_hold(hold, &EndReason::Broken);
        }
        LockOutcome::Broken(holds.iter().map(Hold::view).collect())
    }

    fn abort(&mut self, holder: &Holder, expected: Option<RequestKey>, reason: &EndReason) -> LockOutcome {
        let waiter = self.lock.waiter_of(holder).cloned();
        if expected.is_some() && expected != waiter.as_ref().map(|waiter| waiter.request) {
            return LockOutcome::NotFound;
        }
        if let Some(waiter) = waiter {
            self.end_wait(&waiter, reason.clone());
        }
        if let Some(hold) = self.lock.hold_of(holder).cloned() {
            self.end_hold(&hold, reason);
            // A request without an id gets a tombstone too: the server that polls for it must learn of the deadlock.
            for request in hold.requests.iter().filter(|_| !hold.leave_tombstone) {
                self.add_tombstone(*request, reason);
            }
        }
        LockOutcome::Done
    }

    fn waiter_for(&self, holder: &Holder, request: RequestKey) -> Option<&Waiter> {
        self.lock.waiter_of(holder).filter(|waiter| waiter.request == request)
    }

    fn hold_with_request(&self, holder: &Holder, request: RequestKey) -> Option<&Hold> {
        self.lock.hold_of(holder).filter(|hold| hold.requests.contains(&request))
    }

    /// Also finds the shared hold below an unclaimed upgrade: until the claim, its holder only knows the old token.
    fn hold_with_token(&self, holder: &Holder, token: FencingToken) -> Option<&Hold> {
        let hold = self.lock.hold_of(holder)?;
        let previous = hold.upgraded_from.as_deref().filter(|previous| previous.expires_at > self.now);
        [Some(hold), previous].into_iter().flatten().find(|hold| hold.token == token)
    }

    fn updated(&self, holder: &Holder) -> LockOutcome {
        self.lock.hold_of(holder).map_or(LockOutcome::NotFound, |hold| LockOutcome::Updated(hold.grant()))
    }
}
