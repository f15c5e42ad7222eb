//! The locks and the lease of an attempt: acquired as one request, renewed while it runs, released when it ends.

use std::time::Duration;

use ade_domain::lock::{FencingToken, Holder, LockName, LockRequest, RequestKey, RequestedLock, WaitPolicy};
use ade_domain::task::HeldLock;
use ade_executors::{StopReason, StopSignal};
use ade_store::database::{LeaseRenewal, StoredTask};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until, timeout_at};
use uuid::Uuid;

use super::Worker;
use crate::locks::{Acquisition, GrantedLock, HeldToken};
use crate::{Error, LockService, Result};

/// How long an attempt waits for its locks before other tasks are tried.
pub(crate) const LOCK_TIMEOUT_MS: u64 = 5_000;

/// How often the end of a run is written again while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a running attempt checks whether it is to stop. Its lease is renewed far less often.
const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The holder id of an attempt.
#[must_use]
pub(crate) fn holder_id(task_id: &str, attempt: u64) -> String {
    format!("{task_id}:{attempt}")
}

/// Locks that an attempt holds. Dropping it does not release them: they end with their leases.
#[derive(Debug, Clone)]
pub(crate) struct AttemptLocks {
    holder: Holder,
    held: Vec<HeldToken>,
    /// The locks as the database stores them.
    pub(crate) grants: Vec<HeldLock>,
}

impl AttemptLocks {
    /// The locks that an attempt holds according to the database.
    pub(crate) fn new(agent: &str, task_id: &str, attempt: u64, grants: Vec<HeldLock>) -> Option<Self> {
        let holder = Holder::new(agent, Some(&holder_id(task_id, attempt))).ok()?;
        let held = grants.iter().map(|grant| {
            let token = FencingToken::from_number(grant.fencing_token);
            Some(HeldToken { lock: grant.lock.parse().ok()?, token })
        });
        Some(Self { holder, held: held.collect::<Option<_>>()?, grants })
    }

    /// Lock names and fencing tokens, for executors.
    pub(crate) fn tokens(&self) -> Vec<(String, u64)> {
        self.grants.iter().map(|grant| (grant.lock.clone(), grant.fencing_token)).collect()
    }

    /// Renews the locks; returns whether all of them are still held.
    pub(crate) async fn renew(&self, locks: &LockService, ms: u64) -> Result<bool> {
        if self.held.is_empty() {
            return Ok(true);
        }
        let results = locks.heartbeat(&self.holder, &self.held, ms).await?;
        Ok(results.iter().all(|result| result.result.is_ok()))
    }

