//! The locks of an attempt, and its lease: taken as one request, renewed while it runs, given back when it ends.

use std::time::Duration;

use ade_domain::lock::{Ask, Holder, LockName, LockRequest, Mode, Patience, RequestKey, Token};
use ade_domain::task::{Config, HeldLock, ResourceMode};
use ade_executors::{Halt, Halted};
use ade_store::database::Renewed;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until, timeout_at};
use uuid::Uuid;

use super::Worker;
use crate::locks::{Acquired, Held, LockError};
use crate::{Error, LockService};

/// How long whoever tries a task waits for its locks before others are tried first.
pub(crate) const PATIENCE_MS: u64 = 5_000;

/// How often somebody looks, while a run is under way, whether it is to end: a lease is renewed far less often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What an attempt is called as a holder of locks.
#[must_use]
pub(crate) fn holder_id(task_id: &str, attempt: u64) -> String {
    format!("{task_id}:{attempt}")
}

/// Locks that are held for an attempt. Not given back by itself when it is dropped: then they end with their leases.
#[derive(Debug, Clone)]
pub(crate) struct Locks {
    holder: Holder,
    held: Vec<Held>,
    modes: Vec<Mode>,
}

impl Locks {
    /// As the record keeps them.
    pub(crate) fn grants(&self) -> Vec<HeldLock> {
        let mode = |mode: &Mode| match mode {
            Mode::Exclusive => ResourceMode::Exclusive,
            Mode::Shared => ResourceMode::Shared,
        };
        let grants = self.held.iter().zip(&self.modes);
        grants
            .map(|(held, of)| HeldLock {
                lock: held.lock.to_string(),
                mode: mode(of),
                fencing_token: held.token.number(),
            })
            .collect()
    }

    /// As executors pass them on.
    pub(crate) fn tokens(&self) -> Vec<(String, u64)> {
        self.held.iter().map(|held| (held.lock.to_string(), held.token.number())).collect()
    }

    /// What the record says that an attempt holds.
    pub(crate) fn of(agent: &str, task_id: &str, attempt: u64, grants: &[HeldLock]) -> Option<Self> {
        let holder = Holder::new(agent, Some(&holder_id(task_id, attempt))).ok()?;
        let held = grants.iter().map(|grant| {
            Some(Held { lock: grant.lock.parse().ok()?, token: Token::shown(grant.fencing_token) })
        });
        let modes = grants.iter().map(|grant| match grant.mode {
            ResourceMode::Exclusive => Mode::Exclusive,
            ResourceMode::Shared => Mode::Shared,
        });
        Some(Self { holder, held: held.collect::<Option<_>>()?, modes: modes.collect() })
    }

    /// None of them.
    pub(super) fn none(agent: &str, task_id: &str, attempt: u64) -> Option<Self> {
        Self::of(agent, task_id, attempt, &[])
    }

    /// Renews them; whether all of them are still held.
    pub(crate) async fn renew(&self, locks: &LockService, ms: u64) -> Result<bool, LockError> {
        if self.held.is_empty() {
            return Ok(true);
        }
        let results = locks.heartbeat(&self.holder, &self.held, ms).await?;
        Ok(results.iter().all(|one| one.result.is_ok()))
    }

