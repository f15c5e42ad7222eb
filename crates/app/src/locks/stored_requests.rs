//! Lock requests that are stored while coordination is unavailable: store, read and cancel them. Nothing here grants a lock; a stored
//! acquire waits, and a stored release is only as good as its fencing tokens.

use ade_domain::Moment;
use ade_domain::lock::saga::AcquireFailure;
use ade_domain::lock::{
    FencingToken, Holder, LockName, LockRefusal, LockRequest, RequestKey, WaitPolicy, digest,
};
use ade_store::database::{StoredLockCommand, StoredLockOutcome, StoredLockRequest, StoredRefusal};

use super::outage::Outages;
use super::{Acquisition, HeldToken, LockError, LockService, Result, StoredTicket, TicketState};

/// Pending requests of all agents, and of one.
pub(super) const MAX_STORED: u32 = 10_000;
const MAX_STORED_PER_AGENT: u64 = 100;

/// The database cannot keep this character.
const NUL: char = '\0';

impl LockService {
    /// Stores a request that waits with a ticket. A repeated request gets its first ticket.
    pub(super) async fn store_acquire(&self, request: &LockRequest) -> Result<Acquisition> {
        let (Some(outages), WaitPolicy::Ticket { timeout_ms }) = (&self.outages, request.wait) else {
            return Err(Outages::unavailable());
        };
        let names = request.locks.iter().map(|requested| requested.lock.as_str());
        check_storable(&request.holder, names.chain([&*request.purpose]))?;
        let now = self.coordination.now();
        let new = StoredLockRequest {
            key: request.key.to_string(),
            command: StoredLockCommand::Acquire(request.clone()),
            arrived_at: now,
            deadline: Some(now.plus_ms(timeout_ms)),
            attempts: 0,
            outcome: None,
        };
        let stored = self.store(outages, new).await?;
        let StoredLockCommand::Acquire(known) = &stored.command else { return Err(LockError::RequestReused) };
        if known.body_digest() != request.body_digest() {
            return Err(LockError::RequestReused);
        }
        if stored.outcome == Some(StoredLockOutcome::Cancelled) {
            return Err(LockError::Failed { failure: AcquireFailure::Cancelled, now: None });
        }
        outages.reserve(&request.locks);
        let deadline = stored.deadline.unwrap_or(now);
        Ok(Acquisition::Stored(StoredTicket { ticket: request.key, deadline }))
    }

    /// Stores the release of locks under their fencing tokens.
    pub(super) async fn store_release(&self, holder: &Holder, held: &[HeldToken]) -> Result<()> {
        let Some(outages) = &self.outages else { return Err(Outages::unavailable()) };
        check_storable(holder, held.iter().map(|held| held.lock.as_str()))?;
        let held: Vec<(LockName, FencingToken)> =
            held.iter().map(|held| (held.lock.clone(), held.token)).collect();
        let tokens: Vec<String> = held.iter().map(|(_, token)| token.number().to_string()).collect();
        let locks = held.iter().zip(&tokens).flat_map(|((lock, _), token)| [lock.as_str(), token.as_str()]);
        let parts: Vec<&str> = [holder.agent_id(), holder.holder_id()].into_iter().chain(locks).collect();
        let new = StoredLockRequest {
            key: format!("release-{:032x}", digest(&parts)),
            command: StoredLockCommand::Release { holder: holder.clone(), held },
            arrived_at: self.coordination.now(),
            deadline: None,
            attempts: 0,
            outcome: None,
        };
        self.store(outages, new).await.map(drop)
    }

    /// Stores a request, unless it is known. Returns it as it is stored.
    async fn store(&self, outages: &Outages, mut new: StoredLockRequest) -> Result<StoredLockRequest> {
        let database = outages.database();
        let known = match database.stored_lock_request(&new.key).await? {
            None => {
                self.admit(outages, &new).await?;
                if database.store_lock_request(&new).await? {
                    return Ok(new);
                }
                // The same request arrived over another connection.
                database.stored_lock_request(&new.key).await?
            }
            known => known,
        };
        let Some(known) = known else { return Err(Outages::unavailable()) };
        let is_same = known.command == new.command;
        match (&known.outcome, &known.command) {
            (
                Some(
                    StoredLockOutcome::TimedOut | StoredLockOutcome::Executed | StoredLockOutcome::Refused(_),
                ),
                StoredLockCommand::Acquire(_),
            ) if is_same => {
                // Timeouts and refusals are not remembered. A request that was executed is executed again, which shows what became of it.
                if known.outcome == Some(StoredLockOutcome::Executed)
                    && known.deadline.is_some_and(|deadline| deadline > new.arrived_at)
                {
                    (new.arrived_at, new.deadline) = (known.arrived_at, known.deadline);
                }
                self.admit(outages, &new).await?;
                database.store_lock_request_again(&new).await?;
                Ok(new)
            }
            _ => Ok(known),
        }
    }

