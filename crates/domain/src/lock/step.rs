//! One command to one lock: first what is due, then the command, then whoever may hold now.

use super::command::{Acquire, Change, End, Grant, LockCommand, LockRefusal, Outcome, Standing, Step, Wait};
use super::due::Doing;
use super::machine::{Hold, Lock, MAX_REQUESTS};
use super::queue::Waiter;
use super::{Holder, LockLimits, Mode, RequestKey, Text, Token};
use crate::Moment;

/// Holders that a refusal lists.
pub const SHOWN_HOLDERS: usize = 20;
/// A repetition within the same wait is not a wish to wait longer: its remaining time is rounded.
pub const LONGER_MS: u64 = 1_000;

impl Lock {
    /// Carries out a command at `now`, which must not be earlier than at the step before.
    pub fn step(&mut self, command: &LockCommand, now: Moment, rules: &LockLimits) -> Step {
        let mut doing = Doing { lock: self, now, rules, changes: Vec::new() };
        if let LockCommand::Mark { server } = command {
            doing.make(Change::Marked { server: server.clone(), at: now });
        }
        doing.reap();
        if *command == LockCommand::Sweep {
            doing.reap_silent();
        }
        doing.promote();
        let outcome = doing.carry_out(command);
        doing.promote();
        Step { outcome, changes: doing.changes }
    }
}

