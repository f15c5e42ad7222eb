//! Acquires all locks of a request one after the other in the global order, or gives them all back.
//!
//! The saga only says which commands come next and handles their outcomes; it does no I/O. Every command can be repeated, so a
//! run may stop anywhere and start again from the request alone. A request for one lock is a saga of one command.

use super::request::{LockRequest, RequestedLock, WaitPolicy};
use super::{
    AcquireStatus, Acquisition, EndReason, Grant, LockCommand, LockLimits, LockMode, LockName, LockOutcome,
    LockRefusal, SharedStr, WaitOptions,
};

#[derive(Debug, Clone, PartialEq)]
pub enum SagaAction {
    /// Execute these commands in order, up to the first that does not succeed ([`LockOutcome::is_success`]), and pass each
    /// outcome to [`handle_outcome`](AcquireSaga::handle_outcome).
    Execute(Vec<(LockName, LockCommand)>),
    /// Wait until the status of this lock may have changed, then call [`poll`](AcquireSaga::poll).
    /// The position of the head of the queue is 1.
    Wait { lock: LockName, position: usize },
    /// All locks are held and can be claimed.
    Ready,
    /// All leases have started. The grants are in the order of the requested locks.
    Granted(Vec<Grant>),
    /// The request holds nothing and waits for nothing.
    Failed(AcquireFailure),
}

#[derive(Debug, Clone, PartialEq)]
pub enum AcquireFailure {
    Refused(LockName, LockRefusal),
    TimedOut(LockName),
    /// The request had already ended, or it lost this lock before it acquired the others.
    Ended(LockName, EndReason),
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// The first lock without a grant is next. All locks are held if there is none.
    Acquiring,
    Waiting {
        position: usize,
    },
    /// All leases have started if there is no next lock.
    Claiming {
        next: usize,
    },
    /// The request has ended if there is no next lock.
    RollingBack {
        next: usize,
        failure: AcquireFailure,
    },
}

#[derive(Debug, Clone)]
pub struct AcquireSaga {
    request: LockRequest,
    server: SharedStr,
    grants: Vec<Grant>,
    /// For each lock: whether this run started its lease, which is then not reported to the caller yet.
    started_leases: Vec<bool>,
    /// Whether the lease of a request for one lock starts with its grant.
    starts_lease: bool,
    phase: Phase,
}

impl AcquireSaga {
    /// Starts or restarts a request. `server` is the one that holds the request open.
    pub const fn new(request: LockRequest, server: SharedStr) -> Self {
        let phase = Phase::Acquiring;
        Self { request, server, grants: Vec::new(), started_leases: Vec::new(), starts_lease: true, phase }
    }

    /// The same for a request whose caller gets no answer now: no lease starts before a claim.
    pub const fn without_caller(request: LockRequest, server: SharedStr) -> Self {
        let phase = Phase::Acquiring;
        Self { request, server, grants: Vec::new(), started_leases: Vec::new(), starts_lease: false, phase }
    }

    /// Starts with all locks already granted; only the claims are left.
    pub const fn with_grants(request: LockRequest, server: SharedStr, grants: Vec<Grant>) -> Self {
        let phase = Phase::Claiming { next: 0 };
        Self { request, server, grants, started_leases: Vec::new(), starts_lease: true, phase }
    }

    /// `wait_ms` is the remaining time to wait.
    pub fn next_action(&self, wait_ms: u64) -> SagaAction {
        let (first, finished) = match &self.phase {
            Phase::Acquiring => (self.grants.len(), SagaAction::Ready),
            Phase::Waiting { position } => {
                return self.request.locks.get(self.grants.len()).map_or(SagaAction::Ready, |requested| {
                    SagaAction::Wait { lock: requested.lock.clone(), position: *position }
                });
            }
            Phase::Claiming { next } => (*next, SagaAction::Granted(self.grants.clone())),
            Phase::RollingBack { next, failure } => (*next, SagaAction::Failed(failure.clone())),
        };
        let command = |(index, requested): (usize, &RequestedLock)| match &self.phase {
            Phase::Claiming { .. } => self.claim_command(),
            Phase::RollingBack { failure, .. } => self.rollback_command(index, failure),
            Phase::Acquiring | Phase::Waiting { .. } => self.acquire_command(requested.mode, wait_ms),
        };
        let remaining = self.request.locks.iter().enumerate().skip(first);
        let commands: Vec<_> = remaining
            .map(|(index, requested)| (requested.lock.clone(), command((index, requested))))
            .collect();
        if commands.is_empty() { finished } else { SagaAction::Execute(commands) }
    }

