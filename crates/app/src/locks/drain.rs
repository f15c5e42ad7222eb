//! Executes stored lock requests once coordination is available: releases first, then acquires in the order of their arrival. One process
//! at a time does so, under a lease in the database; another one continues if it dies.
//!
//! A request may be executed twice and must never be lost: its outcome is stored after coordination has executed it. A request that
//! coordination cannot execute yet stays pending, and nobody overtakes it. One that it refuses has ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

use ade_domain::lock::saga::{AcquireFailure, AcquireSaga, SagaAction};
use ade_domain::lock::{FencingToken, Holder, LockCommand, LockName, LockRequest};
use ade_store::DatabaseError;
use ade_store::database::{PendingLockRequests, StoredLockCommand, StoredLockOutcome, StoredLockRequest};
use futures_util::stream::{self, StreamExt as _};
use tokio::time::{Instant, timeout};

use super::outage::{Outages, Phase};
use super::stored_requests::{MAX_STORED, stored_refusal};
use super::{LockError, LockService, Result};

/// How soon this process notices requests that another one has stored.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A request that could not be executed is executed again after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Another process takes over from one that died after this time.
const LEASE_MS: u64 = 2_000;
const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_millis(500);
/// Requests that are executed at once; they have no lock in common.
const MAX_CONCURRENT: usize = 64;
/// How long the outcome of a request can be read.
const RETENTION_MS: u64 = 10 * 60_000;
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Whether a request needs no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Ended,
    Failed,
}

/// Executes stored requests whenever there are some and coordination is available.
pub(super) async fn drain_stored_requests(locks: LockService, outages: Outages) -> Infallible {
    let mut phases = outages.phases();
    let (mut retry_at, mut cleanup_at) = (Instant::now(), Instant::now() + CLEANUP_INTERVAL);
    loop {
        let phase = *phases.borrow_and_update();
        if matches!(phase, Phase::Open | Phase::Draining) {
            match locks.drain_once(&outages, phase, retry_at).await {
                Ok(Attempt::Ended) => {}
                Ok(Attempt::Failed) => retry_at = Instant::now() + RETRY_INTERVAL,
                Err(error) => tracing::debug!(%error, "cannot execute stored lock requests; retrying"),
            }
        }
        if Instant::now() >= cleanup_at {
            cleanup_at = Instant::now() + CLEANUP_INTERVAL;
            let before = outages.now().minus_ms(RETENTION_MS);
            if let Err(error) = outages.database().delete_ended_lock_requests(before).await {
                tracing::debug!(%error, "cannot delete old lock requests; retrying");
            }
        }
        // The sender lives as long as the service.
        let _ = timeout(POLL_INTERVAL, phases.changed()).await;
    }
}

impl LockService {
    /// Admits requests at the start of a process, unless others are stored: those come first.
    pub async fn admit_requests(&self) -> Result<(), DatabaseError> {
        if let Some(outages) = &self.outages
            && outages.database().count_stored_lock_requests().await?.pending == 0
        {
            outages.open();
        }
        Ok(())
    }

    /// Executes what is pending, unless another process does, and admits new requests once everything was tried.
    async fn drain_once(&self, outages: &Outages, phase: Phase, retry_at: Instant) -> Result<Attempt> {
        let database = outages.database();
        let reservations = outages.reservations();
        let counts = database.count_stored_lock_requests().await?;
        if counts.pending == 0 {
            outages.set_pending(0, HashSet::new(), reservations);
            outages.open();
            return Ok(Attempt::Ended);
        }
        let pending = database.pending_lock_requests(MAX_STORED).await?.requests;
        outages.set_pending(counts.pending, reserved_locks(&pending), reservations);
        let is_due = counts.untried > 0 || Instant::now() >= retry_at;
        let now = outages.now();
        let mut attempt = Attempt::Ended;
        if is_due && database.lease_lock_requests(outages.instance(), now, now.plus_ms(LEASE_MS)).await? {
            if phase == Phase::Draining {
                self.sweep().await?;
            }
            let pending = Self::pending_under_lease(outages).await?;
            attempt = self.drain(outages, pending).await?;
            database.release_lock_requests(outages.instance()).await?;
        }
        // What is left reserves its locks; all others are free.
        let reservations = outages.reservations();
        let PendingLockRequests { requests, unreadable } = database.pending_lock_requests(MAX_STORED).await?;
        outages.set_pending(
            (requests.len() + unreadable.len()) as u64,
            reserved_locks(&requests),
            reservations,
        );
        // Which locks a request reserves that this process cannot read is not known: it ends first.
        if unreadable.is_empty() && requests.iter().all(|stored| stored.attempts > 0) {
            outages.open();
        }
        Ok(attempt)
    }

