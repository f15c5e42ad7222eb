//! Acquires all locks of a request one after the other in the global order, or gives them all back.
//!
//! The saga only says which command comes next and handles its outcome; it does no I/O. Every command can be repeated, so a
//! run may stop anywhere and start again from the request alone. A request for one lock is a saga of one command.

use super::request::{LockRequest, Patience};
use super::{
    Acquire, End, Grant, LockCommand, LockLimits, LockName, LockRefusal, Mode, Outcome, Standing, Text, Wait,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Execute this command and pass its outcome to [`handle_outcome`](AcquireSaga::handle_outcome).
    Step(LockName, LockCommand),
    /// Wait until the status of this lock may have changed, then call [`poll`](AcquireSaga::poll).
    Wait {
        lock: LockName,
        /// The head of the queue is 1.
        position: usize,
    },
    /// All locks are held and can be claimed.
    Ready,
    /// All leases have started. The grants are in the order of the requested locks.
    Granted(Vec<Grant>),
    /// The request holds nothing and waits for nothing.
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    Refused(LockName, LockRefusal),
    TimedOut(LockName),
    /// The request had already ended, or it lost this lock before it acquired the others.
    Over(LockName, End),
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Acquiring,
    Waiting { position: usize },
    Ready,
    Claiming { next: usize },
    RollingBack { next: usize, failure: Failure },
    Granted,
    Failed(Failure),
}

#[derive(Debug, Clone)]
pub struct Saga {
    request: LockRequest,
    server: Text,
    grants: Vec<Grant>,
    /// For each lock: whether this run started its lease, which is then not reported to the caller yet.
    started_leases: Vec<bool>,
    phase: Phase,
}

impl Saga {
    /// Starts or restarts a request. `server` is the one that holds the request open.
    #[must_use]
    pub const fn new(request: LockRequest, server: Text) -> Self {
        let phase = Phase::Acquiring;
        Self { request, server, grants: Vec::new(), started_leases: Vec::new(), phase }
    }

    /// Starts with all locks already granted; only the claims are left.
    #[must_use]
    pub const fn held(request: LockRequest, server: Text, grants: Vec<Grant>) -> Self {
        let phase = Phase::Claiming { next: 0 };
        Self { request, server, grants, started_leases: Vec::new(), phase }
    }

    /// `wait_ms` is the remaining time to wait.
    #[must_use]
    pub fn next(&self, wait_ms: u64) -> Next {
        let lock_at = |index: usize| self.request.asks.get(index).map(|requested| requested.lock.clone());
        match &self.phase {
            Phase::Acquiring => match lock_at(self.grants.len()) {
                Some(lock) => Next::Step(lock, self.acquire_command(wait_ms)),
                None => Next::Ready,
            },
            Phase::Waiting { position } => match lock_at(self.grants.len()) {
                Some(lock) => Next::Wait { lock, position: *position },
                None => Next::Ready,
            },
            Phase::Claiming { next } => match lock_at(*next) {
                Some(lock) => Next::Step(lock, self.claim_command()),
                None => Next::Granted(self.grants.clone()),
            },
            Phase::RollingBack { next, failure } => match lock_at(*next) {
                Some(lock) => Next::Step(lock, self.rollback_command(*next, failure)),
                None => Next::Failed(failure.clone()),
            },
            Phase::Ready => Next::Ready,
            Phase::Granted => Next::Granted(self.grants.clone()),
            Phase::Failed(failure) => Next::Failed(failure.clone()),
        }
    }

    pub fn answer(&mut self, outcome: Outcome) {
        match (self.phase.clone(), outcome) {
            (Phase::Acquiring, Outcome::Standing(status)) => self.handle_status(status),
            (Phase::Claiming { next }, Outcome::Kept(claimed)) => {
                if let Some(grant) = self.grants.get_mut(next) {
                    self.started_leases.push(!grant.claimed);
                    *grant = claimed;
                }
                let is_last = next + 1 >= self.request.asks.len();
                self.phase = if is_last { Phase::Granted } else { Phase::Claiming { next: next + 1 } };
            }
            (Phase::Claiming { next }, _) => self.lost(next),
            (Phase::RollingBack { next, failure }, _) => {
                let is_last = next + 1 >= self.request.asks.len();
                self.phase = if is_last {
                    Phase::Failed(failure)
                } else {
                    Phase::RollingBack { next: next + 1, failure }
                };
            }
            _ => {}
        }
    }

    /// Asks for the status of the awaited lock again.
    pub fn poll(&mut self) {
        if matches!(self.phase, Phase::Waiting { .. }) {
            self.phase = Phase::Acquiring;
        }
    }

    /// Starts the leases once all locks are held.
    pub fn begin_leases(&mut self) {
        if self.phase == Phase::Ready {
            self.phase = Phase::Claiming { next: 0 };
        }
    }