impl Doing<'_> {
    fn carry_out(&mut self, command: &LockCommand) -> Outcome {
        if let Some(hold) = command.holder().and_then(|holder| self.lock.hold_of(holder)).cloned() {
            self.end_if_over(&hold);
        }
        match command {
            LockCommand::Acquire(acquire) => Outcome::Standing(self.acquire(acquire)),
            LockCommand::Claim { holder, request, ttl_ms } => self.claim(holder, *request, *ttl_ms),
            LockCommand::Keep { holder, request, ms } => self.keep(holder, *request, *ms),
            LockCommand::Extend { holder, token, ms } => self.extend(holder, *token, *ms),
            LockCommand::Release { holder, token } => self.release(holder, *token),
            LockCommand::Downgrade { holder, token } => self.downgrade(holder, *token),
            LockCommand::Verify { token } => self.verify(*token),
            LockCommand::Inquire { holder, request } => self.inquire(holder, *request),
            LockCommand::Cancel { holder, request, why, begun } => self.cancel(holder, *request, why, *begun),
            LockCommand::HangUp { holder, request, server, begun } => {
                self.hang_up(holder, *request, server, *begun)
            }
            LockCommand::Break => self.break_holds(),
            LockCommand::Abort { holder, waits_by, cycle } => {
                self.abort(holder, *waits_by, &End::Deadlock(cycle.clone()))
            }
            LockCommand::Mark { .. } | LockCommand::Tick | LockCommand::Sweep => Outcome::Done,
        }
    }

    fn acquire(&mut self, wish: &Acquire) -> Standing {
        if let Some(end) = self.lock.gone.get(wish.request, self.now) {
            return Standing::Over(end.clone());
        }
        if let Some(hold) = self.lock.hold_of(&wish.holder).cloned() {
            if let Some(own) = hold.of_request(wish.request) {
                // Its lease begins with the answer, if that is held open and nothing else is waited for.
                let held_open = wish.wait.as_ref().is_some_and(|wait| wait.served_by.is_some());
                if wish.claimed && held_open && !own.claimed && hold.requests.contains(&wish.request) {
                    let expires_at = self.now.plus_ms(wish.ttl_ms);
                    self.make(Change::Claimed { holder: wish.holder.clone(), expires_at });
                    return self.held(&wish.holder);
                }
                return Standing::Held(own.grant());
            }
            if hold.mode >= wish.mode {
                return self.join(&hold, wish);
            }
            if self.lock.admits(wish.mode, &wish.holder, self.rules) {
                return self.hold_now(wish, Some(Box::new(hold)));
            }
        }
        if let Some(waiter) = self.lock.wait_of(&wish.holder).cloned() {
            if waiter.request == wish.request {
                return self.still_waiting(&waiter, wish);
            }
            if let Some(wait) = &wish.wait {
                return self.take_place_of(&waiter, wish, wait);
            }
        }
        if self.lock.queue.is_empty() && self.lock.admits(wish.mode, &wish.holder, self.rules) {
            return self.hold_now(wish, None);
        }
        if self.lock.crowd.until > self.now {
            return Standing::Refused(LockRefusal::Contention { retry_at: self.lock.crowd.until });
        }
        match &wish.wait {
            None => {
                let others = self.lock.holds().iter().filter(|hold| hold.holder != wish.holder);
                let holders = others.take(SHOWN_HOLDERS).map(Hold::held_by).collect();
                Standing::Refused(LockRefusal::Held { holders, queue_length: self.lock.queue.len() })
            }
            Some(_) if self.lock.queue.len() >= self.rules.max_queue => self.turn_away(),
            Some(wait) => self.queue(wish, wait),
        }
    }

    /// The holder holds it already, at least as strongly: the same grant, lasting at least as long as asked.
    fn join(&mut self, hold: &Hold, wish: &Acquire) -> Standing {
        let holder = wish.holder.clone();
        if hold.requests.len() >= MAX_REQUESTS
            && let Some(oldest) = hold.requests.first()
        {
            self.make(Change::Parted { holder: holder.clone(), request: *oldest });
            self.remember(*oldest, &End::Superseded);
        }
        self.make(Change::Joined { holder: holder.clone(), request: wish.request, remember: wish.remember });
        let expires_at = self.now.plus_ms(wish.ttl_ms);
        if wish.claimed && (!hold.claimed || expires_at > hold.expires_at) {
            self.make(Change::Claimed { holder, expires_at: expires_at.max(hold.expires_at) });
        }
        self.held(&wish.holder)
    }

    fn hold_now(&mut self, wish: &Acquire, before: Option<Box<Hold>>) -> Standing {
        let served = wish.wait.as_ref().is_none_or(|wait| wait.served_by.is_some());
        let lease_ms = if wish.claimed { wish.ttl_ms } else { self.claim_ms(served) };
        self.grant(Hold {
            holder: wish.holder.clone(),
            requests: vec![wish.request],
            mode: wish.mode,
            token: Token::default(),
            acquired_at: self.now,
            expires_at: self.now.plus_ms(lease_ms),
            claimed: wish.claimed,
            purpose: wish.purpose.clone(),
            priority: wish.priority,
            heartbeat_count: 0,
            remember: wish.remember,
            before: before.filter(|_| !wish.claimed),
        });
        self.held(&wish.holder)
    }

    fn held(&self, holder: &Holder) -> Standing {
        match self.lock.hold_of(holder) {
            Some(hold) => Standing::Held(hold.grant()),
            None => Standing::Over(End::Expired),
        }
    }

    /// It asks again: perhaps through another server, perhaps ready to wait longer. Its place stays the same.
    fn still_waiting(&mut self, waiter: &Waiter, wish: &Acquire) -> Standing {
        let mut deadline = waiter.deadline;
        if let Some(wait) = &wish.wait {
            let wished = self.now.plus_ms(wait.ms);
            let longer = wished > deadline.plus_ms(LONGER_MS);
            if longer {
                deadline = wished;
            }
            if longer || waiter.served_by != wait.served_by {
                let by = wait.served_by.clone();
                self.make(Change::Served { holder: waiter.holder.clone(), by: by.clone(), deadline });
                if let Some(server) = by {
                    self.make(Change::Marked { server, at: self.now });
                }
            }
        }
        Standing::Waiting { position: self.lock.queue.position(waiter), deadline }
    }

    /// The same as a repeated acquisition would be told, without trying.
    fn inquire(&self, holder: &Holder, request: RequestKey) -> Outcome {
        if let Some(end) = self.lock.gone.get(request, self.now) {
            return Outcome::Standing(Standing::Over(end.clone()));
        }
        if let Some(hold) = self.lock.hold_of(holder).and_then(|hold| hold.of_request(request)) {
            return Outcome::Standing(Standing::Held(hold.grant()));
        }
        let waiter = self.lock.wait_of(holder).filter(|waiter| waiter.request == request);
        waiter.map_or(Outcome::Lost, |waiter| {
            let (position, deadline) = (self.lock.queue.position(waiter), waiter.deadline);
            Outcome::Standing(Standing::Waiting { position, deadline })
        })
    }

    /// A holder waits once: its newer request takes the place of the older one, at the end if it wants another mode.
    fn take_place_of(&mut self, older: &Waiter, wish: &Acquire, wait: &Wait) -> Standing {
        self.leave(older, End::Superseded);
        let score = if older.mode == wish.mode { older.score } else { self.lock.last_score.next(self.now) };
        self.stand(wish, wait, score)
    }

    fn queue(&mut self, wish: &Acquire, wait: &Wait) -> Standing {
        let score = self.lock.last_score.next(self.now);
        self.stand(wish, wait, score)
    }

    fn stand(&mut self, wish: &Acquire, wait: &Wait, score: super::Score) -> Standing {
        if let Some(server) = &wait.served_by {
            self.make(Change::Marked { server: server.clone(), at: self.now });
        }
        let waiter = Waiter {
            holder: wish.holder.clone(),
            request: wish.request,
            mode: wish.mode,
            score,
            upgrade: self.lock.hold_of(&wish.holder).is_some(),
            priority: wish.priority,
            purpose: wish.purpose.clone(),
            requested_at: self.now,
            deadline: self.now.plus_ms(wait.ms),
            served_by: wait.served_by.clone(),
            remember: wish.remember,
        };
        self.make(Change::Queued(waiter.clone()));
        Standing::Waiting { position: self.lock.queue.position(&waiter), deadline: waiter.deadline }
    }

    fn turn_away(&mut self) -> Standing {
        let crowd = self.lock.crowd;
        let fresh = crowd.count == 0 || crowd.since.plus_ms(self.rules.crowded_within_ms) <= self.now;
        let (since, count) = if fresh { (self.now, 1) } else { (crowd.since, crowd.count + 1) };
        let full = count >= self.rules.crowded_after;
        let until = if full { self.now.plus_ms(self.rules.crowded_for_ms) } else { crowd.until };
        self.make(Change::Crowded { since, count: if full { 0 } else { count }, until });
        Standing::Refused(LockRefusal::QueueFull { queue_length: self.lock.queue.len() })
    }

    fn claim(&mut self, holder: &Holder, request: RequestKey, ttl_ms: u64) -> Outcome {
        let Some(hold) = self.won_by(holder, request) else { return Outcome::Lost };
        let until = self.now.plus_ms(ttl_ms);
        // A repeated claim finds its lease running; a request that joined an older grant may need it for longer.
        let runs = hold.claimed && (hold.requests.first() == Some(&request) || until <= hold.expires_at);
        if !runs {
            self.make(Change::Claimed { holder: holder.clone(), expires_at: until });
        }
        self.kept(holder)
    }

    fn keep(&mut self, holder: &Holder, request: RequestKey, ms: u64) -> Outcome {
        let Some(hold) = self.won_by(holder, request) else { return Outcome::Lost };
        let (expires_at, token, heartbeat_count) = (self.now.plus_ms(ms), hold.token, hold.heartbeat_count);
        if expires_at > hold.expires_at {
            self.make(Change::Extended { holder: holder.clone(), token, expires_at, heartbeat_count });
        }
        self.kept(holder)
    }

    fn extend(&mut self, holder: &Holder, token: Token, ms: u64) -> Outcome {
        let Some(hold) = self.held_with(holder, token) else { return Outcome::Lost };
        let expires_at = self.now.plus_ms(ms).max(hold.expires_at);
        let heartbeat_count = hold.heartbeat_count + 1;
        let grant = Grant { expires_at, ..hold.grant() };
        self.make(Change::Extended { holder: holder.clone(), token, expires_at, heartbeat_count });
        Outcome::Kept(grant)
    }

    fn release(&mut self, holder: &Holder, token: Token) -> Outcome {
        if self.held_with(holder, token).is_none() {
            return Outcome::Lost;
        }
        if let Some(hold) = self.lock.hold_of(holder).cloned() {
            self.free(&hold, &End::Released);
        }
        Outcome::Done
    }

    fn downgrade(&mut self, holder: &Holder, token: Token) -> Outcome {
        let Some(hold) = self.held_with(holder, token) else { return Outcome::Lost };
        let grant = Grant { mode: Mode::Shared, ..hold.grant() };
        if hold.mode == Mode::Exclusive {
            self.make(Change::Downgraded { holder: holder.clone() });
        }
        Outcome::Kept(grant)
    }

    fn verify(&self, token: Token) -> Outcome {
        let holds = self.lock.holds().iter().flat_map(|hold| [Some(hold), hold.before.as_deref()]);
        let hold = holds.flatten().find(|hold| hold.token == token && hold.expires_at > self.now);
        hold.map_or(Outcome::Lost, |hold| Outcome::Valid(hold.held_by()))
    }

    fn cancel(&mut self, holder: &Holder, request: RequestKey, why: &End, begun: bool) -> Outcome {
        if let Some(waiter) = self.lock.wait_of(holder).filter(|waiter| waiter.request == request).cloned() {
            self.leave(&waiter, why.clone());
        } else if let Some(hold) = self.won_by(holder, request).cloned() {
            if hold.requests.len() > 1 {
                self.make(Change::Parted { holder: holder.clone(), request });
            } else if !hold.claimed || begun || *why == End::Cancelled {
                self.free(&hold, why);
            }
        }
        if self.lock.gone.get(request, self.now).is_none() {
            self.remember(request, why);
        }
        Outcome::Done
    }

    fn hang_up(&mut self, holder: &Holder, request: RequestKey, server: &Text, begun: bool) -> Outcome {
        let wait = self.lock.wait_of(holder).filter(|waiter| waiter.request == request);
        if wait.is_some_and(|waiter| waiter.served_by.as_ref() != Some(server)) {
            return Outcome::Done;
        }
        self.cancel(holder, request, &End::HungUp, begun)
    }

    fn break_holds(&mut self) -> Outcome {
        let holds = self.lock.holds().to_vec();
        for hold in &holds {
            self.free(hold, &End::Broken);
        }
        Outcome::Broken(holds.iter().map(Hold::held_by).collect())
    }

    fn abort(&mut self, holder: &Holder, waits_by: Option<RequestKey>, why: &End) -> Outcome {
        let waiter = self.lock.wait_of(holder).cloned();
        if waits_by.is_some() && waits_by != waiter.as_ref().map(|waiter| waiter.request) {
            return Outcome::Lost;
        }
        if let Some(waiter) = waiter {
            self.leave(&waiter, why.clone());
        }
        if let Some(hold) = self.lock.hold_of(holder).cloned() {
            self.free(&hold, why);
            for request in hold.requests.iter().filter(|_| !hold.remember) {
                self.remember(*request, why);
            }
        }
        Outcome::Done
    }

    fn won_by(&self, holder: &Holder, request: RequestKey) -> Option<&Hold> {
        self.lock.hold_of(holder).filter(|hold| hold.requests.contains(&request))
    }

    /// The hold by this token: until an upgrade is claimed, its holder only knows the token that it had before.
    fn held_with(&self, holder: &Holder, token: Token) -> Option<&Hold> {
        let hold = self.lock.hold_of(holder)?;
        let before = hold.before.as_deref().filter(|before| before.expires_at > self.now);
        [Some(hold), before].into_iter().flatten().find(|hold| hold.token == token)
    }

    fn kept(&self, holder: &Holder) -> Outcome {
        let grant = self.lock.hold_of(holder).map(Hold::grant);
        grant.map_or(Outcome::Lost, |grant: Grant| Outcome::Kept(grant))
    }
}
