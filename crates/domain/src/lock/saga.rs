//! Several locks in one request: taken one after the other in the one order, or all given back.
//!
//! The saga says which single-lock command comes next and listens to its answer; whoever runs it may stop anywhere and
//! start again from the request alone, because every command may be repeated. A request for one lock is the same saga,
//! one step long.

use super::request::{LockRequest, Patience};
use super::{
    Acquire, End, Grant, LockCommand, LockLimits, LockName, LockRefusal, Outcome, Standing, Text, Wait,
};

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Carry out this command and [`answer`](Saga::answer).
    Step(LockName, LockCommand),
    /// Wait until something may have changed for this lock, then [`poll`](Saga::poll).
    Wait {
        /// Which lock is waited for.
        lock: LockName,
        /// The head of its queue is 1.
        position: usize,
    },
    /// Everything is held, and waits to be claimed.
    Ready,
    /// Everything is held, and the leases have begun: a grant for each lock of the request.
    Granted(Vec<Grant>),
    /// Nothing is held by this request any more.
    Failed(Failure),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// A lock was refused.
    Refused(LockName, LockRefusal),
    /// It waited for this lock as long as it wanted to.
    TimedOut(LockName),
    /// It was over already, or a lock was lost before the others were won.
    Over(LockName, End),
    /// Its caller does not want it any more.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Taking,
    Waiting { position: usize },
    Ready,
    Claiming { next: usize },
    GivingBack { next: usize, why: Failure },
    Granted,
    Failed(Failure),
}

/// A request on its way.
#[derive(Debug, Clone)]
pub struct Saga {
    request: LockRequest,
    server: Text,
    grants: Vec<Grant>,
    /// Leases that this run began, in the order of the request: nobody was told of them yet.
    begun: Vec<bool>,
    phase: Phase,
}

impl Saga {
    /// Begins, or begins again. `server` is who holds the answer open.
    #[must_use]
    pub const fn new(request: LockRequest, server: Text) -> Self {
        Self { request, server, grants: Vec::new(), begun: Vec::new(), phase: Phase::Taking }
    }

    /// Begins where everything is held already, and only the leases must begin.
    #[must_use]
    pub const fn held(request: LockRequest, server: Text, grants: Vec<Grant>) -> Self {
        Self { request, server, grants, begun: Vec::new(), phase: Phase::Claiming { next: 0 } }
    }

    /// What comes next, with `wait_ms` of waiting left.
    #[must_use]
    pub fn next(&self, wait_ms: u64) -> Next {
        let at = |index: usize| self.request.asks.get(index).map(|ask| ask.lock.clone());
        match &self.phase {
            Phase::Taking => match at(self.grants.len()) {
                Some(lock) => Next::Step(lock, self.acquire(wait_ms)),
                None => Next::Ready,
            },
            Phase::Waiting { position } => match at(self.grants.len()) {
                Some(lock) => Next::Wait { lock, position: *position },
                None => Next::Ready,
            },
            Phase::Claiming { next } => match at(*next) {
                Some(lock) => Next::Step(lock, self.claim()),
                None => Next::Granted(self.grants.clone()),
            },
            Phase::GivingBack { next, why } => match at(*next) {
                Some(lock) => Next::Step(lock, self.give_back(*next, why)),
                None => Next::Failed(why.clone()),
            },
            Phase::Ready => Next::Ready,
            Phase::Granted => Next::Granted(self.grants.clone()),
            Phase::Failed(why) => Next::Failed(why.clone()),
        }
    }

    /// The answer to the command that came next.
    pub fn answer(&mut self, outcome: Outcome) {
        match (self.phase.clone(), outcome) {
            (Phase::Taking, Outcome::Standing(standing)) => self.took(standing),
            (Phase::Claiming { next }, Outcome::Kept(grant)) => {
                if let Some(place) = self.grants.get_mut(next) {
                    self.begun.push(!place.claimed);
                    *place = grant;
                }
                let last = next + 1 >= self.request.asks.len();
                self.phase = if last { Phase::Granted } else { Phase::Claiming { next: next + 1 } };
            }
            (Phase::Claiming { next }, _) => self.lost(next),
            (Phase::GivingBack { next, why }, _) => {
                let last = next + 1 >= self.request.asks.len();
                self.phase =
                    if last { Phase::Failed(why) } else { Phase::GivingBack { next: next + 1, why } };
            }
            _ => {}
        }
    }

    /// Something may have changed: ask again how the awaited lock stands.
    pub fn poll(&mut self) {
        if matches!(self.phase, Phase::Waiting { .. }) {
            self.phase = Phase::Taking;
        }
    }

    /// Starts the leases, once everything is held.
    pub fn begin_leases(&mut self) {
        if self.phase == Phase::Ready {
            self.phase = Phase::Claiming { next: 0 };
        }
    }