    /// The pending requests, read by the process that has the lease. One that cannot be read ends here: it must not keep others from
    /// being executed. Without the lease it must not end: another process may be able to read it, and execute it now.
    async fn pending_under_lease(outages: &Outages) -> Result<Vec<StoredLockRequest>> {
        let pending = outages.database().pending_lock_requests(MAX_STORED).await?;
        for (key, error) in pending.unreadable {
            let (outcome, now) = (StoredLockOutcome::Unreadable, outages.now());
            if outages.database().end_lock_request(&key, &outcome, now).await? {
                tracing::error!(
                    request = key,
                    %error,
                    "a stored lock request cannot be read and is not executed; its caller has to request again"
                );
            }
        }
        Ok(pending.requests)
    }

    async fn drain(&self, outages: &Outages, pending: Vec<StoredLockRequest>) -> Result<Attempt> {
        let started = Instant::now();
        let (total, mut result) = (pending.len(), Attempt::Ended);
        let mut unreachable: HashSet<LockName> = HashSet::new();
        let mut renewed_at = Instant::now();
        for wave in waves(pending) {
            let (skipped, due): (Vec<StoredLockRequest>, Vec<StoredLockRequest>) =
                wave.into_iter().partition(|stored| locks_of(stored).any(|lock| unreachable.contains(lock)));
            let attempts: Vec<_> = stream::iter(due)
                .map(|stored| async {
                    let attempt = self.execute_stored(outages, &stored).await;
                    (stored, attempt)
                })
                .buffer_unordered(MAX_CONCURRENT)
                .collect()
                .await;
            // What waits behind another one had its turn as well: it must not keep all other locks closed.
            let mut failed: Vec<_> = skipped.into_iter().map(|stored| stored.key).collect();
            for (stored, attempt) in attempts {
                if attempt? == Attempt::Failed {
                    unreachable.extend(locks_of(&stored).cloned());
                    failed.push(stored.key);
                }
            }
            if !failed.is_empty() {
                result = Attempt::Failed;
                outages.database().count_lock_request_attempts(&failed).await?;
            }
            if outages.is_closed() {
                return Ok(Attempt::Failed);
            }
            if renewed_at.elapsed() >= LEASE_RENEWAL_INTERVAL {
                let (now, instance) = (outages.now(), outages.instance());
                let until = now.plus_ms(LEASE_MS);
                if !outages.database().lease_lock_requests(instance, now, until).await? {
                    return Ok(result);
                }
                renewed_at = Instant::now();
            }
        }
        tracing::info!(requests = total, took = ?started.elapsed(), "executed stored lock requests");
        Ok(result)
    }

    /// Executes one request. Fails only if its outcome cannot be stored.
    async fn execute_stored(&self, outages: &Outages, stored: &StoredLockRequest) -> Result<Attempt> {
        let outcome = match &stored.command {
            StoredLockCommand::Release { holder, held } => self.execute_release(holder, held).await,
            StoredLockCommand::Acquire(request) => self.execute_acquire(request, stored).await,
        };
        let Some(outcome) = outcome else { return Ok(Attempt::Failed) };
        let (database, now) = (outages.database(), outages.now());
        let is_ended = database.end_lock_request(&stored.key, &outcome, now).await?;
        if let (false, StoredLockCommand::Acquire(request)) = (is_ended, &stored.command) {
            self.cancel_if_cancelled(database.stored_lock_request(&stored.key).await, request).await;
        }
        Ok(Attempt::Ended)
    }

    /// `None` if coordination cannot execute it now.
    async fn execute_release(
        &self,
        holder: &Holder,
        held: &[(LockName, FencingToken)],
    ) -> Option<StoredLockOutcome> {
        let release = |(lock, token): &(LockName, FencingToken)| {
            (lock.clone(), LockCommand::Release { holder: holder.clone(), token: *token, server: None })
        };
        // A token that is not current releases nothing, which is all that is left to do then.
        match self.run(held.iter().map(release).collect()).await {
            Ok(_) => Some(StoredLockOutcome::Executed),
            Err(error) => {
                tracing::debug!(%error, "cannot execute a stored release; retrying");
                None
            }
        }
    }