    /// Whether all locks are held with these tokens.
    pub(crate) async fn are_held(&self, locks: &LockService) -> Result<bool> {
        for held in &self.held {
            let by = locks.verify(held.lock.clone(), held.token).await?;
            if by.is_none_or(|by| by.holder != self.holder) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The locks with the time since when they are certainly valid; `None` if they are lost. It is not known how long the request
    /// waited, so locks that took long to acquire are renewed.
    async fn valid_since(
        self,
        requested_at: Instant,
        locks: &LockService,
        lease_ms: u64,
    ) -> Option<(Self, Instant)> {
        let now = Instant::now();
        if requested_at + Duration::from_millis(lease_ms / 3) > now {
            return Some((self, requested_at));
        }
        let is_held = self.renew(locks, lease_ms).await.unwrap_or(false);
        if !is_held {
            self.release(locks).await;
        }
        is_held.then_some((self, now))
    }

    /// Releases the locks. If coordination does not answer, they end with their leases.
    pub(crate) async fn release(&self, locks: &LockService) {
        if self.held.is_empty() {
            return;
        }
        if let Err(error) = locks.release(&self.holder, &self.held).await {
            tracing::warn!(%error, "cannot release the locks of a task; they end with their leases");
        }
    }
}

/// A granted lock as the lock service names it, and as the database stores it.
fn held_lock(
    GrantedLock { requested: RequestedLock { lock, mode }, grant }: GrantedLock,
) -> (HeldToken, HeldLock) {
    let stored = HeldLock { lock: lock.to_string(), mode, fencing_token: grant.token.number() };
    (HeldToken { lock, token: grant.token }, stored)
}

/// Acquires all locks of a task for its next attempt as one request. Returns them with the time since when they are valid;
/// `None` if they cannot be acquired now.
pub(crate) async fn acquire_locks(
    locks: &LockService,
    agent: &str,
    task: &StoredTask,
    lease_ms: u64,
    timeout_ms: u64,
) -> Result<Option<(AttemptLocks, Instant)>> {
    let (task_id, attempt) = (task.task_id.as_str(), task.next_attempt());
    let invalid = |reason: String| Error::invalid("resources", format!("cannot be locked: {reason}"));
    let holder = Holder::new(agent, Some(&holder_id(task_id, attempt)));
    let holder = holder.map_err(|error| invalid(error.to_string()))?;
    let mut requested = Vec::new();
    for (name, mode) in task.scope.locks(&task.config, Some(task_id)) {
        let lock: LockName = name.parse().map_err(|error| invalid(format!("{name}: {error}")))?;
        requested.push(RequestedLock { lock, mode });
    }
    // All requests acquire locks in the same order.
    requested.sort_by(|one, other| one.lock.cmp(&other.lock));
    let request = LockRequest {
        key: RequestKey::from_nonce(Uuid::new_v4().as_u128()),
        has_request_id: false,
        holder: holder.clone(),
        locks: requested,
        ttl_ms: lease_ms,
        wait: WaitPolicy::LongPoll { timeout_ms },
        priority: task.config.priority.into(),
        purpose: format!("apply task {task_id}").as_str().into(),
    };
    let requested_at = Instant::now();
    match locks.acquire_unmetered(request).await {
        Ok(Acquisition::Granted(granted)) => {
            let (held, grants) = granted.into_iter().map(held_lock).unzip();
            Ok(AttemptLocks { holder, held, grants }.valid_since(requested_at, locks, lease_ms).await)
        }
        Ok(Acquisition::Waiting(_) | Acquisition::Stored(_)) => Ok(None),
        Err(error) => {
            tracing::debug!(task_id, %error, "cannot acquire the locks of a task");
            Ok(None)
        }
    }
}

/// Renews the lease and the locks of an attempt until it is dropped, and stops the run when they are lost.
pub(super) struct LeaseGuard {
    pub(super) stop: StopSignal,
    timer: watch::Sender<Option<Instant>>,
    renewer: AbortHandle,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.renewer.abort();
    }
}

impl LeaseGuard {
    /// Whether lease or locks are lost, or have expired by the local clock: a process that was paused notices before it goes on.
    pub(super) fn is_lost(&self) -> bool {
        self.stop.reason() == Some(StopReason::LeaseLost)
    }

    /// Records how a run ended. While the database is unavailable it retries for as long as the attempt has its lease.
    pub(super) async fn record<T, F>(&self, write: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            match write().await {
                Err(Error::Database(error)) if !self.is_lost() => {
                    tracing::warn!(%error, "cannot store the end of a task; retrying");
                    sleep(RETRY_INTERVAL).await;
                }
                written => return written,
            }
        }
    }

    /// Starts the timeout of the run.
    pub(super) fn start_timeout(&self, timeout: Duration) {
        self.timer.send_replace(Some(Instant::now() + timeout));
    }
}

/// Renews the lease and the locks of one attempt.
struct LeaseRenewer {
    worker: Worker,
    task_id: String,
    attempt: u64,
    locks: AttemptLocks,
    heartbeat: Interval,
    stop_check: Interval,
    /// By the local clock. Nobody else takes over before.
    valid_until: watch::Sender<Instant>,
}

impl LeaseRenewer {
    /// The next renewal. A renewal that is not confirmed before the lease expires counts as lost.
    async fn next(&mut self) -> LeaseRenewal {
        let valid_until = *self.valid_until.borrow();
        let renewed = timeout_at(valid_until, async {
            tokio::select! {
                biased;
                _ = self.heartbeat.tick() => {}
                _ = self.stop_check.tick() => return None,
            }
            let sent_at = Instant::now();
            Some((sent_at, self.renew().await))
        });
        let Some(renewed) = renewed.await.transpose() else { return self.check_stop().await };
        match renewed {
            Err(_) => LeaseRenewal::Lost,
            Ok((_, None)) => LeaseRenewal::Renewed,
            Ok((sent_at, Some(renewed))) => {
                if renewed != LeaseRenewal::Lost {
                    self.valid_until.send_replace(sent_at + Duration::from_millis(self.worker.lease_ms));
                }
                renewed
            }
        }
    }

    /// Whether the run is to stop. If the database does not answer, the next renewal finds out.
    async fn check_stop(&self) -> LeaseRenewal {
        let deadline = (Instant::now() + STOP_CHECK_INTERVAL).min(*self.valid_until.borrow());
        let is_stopped = self.worker.context.database.is_stop_requested(&self.task_id, self.attempt);
        if matches!(timeout_at(deadline, is_stopped).await, Ok(Ok(true))) {
            LeaseRenewal::StopRequested
        } else {
            LeaseRenewal::Renewed
        }
    }

