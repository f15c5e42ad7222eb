//! Taking locks: at once, with the answer held open, or with a ticket.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::saga::{Failure, Next, Saga};
use ade_domain::lock::{LockCommand, LockName, LockRequest, Outcome, Patience, RequestKey, Waiter};
use ade_store::coordination::{CoordinationError, Registration, Ticket};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::served::Serving;
use super::{Acquired, Granted, LockError, LockService, Waiting};

/// How often an open answer asks again although nobody told it to: hints may get lost.
/// Well within the time that a grant waits for its claim, and that locks which were won so far are kept.
const POLL: Duration = Duration::from_millis(1_000);

/// About that often, and not all at once: a thousand who were woken together drift apart.
fn poll_every(request: RequestKey) -> Duration {
    let digits = request.to_string();
    let some = digits.get(30..).and_then(|last| u32::from_str_radix(last, 16).ok()).unwrap_or_default();
    POLL * (768 + 2 * some) / 1_024
}

/// How long coordination may fail before those who wait are told: a stall or a failover costs nobody its place.
const STALL: Duration = Duration::from_secs(5);
/// Between two attempts meanwhile.
const ATTEMPT: Duration = Duration::from_millis(200);

impl LockService {
    /// Takes the locks of a request, or waits for them as it says, or learns how a repeated request stands.
    ///
    /// Dropping the future while the answer is held open is hanging up: the request leaves the queue and gives back what
    /// it won.
    pub async fn acquire(&self, request: LockRequest) -> Result<Acquired, LockError> {
        let agent = request.holder.agent_id().to_owned();
        if !self.coordination.heard(agent.clone()).await? {
            return Err(LockError::TooManyAgents);
        }
        let locks = u32::try_from(request.asks.len()).unwrap_or(u32::MAX);
        if let Err(retry_at) = self.coordination.admit(agent, locks).await? {
            return Err(LockError::RateLimited { retry_at });
        }
        self.acquire_unmetered(request).await
    }

    /// The same for what was approved: how often people may ask has nothing to do with it.
    pub(crate) async fn acquire_unmetered(&self, request: LockRequest) -> Result<Acquired, LockError> {
        let wait_ms = match request.patience {
            Patience::None => 0,
            Patience::HeldOpen { ms } | Patience::Ticket { ms } => ms,
        };
        let deadline = self.coordination.now().plus_ms(wait_ms);
        let deadline = self.remember(&request, deadline).await?;
        let acquired = match request.patience {
            Patience::Ticket { .. } => self.take_or_queue(&request, deadline).await,
            _ => self.take_or_wait(&request, deadline).await,
        };
        if let Err(LockError::Failed { failure: Failure::Refused(..) | Failure::TimedOut(_), .. }) = &acquired
        {
            self.coordination.forget(request.key).await?;
        }
        acquired
    }

    /// Remembers a request that can come again, and says when it gives up: a ticket that is asked for again gives up when
    /// it was going to.
    async fn remember(&self, request: &LockRequest, deadline: Moment) -> Result<Moment, LockError> {
        let has_ticket = matches!(request.patience, Patience::Ticket { .. });
        if !request.repeatable && !has_ticket {
            return Ok(deadline);
        }
        let ticket = || has_ticket.then(|| Ticket { request: request.clone(), deadline });
        let until = deadline.plus_ms(self.coordination.rules().repeat_ms);
        let (key, digest) = (request.key, request.body_digest());
        match self.coordination.remember(key, digest, ticket(), until).await? {
            Registration::New => Ok(deadline),
            Registration::Other => Err(LockError::RequestReused),
            Registration::Same => match self.coordination.recall(key).await? {
                // A refusal is not remembered: a ticket that waited long enough may be asked for anew.
                Some(ticket_before) if ticket_before.deadline <= self.coordination.now() => {
                    self.coordination.forget(key).await?;
                    self.coordination.remember(key, digest, ticket(), until).await?;
                    Ok(deadline)
                }
                before => Ok(before.map_or(deadline, |before| before.deadline)),
            },
        }
    }

    async fn take_or_wait(&self, request: &LockRequest, deadline: Moment) -> Result<Acquired, LockError> {
        let hang_up = HangUp { service: self, request, serving: self.open.begin(&request.key), armed: true };
        let outcome = self.wait_open(request, deadline).await;
        // Whoever is told that we cannot tell comes back with the same request, and keeps its place until then; a request
        // that cannot come back is given up.
        let gone = matches!(outcome, Err(LockError::Unavailable(_))) && !request.repeatable;
        if !gone {
            hang_up.disarm();
        }
        outcome
    }

