//! What must happen without anybody asking: sweeping, renewing marks, passing events on. One task each, until stopped.

use std::time::Duration;

use ade_domain::lock::Command;
use ade_store::coordination::Unavailable;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::LockService;
use crate::notices::Notice;

/// Leases end at most 500 ms late: so often they are looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(200);
/// A server that is silent for three of these does not serve its waiters any more.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How long after a failure of coordination its queues are compared with the requests that are open here.
const DOUBT_FOR: Duration = Duration::from_secs(10);

/// The tasks beside the requests.
#[derive(Debug)]
pub struct Upkeep {
    tasks: JoinSet<()>,
}

impl Upkeep {
    /// Starts them.
    #[must_use]
    pub fn start(locks: &LockService) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(locks.clone()));
        tasks.spawn(pass_on(locks.clone()));
        Self { tasks }
    }

    /// Stops them.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Renews the marks of this server first: after a pause of the whole process, its own waiters must not look abandoned.
async fn sweep(locks: LockService) {
    let mut tick = interval(SWEEP_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut marked: Option<Instant> = None;
    let mut failed: Option<Instant> = None;
    loop {
        tick.tick().await;
        if marked.is_none_or(|marked| marked.elapsed() >= MARK_EVERY) {
            marked = Some(Instant::now());
            if let Err(error) = mark(&locks).await {
                tracing::warn!(%error, "cannot renew the marks of waiting requests; trying again");
                failed = Some(Instant::now());
            } else if failed.is_some_and(|failed| failed.elapsed() < DOUBT_FOR)
                && let Err(error) = locks.disown().await
            {
                tracing::warn!(%error, "cannot look for requests that are not open any more; trying again");
            }
        }
        match locks.coordination().sweep().await {
            Ok(deadlocks) => deadlocks.iter().for_each(|found| locks.notices().tell(Notice::Deadlock(found))),
            Err(error) => {
                tracing::warn!(%error, "cannot sweep locks; trying again");
                failed = Some(Instant::now());
            }
        }
    }
}

async fn mark(locks: &LockService) -> Result<(), Unavailable> {
    let mark = || Command::Mark { server: locks.server().clone() };
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
            Ok(happening) => locks.notices().tell(Notice::Lock(&happening)),
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "events of locks were missed"),
            Err(RecvError::Closed) => return,
        }
    }
}
