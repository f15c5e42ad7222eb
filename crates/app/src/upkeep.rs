//! What must happen without anybody asking: sweeping, renewing marks, passing events on. One task each, until stopped.

use std::time::Duration;

use ade_domain::lock::LockCommand;
use ade_store::coordination::CoordinationError;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::LockService;
use crate::notices::LockNotice;

/// Leases end at most 500 ms late: so often they are looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(200);
/// A server that is silent for three of these does not serve its waiters any more.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How long after a failure of coordination its queues are compared with the requests that are open here.
const DOUBT_FOR: Duration = Duration::from_secs(10);

/// Between two sweeps so much passes only if the process stood still.
const PAUSE: Duration = Duration::from_millis(1_500);

/// The tasks beside the requests.
#[derive(Debug)]
pub struct LockMaintenance {
    tasks: JoinSet<()>,
}

impl LockMaintenance {
    /// Starts them.
    #[must_use]
    pub fn start(locks: &LockService) -> Self {
        let mut tasks = JoinSet::new();
        let (failed, failures) = watch::channel(None);
        tasks.spawn(renew_marks(locks.clone(), failures));
        tasks.spawn(sweep(locks.clone(), failed));
        tasks.spawn(pass_on(locks.clone()));
        Self { tasks }
    }

    /// Stops them.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Marks have a task of their own: a sweep that takes long must not make live waiters look abandoned. For a while after
/// coordination failed, queues may hold waits that ended here meanwhile: those are taken back.
async fn renew_marks(locks: LockService, failed: watch::Receiver<Option<Instant>>) {
    let mut tick = interval(MARK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_failure: Option<Instant> = None;
    loop {
        tick.tick().await;
        if let Err(error) = mark(&locks).await {
            tracing::debug!(%error, "cannot renew the marks of waiting requests; trying again");
            last_failure = Some(Instant::now());
            continue;
        }
        let swept = *failed.borrow();
        if last_failure.max(swept).is_some_and(|failed| failed.elapsed() < DOUBT_FOR)
            && let Err(error) = locks.disown().await
        {
            tracing::debug!(%error, "cannot look for requests that are not open any more; trying again");
        }
    }
}

/// After a pause of the whole process its own waiters must not look abandoned to its own sweep: marks come first then.
async fn sweep(locks: LockService, failed: watch::Sender<Option<Instant>>) {
    let mut tick = interval(SWEEP_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut failing: Option<Instant> = None;
    loop {
        tick.tick().await;
        if last.elapsed() >= PAUSE
            && let Err(error) = mark(&locks).await
        {
            tracing::debug!(%error, "cannot renew the marks of waiting requests; trying again");
        }
        last = Instant::now();
        match locks.coordination().sweep().await {
            Ok(deadlocks) => {
                deadlocks.iter().for_each(|found| locks.notices().tell(LockNotice::Deadlock(found)));
                if let Some(since) = failing.take() {
                    tracing::info!(after = ?since.elapsed(), "locks are served again");
                }
            }
            Err(error) => {
                // Said once, not five times a second.
                if failing.is_none() {
                    tracing::error!(%error, "locks cannot be served");
                }
                failing.get_or_insert_with(Instant::now);
                failed.send_replace(Some(Instant::now()));
            }
        }
    }
}

async fn mark(locks: &LockService) -> Result<(), CoordinationError> {
    let mark = || LockCommand::Mark { server: locks.server().clone() };
    let marks: Vec<_> = locks.served().all().into_iter().map(|lock| (lock, mark())).collect();
    if !marks.is_empty() {
        locks.coordination().commands(marks).await?;
    }
    Ok(())
}

async fn pass_on(locks: LockService) {
    let mut events = locks.coordination().events();
    loop {
        match events.recv().await {
            Ok(happening) => locks.notices().tell(LockNotice::Lock(&happening)),
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "events of locks were missed"),
            Err(RecvError::Closed) => return,
        }
    }
}
