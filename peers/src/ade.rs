//! ADE's locks on Redis, through the backend of `ade serve --redis` without HTTP: the peers are compared with this.
//! All clients share one backend and one connection, as all callers of a server do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::lock::{
    AcquireStatus, Acquisition, FencingToken, Holder, LockCommand, LockMode, LockName, LockOutcome,
    RequestKey, SharedStr, WaitOptions,
};
use ade_store::coordination::Locks;
use ade_store::redis::{RedisCoordination, RedisOptions};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService, TTL_MS};

/// Far longer than any wait in this benchmark.
const WAIT_TIMEOUT_MS: u64 = 600_000;
/// How often a waiter asks without a notification, as in a server.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// As in a server.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// Sweeps between two server heartbeats, as in a server.
const SWEEPS_PER_HEARTBEAT: u64 = 5;

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);
static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);

/// The backend with the maintenance task of a server.
pub(crate) struct Ade {
    backend: RedisCoordination,
    server: SharedStr,
    awaited_locks: AwaitedLocks,
    _maintenance: AbortOnDrop,
}

/// Locks that clients wait for, with the number of waiters: the server sends heartbeats for them.
#[derive(Clone, Default)]
struct AwaitedLocks(Arc<Mutex<HashMap<LockName, usize>>>);

/// Counts as a waiter until it is dropped.
struct WaitGuard<'a> {
    lock: &'a LockName,
    awaited_locks: AwaitedLocks,
}

impl AwaitedLocks {
    fn add_waiter<'a>(&self, lock: &'a LockName) -> WaitGuard<'a> {
        *self.counts().entry(lock.clone()).or_default() += 1;
        WaitGuard { lock, awaited_locks: self.clone() }
    }

    fn all(&self) -> Vec<LockName> {
        self.counts().keys().cloned().collect()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LockName, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut counts = self.awaited_locks.counts();
        if let Some(count) = counts.get_mut(self.lock) {
            *count -= 1;
            if *count == 0 {
                counts.remove(self.lock);
            }
        }
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) struct AdeClient {
    backend: RedisCoordination,
    server: SharedStr,
    holder: Holder,
    token: FencingToken,
    awaited_locks: AwaitedLocks,
}

impl Ade {
    pub(crate) async fn open(url: &str) -> Result<Self, BenchError> {
        let url = url.parse().map_err(BenchError::context("parse the URL of Redis"))?;
        let backend = RedisCoordination::open(&url, RedisOptions::default())
            .await
            .map_err(BenchError::context("connect to Redis"))?;
        let server: SharedStr = "peers".into();
        let awaited_locks = AwaitedLocks::default();
        let maintenance = tokio::spawn(maintain(backend.clone(), server.clone(), awaited_locks.clone()));
        Ok(Self { backend, server, awaited_locks, _maintenance: AbortOnDrop(maintenance.abort_handle()) })
    }
}

/// Sweeps and sends heartbeats for waiters, as `ade serve` does.
async fn maintain(backend: RedisCoordination, server: SharedStr, awaited_locks: AwaitedLocks) {
    let mut tick = interval(SWEEP_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0_u64.. {
        tick.tick().await;
        if round % SWEEPS_PER_HEARTBEAT == 0 {
            let heartbeats = awaited_locks
                .all()
                .into_iter()
                .map(|lock| (lock, LockCommand::ServerHeartbeat { server: server.clone() }))
                .collect();
            // The clients report the same error.
            let _ = backend.execute_commands(heartbeats).await;
        }
        let _ = backend.sweep().await;
    }
}

impl LockService for Ade {
    type Client = AdeClient;

    async fn client(&self) -> Result<AdeClient, BenchError> {
        let number = NEXT_CLIENT.fetch_add(1, Ordering::Relaxed);
        let holder =
            Holder::new(&format!("client-{number}"), None).map_err(BenchError::context("name a client"))?;
        let (backend, server) = (self.backend.clone(), self.server.clone());
        let awaited_locks = self.awaited_locks.clone();
        Ok(AdeClient { backend, server, holder, token: FencingToken::default(), awaited_locks })
    }
}

fn lock_name(lock: &str) -> Result<LockName, BenchError> {
    format!("resource:peers:{lock}").parse().map_err(BenchError::context("name a lock"))
}

impl AdeClient {
    async fn send(&self, lock: &LockName, command: LockCommand) -> Result<LockOutcome, BenchError> {
        let replies = self.backend.execute_commands(vec![(lock.clone(), command)]).await;
        let reply = replies.map_err(BenchError::context("send a command to ADE"))?.into_iter().next();
        reply.map(|reply| reply.outcome).ok_or_else(|| BenchError::new("ADE sent no reply"))
    }

    async fn wait(&mut self, name: &LockName, acquisition: Acquisition) -> Result<FencingToken, BenchError> {
        let subscription = self.backend.subscribe(acquisition.request);
        loop {
            match self.send(name, LockCommand::Acquire(acquisition.clone())).await? {
                LockOutcome::Status(AcquireStatus::Held(grant)) if grant.claimed => return Ok(grant.token),
                LockOutcome::Status(AcquireStatus::Held(_)) => {
                    let (holder, request) = (self.holder.clone(), acquisition.request);
                    let claim = LockCommand::Claim { holder, request, ttl_ms: TTL_MS };
                    return match self.send(name, claim).await? {
                        LockOutcome::Updated(grant) => Ok(grant.token),
                        other => Err(BenchError::new(format!("unexpected reply to a claim: {other:?}"))),
                    };
                }
                // After a notification or a timeout the next request is the same.
                LockOutcome::Status(AcquireStatus::Waiting { .. }) => {
                    drop(timeout(POLL_INTERVAL, subscription.changed()).await);
                }
                other => {
                    return Err(BenchError::new(format!("unexpected reply to an acquisition: {other:?}")));
                }
            }
        }
    }
}

impl LockClient for AdeClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), BenchError> {
        let name = lock_name(lock)?;
        let acquisition = Acquisition {
            holder: self.holder.clone(),
            request: RequestKey::from_nonce(NEXT_REQUEST.fetch_add(1, Ordering::Relaxed).into()),
            leave_tombstone: false,
            mode: LockMode::Exclusive,
            ttl_ms: TTL_MS,
            claimed: true,
            wait: Some(WaitOptions { timeout_ms: WAIT_TIMEOUT_MS, served_by: Some(self.server.clone()) }),
            purpose: "".into(),
            priority: 0,
        };
        let guard = self.awaited_locks.add_waiter(&name);
        let token = self.wait(&name, acquisition).await;
        drop(guard);
        self.token = token?;
        Ok(())
    }

    async fn release(&mut self, lock: &str) -> Result<(), BenchError> {
        let name = lock_name(lock)?;
        let (holder, token) = (self.holder.clone(), self.token);
        match self.send(&name, LockCommand::Release { holder, token }).await? {
            LockOutcome::Done => Ok(()),
            other => Err(BenchError::new(format!("unexpected reply to a release: {other:?}"))),
        }
    }
}
