//! What this process knows about an outage of coordination, and how lock requests are served meanwhile. It grants nothing: while
//! coordination is unavailable nobody does.
//!
//! The sweep is what notices: it calls coordination five times a second. After an outage follows a grace, in which holders extend their
//! leases before anything expires; then stored requests are executed, and then new ones are admitted again.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::lock::{LockName, LockRequest, RequestedLock, WaitPolicy};
use ade_domain::{Clock, Moment};
use ade_store::{CoordinationError, Database, DatabaseError};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::local_admission::LocalAdmission;
use super::{LockError, LockService, Result};

/// How long holders can extend their leases before expired ones end: every process has noticed by then that coordination is back.
const GRACE: Duration = Duration::from_secs(1);
/// How long a request for a ticket waits for the end of the recovery.
const OPENING_TIMEOUT: Duration = Duration::from_secs(3);
/// Locks that are read to find out whether coordination is available: on a cluster they spread over its parts.
const PROBES: usize = 8;

/// How lock requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAvailability {
    Available,
    /// Requests that can wait are stored, all others are refused.
    Unavailable,
    /// Holders keep their locks; stored requests are executed before new ones.
    Recovering,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Outage,
    Grace { until: Instant },
    Draining,
}

/// Where a request is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Coordination,
    /// Not now: it is stored.
    Store,
}

/// Clones share the state.
#[derive(Debug, Clone)]
pub(super) struct Outages(Arc<State>);

#[derive(Debug)]
struct State {
    database: Database,
    clock: Arc<dyn Clock>,
    instance: String,
    phase: watch::Sender<Phase>,
    /// The locks of pending acquires: no later request may overtake those.
    reserved: Mutex<Reservations>,
    pending: AtomicU64,
    admission: LocalAdmission,
}

#[derive(Debug, Default)]
struct Reservations {
    /// How many requests of this process have reserved locks.
    count: u64,
    /// With the last such request that reserved the lock; 0 if it is known from the database.
    locks: HashMap<LockName, u64>,
}

impl Outages {
    /// Another process may have stored requests: nothing is admitted before they are known.
    pub(super) fn new(database: Database, clock: Arc<dyn Clock>, instance: &str) -> Self {
        Self(Arc::new(State {
            database,
            clock,
            instance: instance.to_owned(),
            phase: watch::Sender::new(Phase::Draining),
            reserved: Mutex::default(),
            pending: AtomicU64::new(0),
            admission: LocalAdmission::default(),
        }))
    }

    pub(super) fn database(&self) -> &Database {
        &self.0.database
    }

    /// The time by the clock of this process, for leases in the database.
    pub(super) fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// The name of this process.
    pub(super) fn instance(&self) -> &str {
        &self.0.instance
    }

    pub(super) fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    pub(super) fn phases(&self) -> watch::Receiver<Phase> {
        self.0.phase.subscribe()
    }

    /// Coordination does not answer.
    pub(super) fn begin(&self) {
        if self.0.phase.send_replace(Phase::Outage) != Phase::Outage {
            tracing::error!("locks are unavailable; requests that can wait are stored until Redis is back");
        }
    }

    /// Coordination answers again.
    pub(super) fn begin_recovery(&self) {
        self.0.phase.send_replace(Phase::Grace { until: Instant::now() + GRACE });
        tracing::info!("Redis is back; holders can extend their leases before stored requests are executed");
    }

    /// Ends the grace when its time is over. Returns whether sweeps may end leases.
    pub(super) fn end_grace(&self) -> bool {
        match self.phase() {
            Phase::Outage => false,
            Phase::Grace { until } if Instant::now() < until => false,
            Phase::Grace { .. } => {
                self.0.phase.send_replace(Phase::Draining);
                true
            }
            Phase::Draining | Phase::Open => true,
        }
    }

    /// All requests that were stored before this process noticed the end of the outage have been executed.
    pub(super) fn open(&self) {
        let opened = self.0.phase.send_if_modified(|phase| {
            let is_draining = *phase == Phase::Draining;
            if is_draining {
                *phase = Phase::Open;
            }
            is_draining
        });
        if opened {
            tracing::info!("lock requests are admitted");
        }
    }