    /// `None` if the database or coordination does not answer.
    async fn renew(&self) -> Option<LeaseRenewal> {
        let (worker, task_id) = (&self.worker, self.task_id.as_str());
        let renewed =
            match worker.context.database.renew_lease(task_id, self.attempt, worker.lease_until()).await {
                Ok(renewed) => renewed,
                Err(error) => {
                    tracing::warn!(task_id, %error, "cannot renew the lease of a task; retrying");
                    return None;
                }
            };
        match self.locks.renew(&worker.locks, worker.lease_ms).await {
            Ok(true) => Some(renewed),
            Ok(false) => Some(LeaseRenewal::Lost),
            Err(error) => {
                tracing::warn!(task_id, %error, "cannot renew the locks of a task; retrying");
                None
            }
        }
    }
}

impl Worker {
    /// Starts to renew an attempt whose lease and locks are valid since `since`.
    pub(super) fn guard_lease(
        &self,
        task_id: &str,
        attempt: u64,
        locks: &AttemptLocks,
        since: Instant,
    ) -> LeaseGuard {
        let (timer, timeouts) = watch::channel(None);
        let (valid_until, until) = watch::channel(since + Duration::from_millis(self.lease_ms));
        let (sender, stop) = StopSignal::bound_to_lease(until);
        let mut heartbeat = interval_at(since + self.heartbeat_interval(), self.heartbeat_interval());
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (worker, task_id, locks) = (self.clone(), task_id.to_owned(), locks.clone());
        let mut stop_check = interval_at(Instant::now() + STOP_CHECK_INTERVAL, STOP_CHECK_INTERVAL);
        stop_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewer =
            LeaseRenewer { worker, task_id, attempt, locks, heartbeat, stop_check, valid_until };
        let renewing = tokio::spawn(async move {
            let timed_out = wait_for_timeout(timeouts);
            tokio::pin!(timed_out);
            let mut is_stopped = false;
            // A run that was stopped still holds lease and locks while it rolls back.
            loop {
                let reason = tokio::select! {
                    renewal = renewer.next() => match renewal {
                        LeaseRenewal::Renewed => continue,
                        LeaseRenewal::StopRequested => StopReason::Stopped,
                        LeaseRenewal::Lost => break,
                    },
                    () = &mut timed_out, if !is_stopped => StopReason::TimedOut,
                };
                if !std::mem::replace(&mut is_stopped, true) {
                    sender.send_replace(Some(reason));
                }
            }
            sender.send_replace(Some(StopReason::LeaseLost));
        });
        LeaseGuard { stop, timer, renewer: renewing.abort_handle() }
    }

    /// Does work that may take a while before an attempt begins, and renews its locks meanwhile. Returns the result with the time
    /// since when the locks are valid; `None` if they are lost.
    pub(super) async fn while_held<T>(
        &self,
        locks: &AttemptLocks,
        since: Instant,
        work: impl Future<Output = T>,
    ) -> Option<(T, Instant)> {
        let lease = Duration::from_millis(self.lease_ms);
        let (valid_since, mut current) = watch::channel(since);
        let renewing = async {
            loop {
                sleep(self.heartbeat_interval()).await;
                let (sent_at, since) = (Instant::now(), *valid_since.borrow());
                match timeout_at(since + lease, locks.renew(&self.locks, self.lease_ms)).await {
                    Ok(Ok(true)) => drop(valid_since.send_replace(sent_at)),
                    Ok(Err(error)) => tracing::warn!(%error, "cannot renew the locks of a task; retrying"),
                    Err(_) | Ok(Ok(false)) => return,
                }
            }
        };
        let done = tokio::select! {
            biased;
            done = work => done,
            () = renewing => return None,
        };
        let since = *current.borrow_and_update();
        (since + lease > Instant::now()).then_some((done, since))
    }

    pub(super) fn heartbeat_interval(&self) -> Duration {
        Duration::from_millis((self.lease_ms / 3).max(100))
    }
}

/// Waits for the timeout, once it is set.
async fn wait_for_timeout(mut timeouts: watch::Receiver<Option<Instant>>) {
    let timeout = timeouts.wait_for(Option::is_some).await.ok().and_then(|timeout| *timeout);
    match timeout {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