    async fn wait_open(&self, request: &LockRequest, deadline: Moment) -> Result<Acquired, LockError> {
        let watch = self.coordination.watch(request.key);
        let mut saga = Saga::new(request.clone(), self.server.clone());
        // Since when it waits and coordination answers; nothing before it waits.
        let mut answered: Option<Instant> = None;
        loop {
            let next = match self.advance(&mut saga, deadline).await {
                // Every command of a saga may be repeated.
                Err(LockError::Unavailable(_)) if answered.is_some_and(|at| at.elapsed() < STALL) => {
                    sleep(ATTEMPT).await;
                    continue;
                }
                next => next?,
            };
            match next {
                Next::Ready => saga.begin_leases(),
                Next::Granted(grants) => return Ok(Acquired::Granted(granted(request, grants))),
                Next::Failed(failure) => return Err(self.failed(failure).await?),
                Next::Wait { lock, .. } => {
                    answered = Some(Instant::now());
                    let _serving = self.served.begin(&lock);
                    let keeps = saga.keep(self.coordination.rules());
                    let left = Duration::from_millis(deadline.ms_since(self.coordination.now()));
                    // Whether woken or not, the next question is the same.
                    let _ = tokio::time::timeout(poll_every(request.key).min(left), watch.changed()).await;
                    match self.keep(&mut saga, keeps).await {
                        // Asked again, it will be seen whether anything was lost.
                        Err(LockError::Unavailable(_)) => {}
                        kept => kept?,
                    }
                    if let Err(error) = self.coordination.heard(request.holder.agent_id().to_owned()).await {
                        tracing::debug!(%error, "not written down that an agent waits");
                    }
                    if self.coordination.now() >= deadline { saga.time_out() } else { saga.poll() }
                }
                Next::Step(..) => {}
            }
        }
    }

    async fn take_or_queue(&self, request: &LockRequest, deadline: Moment) -> Result<Acquired, LockError> {
        let mut saga = Saga::new(request.clone(), self.server.clone());
        loop {
            match self.advance(&mut saga, deadline).await? {
                Next::Ready => saga.begin_leases(),
                Next::Granted(grants) => return Ok(Acquired::Granted(granted(request, grants))),
                Next::Failed(failure) => return Err(self.failed(failure).await?),
                Next::Wait { lock, position } => {
                    let ticket = request.key;
                    return Ok(Acquired::Waiting(Waiting { ticket, waiting_for: lock, position, deadline }));
                }
                Next::Step(..) => {}
            }
        }
    }

    /// Runs a saga until it needs something else than a command.
    pub(super) async fn advance(&self, saga: &mut Saga, deadline: Moment) -> Result<Next, LockError> {
        loop {
            match saga.next(deadline.ms_since(self.coordination.now())) {
                Next::Step(lock, command) => {
                    let outcome = self.run_one(lock, command).await?;
                    saga.answer(outcome);
                }
                other => return Ok(other),
            }
        }
    }

    /// Keeps what was won so far; if some of it is gone, the request is over.
    pub(super) async fn keep(
        &self,
        saga: &mut Saga,
        keeps: Vec<(LockName, LockCommand)>,
    ) -> Result<(), LockError> {
        let outcomes = if keeps.is_empty() { Vec::new() } else { self.run(keeps).await? };
        if let Some(lost) = outcomes.iter().position(|outcome| *outcome == Outcome::Lost) {
            saga.lost(lost);
        }
        Ok(())
    }

    /// Takes back the waits that name this server although nobody waits here. Hanging up could not do it while coordination
    /// was away; or they come from the past: a replica that took over has queues of before. As others wait here for the
    /// same lock, the mark is renewed, and each of them would be granted in turn and keep the lock unclaimed.
    pub(crate) async fn disown(&self) -> Result<(), CoordinationError> {
        for lock in self.served.all() {
            let queue = self.coordination.look(lock.clone()).await?.queue;
            // Whoever waits here was open before it was queued: it is asked after the queue was seen.
            let is_gone = |waiter: &Waiter| {
                waiter.served_by.as_ref() == Some(&self.server) && !self.open.serves(&waiter.request)
            };
            let hang_up = |waiter: Waiter| {
                let (holder, request, server) = (waiter.holder, waiter.request, self.server.clone());
                (lock.clone(), LockCommand::HangUp { holder, request, server, begun: false })
            };
            let commands: Vec<_> = queue.into_iter().filter(is_gone).map(hang_up).collect();
            if !commands.is_empty() {
                tracing::info!(%lock, waits = commands.len(), "waits of requests that are not open any more end");
                self.coordination.commands(commands).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn failed(&self, failure: Failure) -> Result<LockError, LockError> {
        let now = match &failure {
            Failure::TimedOut(lock) => Some(Box::new(self.coordination.look(lock.clone()).await?)),
            _ => None,
        };
        Ok(LockError::Failed { failure, now })
    }
}

pub(super) fn granted(request: &LockRequest, grants: Vec<ade_domain::lock::Grant>) -> Vec<Granted> {
    let asks = request.asks.iter().cloned();
    asks.zip(grants).map(|(ask, grant)| Granted { ask, grant }).collect()
}

/// Gives everything back when the caller goes away before it was answered; not when this process does.
struct HangUp<'a> {
    service: &'a LockService,
    request: &'a LockRequest,
    serving: Serving<RequestKey>,
    armed: bool,
}

impl HangUp<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let comes_back = self.request.repeatable && self.service.leaving.load(Ordering::SeqCst);
        // A request that was repeated over another connection is still wanted there.
        let last = self.serving.end();
        if self.armed && !comes_back && last {
            let (service, commands) =
                (self.service.clone(), Saga::hang_up(self.request, &self.service.server));
            let key = self.request.key;
            runtime.spawn(async move {
                if service.open.serves(&key) {
                    // Its repetition was faster than this.
                    return;
                }
                // If coordination does not answer, a grant ends with its lease; a wait ends when the mark is not renewed, or,
                // if others wait here for the same lock, when it is disowned.
                if let Err(error) = service.run(commands).await {
                    tracing::warn!(%error, "cannot take back the request of a caller that hung up");
                }
                if let Err(error) = service.coordination.forget(key).await {
                    tracing::warn!(%error, "cannot forget the request of a caller that hung up");
                }
            });
        }
    }
}
