//! Lock maintenance: sweeping expired leases and waits, sending heartbeats for the waiters of this server, and relaying lock events. One task
//! each, until stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ade_domain::lock::LockCommand;
use ade_store::Database;
use ade_store::coordination::CoordinationError;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::LockService;
use super::drain::drain_stored_requests;
use super::outage::{Outages, Phase};
use super::shared_limits::follow_settings;
use crate::LockNotice;

/// Leases must end at most 500 ms late.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// Waiters of a server whose last heartbeat is three intervals old count as abandoned.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How long after a failure of coordination the queues are checked for orphaned waits.
const ORPHAN_CHECK_PERIOD: Duration = Duration::from_secs(10);
/// A gap this long between two sweeps means that the whole process was paused.
const PROCESS_PAUSE: Duration = Duration::from_millis(1_500);

/// What the sweeps of this process did since a job reported it last.
#[derive(Debug, Default)]
pub(crate) struct SweepCounts {
    pub(crate) completed: AtomicU64,
    /// Deadlocks that were not detected when they arose.
    pub(crate) deadlocks: AtomicU64,
    pub(crate) is_failing: AtomicBool,
}

#[derive(Debug)]
pub struct LockMaintenance {
    tasks: JoinSet<()>,
}

impl LockMaintenance {
    #[must_use]
    pub fn start(locks: &LockService) -> Self {
        let mut tasks = JoinSet::new();
        let (failed, failures) = watch::channel(None);
        tasks.spawn(send_heartbeats(locks.clone(), failures));
        tasks.spawn(sweep(locks.clone(), failed));
        tasks.spawn(relay_events(locks.clone()));
        if let Some(outages) = locks.outages.clone() {
            let drain = drain_stored_requests(locks.clone(), outages);
            tasks.spawn(async { match drain.await {} });
        }
        Self { tasks }
    }

    /// Applies the lock settings of this database, also when other processes change them.
    pub fn follow_settings(&mut self, locks: &LockService, database: &Database) {
        let follow = follow_settings(locks.clone(), database.clone());
        self.tasks.spawn(async { match follow.await {} });
    }

    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Heartbeats are sent in a task of their own: a slow sweep must not make live waiters look abandoned. For a while after
/// coordination failed, queues may contain waits that ended here meanwhile: those are cancelled.
async fn send_heartbeats(locks: LockService, sweep_failure: watch::Receiver<Option<Instant>>) {
    let mut tick = interval(HEARTBEAT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_failure: Option<Instant> = None;
    loop {
        tick.tick().await;
        // Every command to a lock ends its expired leases, which their holders may extend first.
        if locks.outages.as_ref().is_some_and(Outages::is_closed) {
            last_failure = Some(Instant::now());
            continue;
        }
        if let Err(error) = heartbeat_waiters(&locks).await {
            tracing::debug!(%error, "cannot send the heartbeat for waiting requests; retrying");
            last_failure = Some(Instant::now());
            continue;
        }
        let sweep_failure = *sweep_failure.borrow();
        if last_failure.max(sweep_failure).is_some_and(|at| at.elapsed() < ORPHAN_CHECK_PERIOD)
            && let Err(error) = locks.cancel_orphaned_waits().await
        {
            tracing::debug!(%error, "cannot cancel orphaned waits; retrying");
        }
    }
}

/// After an outage or a pause of the whole process, the heartbeat is sent before the sweep: otherwise the sweep would treat this process' own
/// waiters as abandoned.
async fn sweep(locks: LockService, failed: watch::Sender<Option<Instant>>) {
    let mut tick = interval(SWEEP_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut failing_since: Option<Instant> = None;
    let counts = &locks.sweep_counts;
    loop {
        tick.tick().await;
        let was_closed = locks.outages.as_ref().is_some_and(Outages::is_closed);
        if !locks.may_sweep().await {
            failed.send_replace(Some(Instant::now()));
            continue;
        }
        if (was_closed || last.elapsed() >= PROCESS_PAUSE)
            && let Err(error) = heartbeat_waiters(&locks).await
        {
            tracing::debug!(%error, "cannot send the heartbeat for waiting requests; retrying");
        }
        last = Instant::now();
        match locks.sweep().await {
            Ok(()) => {
                if let Some(since) = failing_since.take() {
                    tracing::info!(after = ?since.elapsed(), "locks are available again");
                }
                locks.return_leases().await;
            }
            Err(error) => {
                // Logged once per outage, not five times a second.
                if failing_since.is_none() {
                    tracing::error!(%error, "locks are unavailable");
                }
                failing_since.get_or_insert_with(Instant::now);
                failed.send_replace(Some(Instant::now()));
                // A part of a cluster may be down while others answer.
                if let Some(outages) = &locks.outages
                    && !locks.is_reachable().await
                {
                    outages.begin();
                }
            }
        }
        counts.is_failing.store(failing_since.is_some(), Ordering::Relaxed);
    }
}

impl LockService {
    /// Ends what is due, and publishes the deadlocks that it resolved.
    pub(super) async fn sweep(&self) -> Result<(), CoordinationError> {
        let deadlocks = self.coordination.sweep().await?;
        deadlocks.iter().for_each(|deadlock| self.event_sink.publish(LockNotice::Deadlock(deadlock)));
        self.sweep_counts.completed.fetch_add(1, Ordering::Relaxed);
        self.sweep_counts.deadlocks.fetch_add(deadlocks.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Whether leases may end now. During an outage it finds out whether coordination is back; then holders have some time first.
    async fn may_sweep(&self) -> bool {
        let Some(outages) = &self.outages else { return true };
        if outages.phase() == Phase::Outage && self.is_reachable().await {
            outages.begin_recovery();
        }
        outages.end_grace()
    }
}

async fn heartbeat_waiters(locks: &LockService) -> Result<(), CoordinationError> {
    let heartbeat = |lock| (lock, LockCommand::ServerHeartbeat { server: locks.server.clone() });
    let heartbeats: Vec<_> = locks.awaited_locks.all().into_iter().map(heartbeat).collect();
    if !heartbeats.is_empty() {
        locks.coordination.execute_commands(heartbeats).await?;
    }
    Ok(())
}

async fn relay_events(locks: LockService) {
    let mut events = locks.coordination.subscribe_events();
    loop {
        match events.recv().await {
            Ok(event) => locks.event_sink.publish(LockNotice::Event(&event)),
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "lock events were dropped"),
            Err(RecvError::Closed) => return,
        }
    }
}