    /// Whether lock commands other than heartbeats and releases have to wait.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase(), Phase::Outage | Phase::Grace { .. })
    }

    /// The rate limit of requests that are stored.
    pub(super) fn admission(&self) -> &LocalAdmission {
        &self.0.admission
    }

    fn reserved(&self) -> MutexGuard<'_, Reservations> {
        self.0.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the locks of a request that is stored now.
    pub(super) fn reserve(&self, locks: &[RequestedLock]) {
        let mut reserved = self.reserved();
        reserved.count += 1;
        let count = reserved.count;
        reserved.locks.extend(locks.iter().map(|requested| (requested.lock.clone(), count)));
    }

    /// How many requests of this process have reserved locks. Take it before pending requests are read.
    pub(super) fn reservations(&self) -> u64 {
        self.reserved().count
    }

    /// Replaces what is known of pending requests. Requests that reserved locks after `reservations` were stored while these were
    /// read and may not be among them: their reservations stay.
    pub(super) fn set_pending(&self, pending: u64, locks: HashSet<LockName>, reservations: u64) {
        self.0.pending.store(pending, Ordering::Relaxed);
        let mut reserved = self.reserved();
        reserved.locks.retain(|_, reservation| *reservation > reservations);
        for lock in locks {
            reserved.locks.entry(lock).or_default();
        }
    }

    fn has_reserved(&self, locks: &[RequestedLock]) -> bool {
        let reserved = self.reserved();
        locks.iter().any(|requested| reserved.locks.contains_key(&requested.lock))
    }

    pub(super) fn unavailable() -> LockError {
        CoordinationError("Redis is unavailable, or its locks are being recovered".to_owned()).into()
    }
}

impl LockService {
    /// How lock requests are served now, as far as this process knows.
    #[must_use]
    pub fn availability(&self) -> LockAvailability {
        match self.outages.as_ref().map(Outages::phase) {
            None | Some(Phase::Open) => LockAvailability::Available,
            Some(Phase::Outage) => LockAvailability::Unavailable,
            Some(Phase::Grace { .. } | Phase::Draining) => LockAvailability::Recovering,
        }
    }

    /// How many lock requests wait until coordination is available, whichever process stored them.
    pub async fn count_pending_requests(&self) -> Result<u64, DatabaseError> {
        let Some(outages) = &self.outages else { return Ok(0) };
        Ok(outages.database().count_stored_lock_requests().await?.pending)
    }

    /// The same, as far as this process knows.
    pub(super) fn pending_requests(&self) -> u64 {
        self.outages.as_ref().map_or(0, |outages| outages.0.pending.load(Ordering::Relaxed))
    }

    /// Where a request is executed now. Fails if it can be neither executed nor stored.
    pub(super) async fn route(&self, request: &LockRequest) -> Result<Route> {
        let Some(outages) = &self.outages else { return Ok(Route::Coordination) };
        let has_ticket = matches!(request.wait, WaitPolicy::Ticket { .. });
        let is_recovering = |phase: &Phase| matches!(phase, Phase::Grace { .. } | Phase::Draining);
        if has_ticket && is_recovering(&outages.phase()) {
            // Not stored: the stored requests become fewer, and another process may already admit new ones.
            let mut phases = outages.phases();
            let _ = timeout(OPENING_TIMEOUT, phases.wait_for(|phase| !is_recovering(phase))).await;
        }
        match outages.phase() {
            Phase::Open if !outages.has_reserved(&request.locks) => Ok(Route::Coordination),
            Phase::Open | Phase::Outage if has_ticket => Ok(Route::Store),
            _ => Err(Outages::unavailable()),
        }
    }

    /// Fails while coordination is known to be unavailable.
    pub(super) fn check_reachable(&self) -> Result<()> {
        match self.outages.as_ref().map(Outages::phase) {
            Some(Phase::Outage) => Err(Outages::unavailable()),
            _ => Ok(()),
        }
    }

    /// Waits until holders had the time to extend their leases. While coordination is unavailable it does not wait.
    pub(super) async fn wait_out_grace(&self) {
        if let Some(outages) = &self.outages
            && let Phase::Grace { until } = outages.phase()
        {
            let mut phases = outages.phases();
            let ended = phases.wait_for(|phase| !matches!(phase, Phase::Grace { .. }));
            let _ = tokio::time::timeout_at(until + GRACE, ended).await;
        }
    }

    /// Whether any part of coordination answers. Ends nothing that is due.
    pub(super) async fn is_reachable(&self) -> bool {
        let names = (0..PROBES).filter_map(|number| format!("task:probe-{number}").parse().ok());
        let peeks = names.map(|name| self.coordination.peek_locks(vec![name]));
        join_all(peeks).await.iter().any(|peeked| peeked.is_ok())
    }
}