    /// Counts a request that becomes pending; a repeated one that is pending already was counted. Concurrent requests may exceed the
    /// capacity by a few.
    async fn admit(&self, outages: &Outages, new: &StoredLockRequest) -> Result<()> {
        let agent = match &new.command {
            StoredLockCommand::Acquire(request) => {
                let (agent, limits) = (request.holder.agent_id(), self.coordination.limits());
                let (locks, now) = (request.locks.len(), self.coordination.now());
                let admitted = outages.admission().admit(agent, locks, limits.acquisitions_per_minute, now);
                admitted.map_err(|retry_at| LockError::RateLimited { retry_at })?;
                agent
            }
            // Releases are not limited by a rate.
            StoredLockCommand::Release { holder, .. } => holder.agent_id(),
        };
        let (all, own) = outages.database().count_pending_of_agent(agent).await?;
        if own >= MAX_STORED_PER_AGENT {
            return Err(LockError::TooManyStored { pending: own, of: format!("agent {agent}") });
        }
        if all >= MAX_STORED.into() {
            return Err(LockError::TooManyStored { pending: all, of: "all agents".to_owned() });
        }
        Ok(())
    }

    /// The state of a ticket that coordination does not know; `None` if it is not stored, or was executed.
    pub(super) async fn stored_ticket(&self, key: RequestKey) -> Result<Option<TicketState>> {
        let Some(StoredLockRequest { command, deadline, outcome, .. }) = self.find_stored(key).await? else {
            return Ok(None);
        };
        let StoredLockCommand::Acquire(request) = command else { return Ok(None) };
        let deadline = deadline.unwrap_or_default();
        let timed_out = || {
            let first = request.locks.first().map(|requested| requested.lock.clone());
            let failure = first.map_or(AcquireFailure::Cancelled, AcquireFailure::TimedOut);
            Err(LockError::Failed { failure, now: None })
        };
        match outcome {
            None if deadline <= self.coordination.now() => timed_out(),
            None => Ok(Some(TicketState::Stored(StoredTicket { ticket: key, deadline }))),
            Some(StoredLockOutcome::TimedOut) => timed_out(),
            Some(StoredLockOutcome::Cancelled) => {
                Err(LockError::Failed { failure: AcquireFailure::Cancelled, now: None })
            }
            Some(StoredLockOutcome::Refused(refusal)) => {
                Err(LockError::Failed { failure: refused(refusal), now: None })
            }
            Some(StoredLockOutcome::Executed) => Ok(None),
            // Somebody has repaired the row since; it was not executed.
            Some(StoredLockOutcome::Unreadable) => Err(LockError::TicketNotFound),
        }
    }

    /// A ticket that is stored and was not executed yet.
    pub(super) async fn pending_ticket(&self, key: RequestKey) -> Result<Option<StoredTicket>> {
        let pending = self.find_stored(key).await?.filter(|stored| stored.outcome.is_none());
        Ok(pending.map(|stored| StoredTicket { ticket: key, deadline: stored.deadline.unwrap_or_default() }))
    }

    /// The holder that a stored ticket is for.
    pub(super) async fn stored_ticket_holder(&self, key: RequestKey) -> Result<Option<Holder>> {
        Ok(self.find_stored(key).await?.and_then(|stored| match stored.command {
            StoredLockCommand::Acquire(request) => Some(request.holder),
            StoredLockCommand::Release { .. } => None,
        }))
    }

    /// Cancels a stored ticket; `false` if it is not stored, or was executed.
    pub(super) async fn cancel_stored(&self, key: RequestKey) -> Result<bool> {
        let Some(outages) = &self.outages else { return Ok(false) };
        let (database, now) = (outages.database(), outages.now());
        if database.end_lock_request(&key.to_string(), &StoredLockOutcome::Cancelled, now).await? {
            return Ok(true);
        }
        let outcome = self.find_stored(key).await?.and_then(|stored| stored.outcome);
        Ok(outcome == Some(StoredLockOutcome::Cancelled))
    }

    async fn find_stored(&self, key: RequestKey) -> Result<Option<StoredLockRequest>> {
        let Some(outages) = &self.outages else { return Ok(None) };
        Ok(outages.database().stored_lock_request(&key.to_string()).await?)
    }

    /// Whether the deadline of a stored request has passed.
    pub(super) fn is_overdue(stored: &StoredLockRequest, now: Moment) -> bool {
        stored.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// What is stored of a failure that ends an acquire; `None` if it may succeed later.
pub(super) fn stored_refusal(failure: AcquireFailure) -> Option<StoredRefusal> {
    match failure {
        AcquireFailure::Refused(lock, LockRefusal::QueueFull { queue_length }) => {
            Some(StoredRefusal::QueueFull { lock, queue_length })
        }
        AcquireFailure::Refused(lock, LockRefusal::CircuitOpen { retry_at }) => {
            Some(StoredRefusal::CircuitOpen { lock, retry_at })
        }
        _ => None,
    }
}

fn refused(refusal: StoredRefusal) -> AcquireFailure {
    match refusal {
        StoredRefusal::QueueFull { lock, queue_length } => {
            AcquireFailure::Refused(lock, LockRefusal::QueueFull { queue_length })
        }
        StoredRefusal::CircuitOpen { lock, retry_at } => {
            AcquireFailure::Refused(lock, LockRefusal::CircuitOpen { retry_at })
        }
    }
}

/// Refuses what the database would store as something else.
fn check_storable<'a>(holder: &'a Holder, texts: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut all = texts.chain([holder.agent_id(), holder.holder_id()]);
    if all.any(|text| text.contains(NUL)) { Err(Outages::unavailable()) } else { Ok(()) }
}
