//! Acquiring locks: immediately, with a request that is held open, or with a ticket.

use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::saga::{AcquireFailure, AcquireSaga, SagaAction};
use ade_domain::lock::{
    AcquireStatus, Grant, LockCommand, LockName, LockOutcome, LockRequest, RequestKey, WaitPolicy, Waiter,
};
use ade_store::coordination::{CoordinationError, Registration, Ticket};
use tokio::time::{Instant, sleep};

use super::open_request::{OpenRequest, WhenClosed};
use super::outage::{Outages, Route};
use super::{Acquisition, GrantedLock, LockError, LockService, Result, WaitingTicket};

/// How often a waiting request polls without a notification: notifications may get lost. It must be well below the time for
/// which a grant waits for its claim, and for which the locks of a partial acquisition are kept.
const POLL_INTERVAL: Duration = Duration::from_millis(1_000);

/// The poll interval with a jitter that depends on the request: requests that were woken together drift apart.
fn poll_interval(request: RequestKey) -> Duration {
    let digits = request.to_string();
    let jitter = digits.get(30..).and_then(|last| u32::from_str_radix(last, 16).ok()).unwrap_or_default();
    POLL_INTERVAL * (768 + 2 * jitter) / 1_024
}

/// How long coordination may be unavailable before waiting requests fail: no request loses its place because of a stall or a failover.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl LockService {
    /// Acquires the locks of a request, or waits for them as the request says. A repeated request gets its current state.
    ///
    /// Dropping the future of a request that is held open means that the caller disconnected: the request leaves the queue and
    /// releases the locks that it has.
    ///
    /// While coordination is unavailable, a request with a ticket is stored and all others fail.
    pub async fn acquire(&self, request: LockRequest) -> Result<Acquisition> {
        if self.route(&request).await? == Route::Store {
            return self.store_acquire(&request).await;
        }
        let has_ticket = matches!(request.wait, WaitPolicy::Ticket { .. });
        match self.acquire_metered(&request).await {
            // It may have been executed. Executed once more, it gets its current state.
            Err(LockError::Unavailable(error)) if has_ticket && self.outages.is_some() => {
                tracing::debug!(%error, ticket = %request.key, "storing a lock request");
                self.store_acquire(&request).await
            }
            acquired => acquired,
        }
    }

    async fn acquire_metered(&self, request: &LockRequest) -> Result<Acquisition> {
        let agent = request.holder.agent_id().to_owned();
        if !self.coordination.record_heartbeat(agent.clone()).await? {
            return Err(LockError::TooManyAgents);
        }
        let locks = u32::try_from(request.locks.len()).unwrap_or(u32::MAX);
        if let Err(retry_at) = self.coordination.admit_acquisition(agent, locks).await? {
            return Err(LockError::RateLimited { retry_at });
        }
        self.acquire_admitted(request).await
    }

    /// The same without rate limit, for locks of approved tasks. Nothing is stored.
    pub(crate) async fn acquire_unmetered(&self, request: LockRequest) -> Result<Acquisition> {
        match self.route(&request).await? {
            Route::Coordination => self.acquire_admitted(&request).await,
            Route::Store => Err(Outages::unavailable()),
        }
    }

    async fn acquire_admitted(&self, request: &LockRequest) -> Result<Acquisition> {
        let wait_ms = match request.wait {
            WaitPolicy::NoWait => 0,
            WaitPolicy::LongPoll { timeout_ms: ms } | WaitPolicy::Ticket { timeout_ms: ms } => ms,
        };
        let deadline = self.coordination.now().plus_ms(wait_ms);
        let deadline = self.register(request, deadline).await?;
        let acquired = match request.wait {
            WaitPolicy::Ticket { .. } => {
                let mut saga = AcquireSaga::new(request.clone(), self.server.clone());
                self.claim_or_wait(&mut saga, request, deadline).await
            }
            _ => self.acquire_or_wait(request, deadline).await,
        };
        if let Err(LockError::Failed {
            failure: AcquireFailure::Refused(..) | AcquireFailure::TimedOut(_),
            ..
        }) = &acquired
        {
            self.coordination.forget_request(request.key).await?;
        }
        acquired
    }

    /// Registers a repeatable request, and returns its deadline: a repeated ticket keeps its first deadline.
    pub(super) async fn register(&self, request: &LockRequest, deadline: Moment) -> Result<Moment> {
        let has_ticket = matches!(request.wait, WaitPolicy::Ticket { .. });
        if !request.has_request_id && !has_ticket {
            return Ok(deadline);
        }
        let ticket = || has_ticket.then(|| Ticket { request: request.clone(), deadline });
        let until = deadline.plus_ms(self.coordination.limits().idempotency_ttl_ms);
        let (key, digest) = (request.key, request.body_digest());
        match self.coordination.register_request(key, digest, ticket(), until).await? {
            Registration::New => Ok(deadline),
            Registration::KeyReused => Err(LockError::RequestReused),
            Registration::Repeated => match self.coordination.ticket(key).await? {
                // A timeout is not remembered: an expired ticket may be requested again.
                Some(known) if known.deadline <= self.coordination.now() => {
                    self.coordination.forget_request(key).await?;
                    self.coordination.register_request(key, digest, ticket(), until).await?;
                    Ok(deadline)
                }
                known => Ok(known.map_or(deadline, |known| known.deadline)),
            },
        }
    }

    async fn acquire_or_wait(&self, request: &LockRequest, deadline: Moment) -> Result<Acquisition> {
        let mut open = self.open(request);
        let acquired = self.wait_until_acquired(&mut open, deadline).await;
        open.when_closed = match acquired {
            Ok(_) => WhenClosed::Nothing,
            // The caller of a repeatable request comes back with the same request; any other request is cancelled.
            Err(LockError::Unavailable(_)) if request.has_request_id => WhenClosed::KeepPlace,
            Err(LockError::Unavailable(_)) => WhenClosed::Cancel,
            Err(_) => WhenClosed::ReturnLease,
        };
        acquired
    }

    async fn wait_until_acquired(&self, open: &mut OpenRequest<'_>, deadline: Moment) -> Result<Acquisition> {
        let request = open.request;
        let mut saga = AcquireSaga::new(request.clone(), self.server.clone());
        // When coordination answered last; `None` until the request waits.
        let mut answered_at: Option<Instant> = None;
        loop {
            self.wait_out_grace().await;
            let attempt = match self.check_reachable() {
                Ok(()) => self.claim_or_wait(&mut saga, request, deadline).await,
                Err(error) => Err(error),
            };
            let waiting = match attempt {
                // All commands of a saga are idempotent.
                Err(LockError::Unavailable(_))
                    if answered_at.is_some_and(|at| at.elapsed() < OUTAGE_TIMEOUT) =>
                {
                    sleep(RETRY_INTERVAL).await;
                    continue;
                }
                Ok(Acquisition::Waiting(waiting)) => waiting,
                ended => return ended,
            };
            answered_at = Some(Instant::now());
            open.has_waited = true;
            let _awaited = self.awaited_locks.open(&waiting.waiting_for);
            let keeps = saga.keep_alive_commands(self.coordination.limits());
            let left = Duration::from_millis(deadline.ms_since(self.coordination.now()));
            // A notification without a grant and a timeout have the same effect: poll.
            let changed =
                tokio::time::timeout(poll_interval(request.key).min(left), open.subscription.changed()).await;
            // A grant whose lease has ended meanwhile is none: the next poll shows what became of the request.
            if let Ok(Some(grant)) = changed
                && grant.expires_at > self.coordination.now()
            {
                // Its lease has started with the release by the previous holder.
                saga.poll();
                saga.handle_outcome(LockOutcome::Status(AcquireStatus::Held(grant)));
                continue;
            }
            match self.keep(&mut saga, keeps).await {
                // The next poll shows whether anything was lost.
                Err(LockError::Unavailable(_)) => {}
                kept => kept?,
            }
            let agent = request.holder.agent_id().to_owned();
            if let Err(error) = self.coordination.record_heartbeat(agent).await {
                tracing::debug!(%error, "cannot store the heartbeat of a waiting agent");
            }
            if self.coordination.now() >= deadline { saga.time_out() } else { saga.poll() }
        }
    }

    /// Runs a saga until all locks are claimed or it has to wait.
    async fn claim_or_wait(
        &self,
        saga: &mut AcquireSaga,
        request: &LockRequest,
        deadline: Moment,
    ) -> Result<Acquisition> {
        loop {
            match self.advance(saga, deadline).await? {
                SagaAction::Ready => saga.claim_all(),
                SagaAction::Granted(grants) => return Ok(Acquisition::Granted(granted(request, grants))),
                SagaAction::Failed(failure) => return self.failed(failure).await,
                SagaAction::Wait { lock: waiting_for, position } => {
                    let ticket = request.key;
                    return Ok(Acquisition::Waiting(WaitingTicket {
                        ticket,
                        waiting_for,
                        position,
                        deadline,
                    }));
                }
                SagaAction::Execute(..) => {}
            }
        }
    }

    /// Runs the commands of a saga until it needs something else.
    pub(super) async fn advance(&self, saga: &mut AcquireSaga, deadline: Moment) -> Result<SagaAction> {
        loop {
            match saga.next_action(deadline.ms_since(self.coordination.now())) {
                SagaAction::Execute(commands) => {
                    let replies = self.coordination.execute_while_successful(commands).await?;
                    self.outcomes(replies).for_each(|outcome| saga.handle_outcome(outcome));
                }
                other => return Ok(other),
            }
        }
    }

    /// Keeps the locks acquired so far; if one of them is lost, the request fails.
    pub(super) async fn keep(
        &self,
        saga: &mut AcquireSaga,
        keeps: Vec<(LockName, LockCommand)>,
    ) -> Result<()> {
        let outcomes = if keeps.is_empty() { Vec::new() } else { self.run(keeps).await? };
        if let Some(lost) = outcomes.iter().position(|outcome| *outcome == LockOutcome::NotFound) {
            saga.handle_lost_grant(lost);
        }
        Ok(())
    }

    /// Cancels waits that name this server although no request is open for them: they could not be cancelled while coordination
    /// was unavailable, or they come from an old queue of a replica that took over. While others wait here for the same lock,
    /// the server heartbeat is renewed, so such a wait would be granted in its turn and hold the lock unclaimed.
    pub(crate) async fn cancel_orphaned_waits(&self) -> Result<(), CoordinationError> {
        for lock in self.awaited_locks.all() {
            let queue = self.coordination.lock_view(lock.clone()).await?.queue;
            // A request is opened before it is queued, so checking after the queue was read is safe.
            let is_orphaned = |waiter: &Waiter| {
                waiter.served_by.as_ref() == Some(&self.server)
                    && !self.open_requests.is_open(&waiter.request)
            };
            let cancel = |waiter: Waiter| {
                let (holder, request, server) = (waiter.holder, waiter.request, self.server.clone());
                (lock.clone(), LockCommand::Disconnect { holder, request, server, include_claimed: false })
            };
            let commands: Vec<_> = queue.into_iter().filter(is_orphaned).map(cancel).collect();
            if !commands.is_empty() {
                tracing::info!(%lock, waits = commands.len(), "cancelling waits of closed requests");
                self.coordination.execute_commands(commands).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn failed<T>(&self, failure: AcquireFailure) -> Result<T> {
        let now = match &failure {
            AcquireFailure::TimedOut(lock) => {
                Some(Box::new(self.coordination.lock_view(lock.clone()).await?))
            }
            _ => None,
        };
        Err(LockError::Failed { failure, now })
    }
}

pub(super) fn granted(request: &LockRequest, grants: Vec<Grant>) -> Vec<GrantedLock> {
    let requested = request.locks.iter().cloned();
    requested.zip(grants).map(|(requested, grant)| GrantedLock { requested, grant }).collect()
}