    pub fn time_out(&mut self) {
        if let Some(awaited) = self.request.asks.get(self.grants.len()) {
            self.fail(Failure::TimedOut(awaited.lock.clone()));
        }
    }

    /// Cancels the request at every lock, so that a delayed command cannot revive it.
    pub fn cancel(&mut self) {
        self.phase = Phase::RollingBack { next: 0, failure: Failure::Cancelled };
    }

    /// The commands that end the request after its caller disconnected from this server.
    #[must_use]
    pub fn hang_up(request: &LockRequest, server: &Text) -> Vec<(LockName, LockCommand)> {
        let LockRequest { holder, key, asks: locks, repeatable: has_request_id, .. } = request;
        // A request with an id may have been retried on another server, which may have reported the lease.
        let include_claimed = !has_request_id;
        let disconnect = || LockCommand::HangUp {
            holder: holder.clone(),
            request: *key,
            server: server.clone(),
            begun: include_claimed,
        };
        locks.iter().map(|requested| (requested.lock.clone(), disconnect())).collect()
    }

    /// A granted lock was lost before all locks were acquired.
    pub fn lost(&mut self, index: usize) {
        if let Some(requested) = self.request.asks.get(index) {
            self.fail(Failure::Over(requested.lock.clone(), End::Expired));
        }
    }

    /// The commands that keep the granted locks from expiring while the request waits for the next one.
    #[must_use]
    pub fn keep(&self, limits: &LockLimits) -> Vec<(LockName, LockCommand)> {
        let ttl_ms = match self.request.patience {
            Patience::Ticket { .. } => limits.ticket_claim_ms,
            _ => limits.served_claim_ms,
        };
        let (holder, request) = (&self.request.holder, self.request.key);
        let extend = || LockCommand::Keep { holder: holder.clone(), request, ms: ttl_ms };
        let granted = self.request.asks.iter().take(self.grants.len());
        granted.map(|requested| (requested.lock.clone(), extend())).collect()
    }

    fn handle_status(&mut self, status: Standing) {
        let Some(requested) = self.request.asks.get(self.grants.len()) else { return };
        let lock = requested.lock.clone();
        match status {
            Standing::Held(grant) => {
                let is_claimed = grant.claimed;
                self.grants.push(grant);
                if self.grants.len() == self.request.asks.len() {
                    let is_single = self.request.asks.len() == 1;
                    self.phase = if is_single && is_claimed { Phase::Granted } else { Phase::Ready };
                }
            }
            Standing::Waiting { position, .. } => self.phase = Phase::Waiting { position },
            Standing::Refused(refusal) => self.fail(Failure::Refused(lock, refusal)),
            Standing::Over(reason) => self.fail(Failure::Over(lock, reason)),
        }
    }

    /// Rolls back at every lock, including those that only an earlier run of this saga may have acquired.
    fn fail(&mut self, failure: Failure) {
        let holds_nothing =
            self.request.asks.len() == 1 && matches!(failure, Failure::Refused(..) | Failure::Over(..));
        self.phase =
            if holds_nothing { Phase::Failed(failure) } else { Phase::RollingBack { next: 0, failure } };
    }

    fn acquire_command(&self, wait_ms: u64) -> LockCommand {
        let locks = &self.request.asks;
        let mode = locks.get(self.grants.len()).map_or(Mode::Exclusive, |requested| requested.mode);
        let has_ticket = matches!(self.request.patience, Patience::Ticket { .. });
        let wait = match self.request.patience {
            Patience::None => None,
            Patience::HeldOpen { .. } => Some(Wait { ms: wait_ms, served_by: Some(self.server.clone()) }),
            Patience::Ticket { .. } => Some(Wait { ms: wait_ms, served_by: None }),
        };
        LockCommand::Acquire(Acquire {
            holder: self.request.holder.clone(),
            request: self.request.key,
            // A ticket is polled even without a request id, so its end must be remembered too.
            remember: self.request.repeatable || has_ticket,
            mode,
            ttl_ms: self.request.ttl_ms,
            claimed: locks.len() == 1,
            wait,
            purpose: self.request.purpose.clone(),
            priority: self.request.priority,
        })
    }

    fn claim_command(&self) -> LockCommand {
        let LockRequest { holder, key, ttl_ms, .. } = &self.request;
        LockCommand::Claim { holder: holder.clone(), request: *key, ttl_ms: *ttl_ms }
    }

    fn rollback_command(&self, index: usize, failure: &Failure) -> LockCommand {
        let reason = match failure {
            Failure::Cancelled => End::Cancelled,
            Failure::TimedOut(_) => End::TimedOut,
            Failure::Refused(..) | Failure::Over(..) => End::Refused,
        };
        LockCommand::Cancel {
            holder: self.request.holder.clone(),
            request: self.request.key,
            why: reason,
            begun: self.started_leases.get(index) == Some(&true),
        }
    }
}