    /// Whether all of them are held under these tokens.
    pub(crate) async fn are_held(&self, locks: &LockService) -> Result<bool, ade_store::CoordinationError> {
        for held in &self.held {
            let by = locks.verify(held.lock.clone(), held.token).await?;
            if by.is_none_or(|by| by.holder != self.holder) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Since when they are certainly good. How long somebody waited for them is not told: after a while they are renewed.
    async fn since(
        self,
        asked_at: Instant,
        locks: &LockService,
        lease_ms: u64,
    ) -> Result<Option<(Self, Instant)>, Error> {
        let now = Instant::now();
        if asked_at + Duration::from_millis(lease_ms / 3) > now {
            return Ok(Some((self, asked_at)));
        }
        let good = self.renew(locks, lease_ms).await.unwrap_or(false);
        if !good {
            self.release(locks).await;
        }
        Ok(good.then_some((self, now)))
    }

    /// Gives them back. Where nobody answers, they end with their leases.
    pub(crate) async fn release(&self, locks: &LockService) {
        if self.held.is_empty() {
            return;
        }
        if let Err(error) = locks.release(&self.holder, &self.held).await {
            tracing::warn!(%error, "locks cannot be given back; they end with their leases");
        }
    }
}

/// Takes every lock of a task as one request for its next attempt, and since when they are good; nothing, if others hold them.
pub(crate) async fn take(
    locks: &LockService,
    agent: &str,
    task_id: &str,
    attempt: u64,
    config: &Config,
    lease_ms: u64,
    patience_ms: u64,
) -> Result<Option<(Locks, Instant)>, Error> {
    let unusable = |why: String| Error::invalid("/resources", format!("cannot be locked: {why}"));
    let holder = Holder::new(agent, Some(&holder_id(task_id, attempt)));
    let holder = holder.map_err(|error| unusable(error.to_string()))?;
    let mut asks = Vec::new();
    for (name, mode) in config.locks(Some(task_id)) {
        let lock: LockName = name.parse().map_err(|error| unusable(format!("{name}: {error}")))?;
        let mode = if mode == ResourceMode::Shared { Mode::Shared } else { Mode::Exclusive };
        asks.push(Ask { lock, mode });
    }
    // The one order in which locks are taken.
    asks.sort_by(|one, other| one.lock.cmp(&other.lock));
    let request = LockRequest {
        key: RequestKey::once(Uuid::new_v4().as_u128()),
        repeatable: false,
        holder: holder.clone(),
        asks,
        ttl_ms: lease_ms,
        patience: Patience::HeldOpen { ms: patience_ms },
        priority: config.priority.into(),
        purpose: format!("apply task {task_id}").as_str().into(),
    };
    let asked_at = Instant::now();
    match locks.acquire_unmetered(request).await {
        Ok(Acquired::Granted(granted)) => {
            let (held, modes) = granted
                .into_iter()
                .map(|one| (Held { lock: one.ask.lock, token: one.grant.token }, one.ask.mode))
                .unzip();
            Locks { holder, held, modes }.since(asked_at, locks, lease_ms).await
        }
        Ok(Acquired::Waiting(_)) => Ok(None),
        Err(error) => {
            tracing::debug!(task_id, %error, "the locks of a task are not to be had now");
            Ok(None)
        }
    }
}

/// Keeps lease and locks of an attempt alive, until it is dropped, and tells the run when it is to end.
pub(super) struct Kept {
    pub(super) halted: Halted,
    timer: watch::Sender<Option<Instant>>,
    keeper: AbortHandle,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Kept {
    /// Whether lease or locks are lost, or have ended by our own clock: whoever was stopped finds that out before it goes on.
    pub(super) fn is_lost(&self) -> bool {
        self.halted.now() == Some(Halt::Lost)
    }

    /// From now on, the run may take this long.
    pub(super) fn within(&self, timeout: Duration) {
        self.timer.send_replace(Some(Instant::now() + timeout));
    }
}

/// What one sign of life was answered.
enum Beat {
    /// It goes on.
    Good,
    /// It goes on, and somebody wants the run to end.
    Stop,
    /// Somebody else may be at it.
    Lost,
}

/// Renews lease and locks of one attempt.
struct Keeper {
    worker: Worker,
    task_id: String,
    attempt: u64,
    locks: Locks,
    beat: Interval,
    look: Interval,
    /// Until when nobody else takes over, by our own clock.
    good_until: watch::Sender<Instant>,
}

impl Keeper {
    /// The next sign of life. Whoever is not answered until the lease ends has lost it: nobody waits for an answer beyond that.
    async fn next(&mut self) -> Beat {
        let good_until = *self.good_until.borrow();
        let answered = timeout_at(good_until, async {
            tokio::select! {
                biased;
                _ = self.beat.tick() => {}
                _ = self.look.tick() => return None,
            }
            let asked_at = Instant::now();
            Some((asked_at, self.renew().await))
        });
        let Some(answered) = answered.await.transpose() else { return self.looked().await };
        match answered {
            Err(_) | Ok((_, Some(Renewed::No))) => Beat::Lost,
            Ok((asked_at, Some(renewed))) => {
                self.good_until.send_replace(asked_at + Duration::from_millis(self.worker.lease_ms));
                if renewed == Renewed::Stop { Beat::Stop } else { Beat::Good }
            }
            Ok((_, None)) => Beat::Good,
        }
    }

    /// Whether the run is to end. Where that is not known, the next sign of life tells.
    async fn looked(&self) -> Beat {
        let within = (Instant::now() + LOOK_EVERY).min(*self.good_until.borrow());
        let asked = self.worker.record.is_stopped(&self.task_id, self.attempt);
        if matches!(timeout_at(within, asked).await, Ok(Ok(true))) { Beat::Stop } else { Beat::Good }
    }

    /// Nothing: nobody could be asked.
    async fn renew(&self) -> Option<Renewed> {
        let (worker, task_id) = (&self.worker, self.task_id.as_str());
        let renewed = match worker.record.renew(task_id, self.attempt, worker.lease_until()).await {
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::warn!(task_id, %error, "a lease cannot be renewed");
                return None;
            }
        };
        match self.locks.renew(&worker.locks, worker.lease_ms).await {
            Ok(true) => Some(renewed),
            Ok(false) => Some(Renewed::No),
            Err(error) => {
                tracing::warn!(task_id, %error, "locks cannot be renewed");
                None
            }
        }
    }
}

impl Worker {
    /// Begins to keep an attempt alive whose lease and locks were good at `since`.
    pub(super) fn keep(&self, task_id: &str, attempt: u64, locks: &Locks, since: Instant) -> Kept {
        let (timer, times) = watch::channel(None);
        let (good_until, until) = watch::channel(since + Duration::from_millis(self.lease_ms));
        let (halt, halted) = Halted::within(until);
        let mut beat = interval_at(since + self.beat(), self.beat());
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (worker, task_id, locks) = (self.clone(), task_id.to_owned(), locks.clone());
        let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut keeper = Keeper { worker, task_id, attempt, locks, beat, look, good_until };
        let keeping = tokio::spawn(async move {
            let timed = timed(times);
            tokio::pin!(timed);
            let mut told = false;
            // Whoever changes back what was changed, because it was told to end, still holds what it holds.
            loop {
                let ends = tokio::select! {
                    beat = keeper.next() => match beat {
                        Beat::Good => continue,
                        Beat::Stop => Halt::Stopped,
                        Beat::Lost => break,
                    },
                    () = &mut timed, if !told => Halt::TimedOut,
                };
                if !std::mem::replace(&mut told, true) {
                    halt.send_replace(Some(ends));
                }
            }
            halt.send_replace(Some(Halt::Lost));
        });
        Kept { halted, timer, keeper: keeping.abort_handle() }
    }

    /// Does something that may take a while before an attempt begins, and keeps its locks meanwhile. Since when they are good;
    /// nothing if they were lost.
    pub(super) async fn while_held<T>(
        &self,
        locks: &Locks,
        since: Instant,
        work: impl Future<Output = T>,
    ) -> Option<(T, Instant)> {
        let lease = Duration::from_millis(self.lease_ms);
        let (good, mut now_good) = watch::channel(since);
        let renewing = async {
            loop {
                sleep(self.beat()).await;
                let (asked_at, since) = (Instant::now(), *good.borrow());
                match timeout_at(since + lease, locks.renew(&self.locks, self.lease_ms)).await {
                    Ok(Ok(true)) => drop(good.send_replace(asked_at)),
                    Ok(Err(error)) => tracing::warn!(%error, "locks cannot be renewed"),
                    Err(_) | Ok(Ok(false)) => return,
                }
            }
        };
        let done = tokio::select! {
            biased;
            done = work => done,
            () = renewing => return None,
        };
        let since = *now_good.borrow_and_update();
        (since + lease > Instant::now()).then_some((done, since))
    }

    pub(super) fn beat(&self) -> Duration {
        Duration::from_millis((self.lease_ms / 3).max(100))
    }
}

async fn timed(mut times: watch::Receiver<Option<Instant>>) {
    loop {
        let until = *times.borrow_and_update();
        let changed = match until {
            None => times.changed().await,
            Some(until) => tokio::select! {
                () = sleep_until(until) => return,
                changed = times.changed() => changed,
            },
        };
        if changed.is_err() {
            return std::future::pending().await;
        }
    }
}