    /// `None` if coordination cannot execute it now.
    async fn execute_acquire(
        &self,
        request: &LockRequest,
        stored: &StoredLockRequest,
    ) -> Option<StoredLockOutcome> {
        if Self::is_overdue(stored, self.coordination.now()) {
            return Some(StoredLockOutcome::TimedOut);
        }
        match self.queue_stored(request, stored).await {
            Ok(()) | Err(LockError::RequestReused) => Some(StoredLockOutcome::Executed),
            // It has waited already, and coordination knows how that ended.
            Err(LockError::Failed {
                failure: AcquireFailure::Ended(..) | AcquireFailure::Cancelled, ..
            }) => Some(StoredLockOutcome::Executed),
            Err(LockError::Failed { failure: AcquireFailure::TimedOut(_), .. }) => {
                Some(StoredLockOutcome::TimedOut)
            }
            // It cannot wait where nobody can; its other locks must not be reserved for it meanwhile.
            Err(LockError::Failed { failure: failure @ AcquireFailure::Refused(..), .. }) => {
                stored_refusal(failure).map(StoredLockOutcome::Refused)
            }
            Err(error) => {
                tracing::debug!(ticket = stored.key, %error, "cannot execute a stored acquire; retrying");
                None
            }
        }
    }

    /// Puts a stored acquire into the queue of its first lock that is not free. What is granted waits for its claim.
    async fn queue_stored(&self, request: &LockRequest, stored: &StoredLockRequest) -> Result<()> {
        // Its agent could not be alive for coordination meanwhile.
        self.coordination.record_heartbeat(request.holder.agent_id().to_owned()).await?;
        let deadline = self.register(request, stored.deadline.unwrap_or_default()).await?;
        let mut saga = AcquireSaga::without_caller(request.clone(), self.server.clone());
        match self.advance(&mut saga, deadline).await? {
            SagaAction::Failed(failure) => {
                if matches!(failure, AcquireFailure::Refused(..)) {
                    self.coordination.forget_request(request.key).await?;
                }
                self.failed(failure).await
            }
            _ => Ok(()),
        }
    }

    /// A request that was cancelled while it was executed must not be granted.
    async fn cancel_if_cancelled(
        &self,
        stored: Result<Option<StoredLockRequest>, DatabaseError>,
        request: &LockRequest,
    ) {
        let is_cancelled = |stored: StoredLockRequest| stored.outcome == Some(StoredLockOutcome::Cancelled);
        if stored.ok().flatten().is_some_and(is_cancelled) {
            let mut saga = AcquireSaga::without_caller(request.clone(), self.server.clone());
            saga.cancel();
            // Otherwise its grant waits for a claim that does not come, and ends.
            if let Err(error) = self.advance(&mut saga, self.coordination.now()).await {
                tracing::debug!(%error, "cannot cancel a lock request that was stored");
            }
        }
    }
}

fn locks_of(stored: &StoredLockRequest) -> impl Iterator<Item = &LockName> {
    let (requested, held) = match &stored.command {
        StoredLockCommand::Acquire(request) => (request.locks.as_slice(), [].as_slice()),
        StoredLockCommand::Release { held, .. } => ([].as_slice(), held.as_slice()),
    };
    requested.iter().map(|requested| &requested.lock).chain(held.iter().map(|(lock, _)| lock))
}

/// The locks of pending acquires.
fn reserved_locks(pending: &[StoredLockRequest]) -> HashSet<LockName> {
    let is_acquire = |stored: &&StoredLockRequest| matches!(stored.command, StoredLockCommand::Acquire(_));
    pending.iter().filter(is_acquire).flat_map(locks_of).cloned().collect()
}

/// Splits requests so that those of one wave have no lock in common, and each is in a later wave than every earlier one with a common lock.
fn waves(pending: Vec<StoredLockRequest>) -> impl Iterator<Item = Vec<StoredLockRequest>> {
    let mut next_wave: HashMap<LockName, usize> = HashMap::new();
    let mut waves: BTreeMap<usize, Vec<StoredLockRequest>> = BTreeMap::new();
    for stored in pending {
        let first = locks_of(&stored).filter_map(|lock| next_wave.get(lock)).max().copied().unwrap_or(0);
        next_wave.extend(locks_of(&stored).map(|lock| (lock.clone(), first + 1)));
        waves.entry(first).or_default().push(stored);
    }
    waves.into_values()
}

#[cfg(test)]
mod tests;
