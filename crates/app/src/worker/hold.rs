//! The locks of an attempt, and its lease: taken as one request, renewed while it runs, given back when it ends.

use std::time::Duration;

use ade_domain::lock::{Ask, Holder, LockName, Mode, Patience, Request, RequestKey, Token};
use ade_domain::task::{Config, HeldLock, ResourceMode};
use ade_executors::{Halt, Halted};
use ade_store::record::Renewed;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use uuid::Uuid;

use super::Worker;
use crate::locks::{Acquired, Held, LockError};
use crate::{Error, LockService};

/// How long whoever tries a task waits for its locks before others are tried first.
const PATIENCE_MS: u64 = 5_000;

/// What an attempt is called as a holder of locks.
#[must_use]
pub(crate) fn holder_id(task_id: &str, attempt: u64) -> String {
    format!("{task_id}:{attempt}")
}

/// The locks that carrying a task out needs: its own, and those of its resources.
#[must_use]
pub(crate) fn locks_of(task_id: &str, config: &Config) -> Vec<(String, ResourceMode)> {
    let own = (format!("task:{task_id}"), ResourceMode::Exclusive);
    let resources = config.resources.iter().map(|one| (format!("resource:{}", one.name()), one.mode));
    std::iter::once(own).chain(resources).collect()
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

    /// Renews them; whether all of them are still held.
    pub(crate) async fn renew(&self, locks: &LockService, ms: u64) -> Result<bool, LockError> {
        let results = locks.heartbeat(&self.holder, &self.held, ms).await?;
        Ok(results.iter().all(|one| one.result.is_ok()))
    }

    /// Gives them back. Where nobody answers, they end with their leases.
    pub(crate) async fn release(&self, locks: &LockService) {
        if let Err(error) = locks.release(&self.holder, &self.held).await {
            tracing::warn!(%error, "locks cannot be given back; they end with their leases");
        }
    }
}

/// Takes every lock of a task as one request for its next attempt; nothing, if others hold them.
pub(crate) async fn take(
    locks: &LockService,
    agent: &str,
    task_id: &str,
    attempt: u64,
    config: &Config,
    lease_ms: u64,
) -> Result<Option<Locks>, Error> {
    let unusable = |why: String| Error::invalid("/resources", format!("cannot be locked: {why}"));
    let holder = Holder::new(agent, Some(&holder_id(task_id, attempt)));
    let holder = holder.map_err(|error| unusable(error.to_string()))?;
    let mut asks = Vec::new();
    for (name, mode) in locks_of(task_id, config) {
        let lock: LockName = name.parse().map_err(|error| unusable(format!("{name}: {error}")))?;
        let mode = if mode == ResourceMode::Shared { Mode::Shared } else { Mode::Exclusive };
        asks.push(Ask { lock, mode });
    }
    // The one order in which locks are taken.
    asks.sort_by(|one, other| one.lock.cmp(&other.lock));
    let request = Request {
        key: RequestKey::once(Uuid::new_v4().as_u128()),
        repeatable: false,
        holder: holder.clone(),
        asks,
        ttl_ms: lease_ms,
        patience: Patience::HeldOpen { ms: PATIENCE_MS },
        priority: config.priority.into(),
        purpose: format!("apply task {task_id}").as_str().into(),
    };
    match locks.acquire(request).await {
        Ok(Acquired::Granted(granted)) => {
            let (held, modes) = granted
                .into_iter()
                .map(|one| (Held { lock: one.ask.lock, token: one.grant.token }, one.ask.mode))
                .unzip();
            Ok(Some(Locks { holder, held, modes }))
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
    /// Waits until lease or locks are lost.
    pub(super) async fn lost(&self) {
        self.halted.until(Halt::Lost).await;
    }

    /// From now on, the run may take this long.
    pub(super) fn within(&self, timeout: Duration) {
        self.timer.send_replace(Some(Instant::now() + timeout));
    }
}

impl Worker {
    /// Begins to keep an attempt alive.
    pub(super) fn keep(&self, task_id: &str, attempt: u64, locks: &Locks) -> Kept {
        let (halt, halted) = Halted::new();
        let (timer, times) = watch::channel(None);
        let (worker, task_id, locks) = (self.clone(), task_id.to_owned(), locks.clone());
        let keeper = tokio::spawn(async move {
            let ends = tokio::select! {
                ends = worker.renew_until_lost(&task_id, attempt, &locks) => ends,
                () = timed(times) => Halt::TimedOut,
            };
            halt.send_replace(Some(ends));
            // Whoever changes back what was changed still holds what it holds.
            while worker.renew_until_lost(&task_id, attempt, &locks).await == Halt::Stopped {
                tokio::time::sleep(worker.beat()).await;
            }
            halt.send_replace(Some(Halt::Lost));
        });
        Kept { halted, timer, keeper: keeper.abort_handle() }
    }

    fn beat(&self) -> Duration {
        Duration::from_millis((self.lease_ms / 3).max(100))
    }

    /// Renews lease and locks until one of them is lost, or somebody wants the run to end.
    async fn renew_until_lost(&self, task_id: &str, attempt: u64, locks: &Locks) -> Halt {
        let lease = Duration::from_millis(self.lease_ms);
        let mut beat = interval_at(Instant::now() + self.beat(), self.beat());
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut good_until = Instant::now() + lease;
        loop {
            beat.tick().await;
            let asked_at = Instant::now();
            if asked_at >= good_until {
                return Halt::Lost;
            }
            match self.record.renew(task_id, attempt, self.lease_until()).await {
                Ok(Renewed::No) => return Halt::Lost,
                Ok(Renewed::Stop) => return Halt::Stopped,
                Ok(Renewed::Yes) => {}
                // Until the lease ends by our own clock, nobody else takes over.
                Err(error) => {
                    tracing::warn!(task_id, %error, "a lease cannot be renewed");
                    continue;
                }
            }
            match locks.renew(&self.locks, self.lease_ms).await {
                Ok(true) => good_until = asked_at + lease,
                Ok(false) => return Halt::Lost,
                Err(error) => tracing::warn!(task_id, %error, "locks cannot be renewed"),
            }
        }
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