    pub fn handle_outcome(&mut self, outcome: LockOutcome) {
        match (self.phase.clone(), outcome) {
            (Phase::Acquiring, LockOutcome::Status(status)) => self.handle_status(status),
            (Phase::Claiming { next }, LockOutcome::Updated(claimed)) => {
                if let Some(grant) = self.grants.get_mut(next) {
                    self.started_leases.push(!grant.claimed);
                    *grant = claimed;
                }
                self.phase = Phase::Claiming { next: next + 1 };
            }
            (Phase::Claiming { next }, _) => self.handle_lost_grant(next),
            (Phase::RollingBack { next, failure }, _) => {
                self.phase = Phase::RollingBack { next: next + 1, failure };
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
    pub fn claim_all(&mut self) {
        if self.phase == Phase::Acquiring && self.grants.len() == self.request.locks.len() {
            self.phase = Phase::Claiming { next: 0 };
        }
    }

    pub fn time_out(&mut self) {
        if let Some(awaited) = self.request.locks.get(self.grants.len()) {
            self.fail(AcquireFailure::TimedOut(awaited.lock.clone()));
        }
    }

    /// Cancels the request at every lock, so that a delayed command cannot revive it.
    pub fn cancel(&mut self) {
        self.phase = Phase::RollingBack { next: 0, failure: AcquireFailure::Cancelled };
    }

    /// The commands that end the request after its caller disconnected from this server.
    pub fn disconnect_commands(request: &LockRequest, server: &SharedStr) -> Vec<(LockName, LockCommand)> {
        let LockRequest { holder, key, locks, has_request_id, .. } = request;
        // A request with an id may have been retried on another server, which may have reported the lease.
        let include_claimed = !has_request_id;
        let disconnect = || LockCommand::Disconnect {
            holder: holder.clone(),
            request: *key,
            server: server.clone(),
            include_claimed,
        };
        locks.iter().map(|requested| (requested.lock.clone(), disconnect())).collect()
    }

    /// A granted lock was lost before all locks were acquired.
    pub fn handle_lost_grant(&mut self, index: usize) {
        if let Some(requested) = self.request.locks.get(index) {
            self.fail(AcquireFailure::Ended(requested.lock.clone(), EndReason::Expired));
        }
    }

    /// The commands that keep the granted locks from expiring while the request waits for the next one.
    pub fn keep_alive_commands(&self, limits: &LockLimits) -> Vec<(LockName, LockCommand)> {
        let ttl_ms = match self.request.wait {
            WaitPolicy::Ticket { .. } => limits.ticket_claim_ms,
            _ => limits.long_poll_claim_ms,
        };
        let (holder, request) = (&self.request.holder, self.request.key);
        let extend = || LockCommand::ExtendUnclaimed { holder: holder.clone(), request, ttl_ms };
        let granted = self.request.locks.iter().take(self.grants.len());
        granted.map(|requested| (requested.lock.clone(), extend())).collect()
    }

    fn handle_status(&mut self, status: AcquireStatus) {
        let Some(requested) = self.request.locks.get(self.grants.len()) else { return };
        let lock = requested.lock.clone();
        match status {
            AcquireStatus::Held(grant) => {
                if self.request.locks.len() == 1 && grant.claimed {
                    self.phase = Phase::Claiming { next: 1 };
                }
                self.grants.push(grant);
            }
            AcquireStatus::Waiting { position, .. } => self.phase = Phase::Waiting { position },
            AcquireStatus::Refused(refusal) => self.fail(AcquireFailure::Refused(lock, refusal)),
            AcquireStatus::Ended(reason) => {
                // A victim loses all its locks, and the first that it looks at may not be the one that it waited for.
                let lock = reason.awaited_lock(&self.request.holder).cloned().unwrap_or(lock);
                self.fail(AcquireFailure::Ended(lock, reason));
            }
        }
    }

    /// Rolls back at every lock, including those that only an earlier run of this saga may have acquired.
    fn fail(&mut self, failure: AcquireFailure) {
        let holds_nothing = self.request.locks.len() == 1
            && matches!(failure, AcquireFailure::Refused(..) | AcquireFailure::Ended(..));
        self.phase = Phase::RollingBack { next: usize::from(holds_nothing), failure };
    }

    fn acquire_command(&self, mode: LockMode, wait_ms: u64) -> LockCommand {
        let has_ticket = matches!(self.request.wait, WaitPolicy::Ticket { .. });
        let wait = (self.request.wait != WaitPolicy::NoWait).then(|| WaitOptions {
            timeout_ms: wait_ms,
            served_by: (!has_ticket).then(|| self.server.clone()),
        });
        LockCommand::Acquire(Acquisition {
            holder: self.request.holder.clone(),
            request: self.request.key,
            // A ticket is polled even without a request id, so its end must be remembered too.
            leave_tombstone: self.request.has_request_id || has_ticket,
            mode,
            ttl_ms: self.request.ttl_ms,
            claimed: self.starts_lease && self.request.locks.len() == 1,
            wait,
            purpose: self.request.purpose.clone(),
            priority: self.request.priority,
        })
    }

    fn claim_command(&self) -> LockCommand {
        let LockRequest { holder, key, ttl_ms, .. } = &self.request;
        LockCommand::Claim { holder: holder.clone(), request: *key, ttl_ms: *ttl_ms }
    }

    fn rollback_command(&self, index: usize, failure: &AcquireFailure) -> LockCommand {
        let reason = match failure {
            AcquireFailure::Cancelled => EndReason::Cancelled,
            AcquireFailure::TimedOut(_) => EndReason::TimedOut,
            AcquireFailure::Refused(..) | AcquireFailure::Ended(..) => EndReason::Refused,
        };
        LockCommand::Cancel {
            holder: self.request.holder.clone(),
            request: self.request.key,
            reason,
            include_claimed: self.started_leases.get(index) == Some(&true),
        }
    }
}