    /// The time to wait is over.
    pub fn time_out(&mut self) {
        if let Some(ask) = self.request.asks.get(self.grants.len()) {
            self.fail(Failure::TimedOut(ask.lock.clone()));
        }
    }

    /// The caller does not want it any more. Every lock is told, so that a delayed command cannot bring it back.
    pub fn cancel(&mut self) {
        self.phase = Phase::GivingBack { next: 0, why: Failure::Cancelled };
    }

    /// Commands that end the request wherever it stands, because its caller hung up on this server.
    #[must_use]
    pub fn hang_up(request: &LockRequest, server: &Text) -> Vec<(LockName, LockCommand)> {
        let LockRequest { holder, key, asks, repeatable, .. } = request;
        // Whoever could repeat it may have been answered elsewhere.
        let (holder, begun) = (holder.clone(), !repeatable);
        let hang_up =
            || LockCommand::HangUp { holder: holder.clone(), request: *key, server: server.clone(), begun };
        asks.iter().map(|ask| (ask.lock.clone(), hang_up())).collect()
    }

    /// A lock that was won is gone before the others were won.
    pub fn lost(&mut self, index: usize) {
        if let Some(ask) = self.request.asks.get(index) {
            self.fail(Failure::Over(ask.lock.clone(), End::Expired));
        }
    }

    /// Commands that keep what was won so far from expiring, while the next lock is waited for.
    #[must_use]
    pub fn keep(&self, rules: &LockLimits) -> Vec<(LockName, LockCommand)> {
        let ms = match self.request.patience {
            Patience::Ticket { .. } => rules.ticket_claim_ms,
            _ => rules.served_claim_ms,
        };
        let (holder, request) = (&self.request.holder, self.request.key);
        let won = self.request.asks.iter().take(self.grants.len());
        won.map(|ask| (ask.lock.clone(), LockCommand::Keep { holder: holder.clone(), request, ms })).collect()
    }

    fn took(&mut self, standing: Standing) {
        let Some(ask) = self.request.asks.get(self.grants.len()) else { return };
        let lock = ask.lock.clone();
        match standing {
            Standing::Held(grant) => {
                let claimed = grant.claimed;
                self.grants.push(grant);
                if self.grants.len() == self.request.asks.len() {
                    let single = self.request.asks.len() == 1;
                    self.phase = if single && claimed { Phase::Granted } else { Phase::Ready };
                }
            }
            Standing::Waiting { position, .. } => self.phase = Phase::Waiting { position },
            Standing::Refused(refusal) => self.fail(Failure::Refused(lock, refusal)),
            Standing::Over(end) => self.fail(Failure::Over(lock, end)),
        }
    }

    /// Gives everything back, also what an earlier run of this saga may have won and this one did not come to.
    fn fail(&mut self, why: Failure) {
        let nothing_won =
            self.request.asks.len() == 1 && matches!(why, Failure::Refused(..) | Failure::Over(..));
        self.phase = if nothing_won { Phase::Failed(why) } else { Phase::GivingBack { next: 0, why } };
    }

    fn acquire(&self, wait_ms: u64) -> LockCommand {
        let asks = &self.request.asks;
        let mode = asks.get(self.grants.len()).map_or(super::Mode::Exclusive, |ask| ask.mode);
        let wait = match self.request.patience {
            Patience::None => None,
            Patience::HeldOpen { .. } => Some(Wait { ms: wait_ms, served_by: Some(self.server.clone()) }),
            Patience::Ticket { .. } => Some(Wait { ms: wait_ms, served_by: None }),
        };
        LockCommand::Acquire(Acquire {
            holder: self.request.holder.clone(),
            request: self.request.key,
            // A ticket is asked for again and again, with an id of its caller's or without: what is over must stay over.
            remember: self.request.repeatable || matches!(self.request.patience, Patience::Ticket { .. }),
            mode,
            ttl_ms: self.request.ttl_ms,
            claimed: asks.len() == 1,
            wait,
            purpose: self.request.purpose.clone(),
            priority: self.request.priority,
        })
    }

    fn claim(&self) -> LockCommand {
        let LockRequest { holder, key, ttl_ms, .. } = &self.request;
        LockCommand::Claim { holder: holder.clone(), request: *key, ttl_ms: *ttl_ms }
    }

    fn give_back(&self, index: usize, why: &Failure) -> LockCommand {
        let holder = self.request.holder.clone();
        let begun = self.begun.get(index) == Some(&true);
        let why = match why {
            Failure::Cancelled => End::Cancelled,
            Failure::TimedOut(_) => End::TimedOut,
            Failure::Refused(..) | Failure::Over(..) => End::Refused,
        };
        LockCommand::Cancel { holder, request: self.request.key, why, begun }
    }
}
