//! Workers: what is approved is carried out, exactly that, once, under its locks; and what a worker left that is gone is settled.
//!
//! A worker changes nothing before the record says that it may: its attempt is committed first, then what is needed to undo it
//! is kept, then it begins. Whoever lost its lease or its locks stops.

mod claims;
mod hold;
mod one;
mod pull;
mod recover;
mod undo;

pub(crate) use one::preview_of;
pub use pull::{Alive, Pulls, Report};

use std::sync::Arc;
use std::time::Duration;

use ade_domain::{Clock, Moment};
use ade_executors::{Executors, Secrets};
use ade_store::{Blobs, Database};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::{Error, LockService, TaskService};

/// How often somebody looks for work that nobody told of.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often somebody looks for workers that are gone.
const RECOVER_EVERY: Duration = Duration::from_millis(500);
/// Tasks that are claimed at once.
const MOST_AT_ONCE: usize = 32;
/// How long what is under way may take once the worker is told to end.
const FAREWELL: Duration = Duration::from_secs(20);

/// What a worker works with.
#[derive(Clone)]
pub struct Worker {
    /// The record.
    pub record: Database,
    /// Reviews.
    pub reviews: TaskService,
    /// Locks.
    pub locks: LockService,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// What can be carried out here.
    pub executors: Executors,
    /// Where stashes and long output are kept.
    pub blobs: Blobs,
    /// What must never be seen.
    pub secrets: Secrets,
    /// Who this worker is among others; nobody else is ever called so.
    pub name: String,
    /// Tasks at once.
    pub slots: usize,
    /// How long it counts as alive without being heard of.
    pub lease_ms: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("at", &self.executors)
            .finish_non_exhaustive()
    }
}

/// A worker that runs.
#[derive(Debug)]
pub struct Working {
    loops: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Working {
    /// Takes nothing new, and waits for what is under way; what takes too long is left to whoever recovers it.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.loops.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, ended).await.is_err() {
            tracing::warn!("some tasks are still carried out; another worker will settle them");
        }
        self.loops.shutdown().await;
    }
}

impl Worker {
    /// Starts to look for work, if there are slots for it, and for workers that are gone.
    #[must_use]
    pub fn start(self) -> Working {
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        let (reviews, mut ends) = (self.reviews.clone(), stopped.clone());
        loops.spawn(async move {
            tokio::select! {
                biased;
                _ = ends.wait_for(|ends| *ends) => {}
                () = reviews.hear_calls() => {}
            }
        });
        loops.spawn(self.clone().work(stopped.clone()));
        loops.spawn(self.recover_all(stopped));
        Working { loops, stop }
    }

    /// Carries nothing out, and looks for workers and agents that are gone where nothing has to be undone for that: a server
    /// that leaves work to others sees to it that no task waits for nobody.
    #[must_use]
    pub fn watch(self) -> Working {
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        let watching = Self { executors: Executors::default(), ..self };
        loops.spawn(watching.recover_all(stopped));
        Working { loops, stop }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn lease_until(&self) -> Moment {
        self.now().plus_ms(self.lease_ms)
    }

    async fn work(self, mut stopped: watch::Receiver<bool>) {
        let places: Vec<String> = self.executors.places().map(str::to_owned).collect();
        let slots = Arc::new(Semaphore::new(self.slots));
        let mut running = JoinSet::new();
        let mut fails = false;
        let mut work = self.reviews.work();
        loop {
            // What becomes ready from here on is heard.
            work.mark_unchanged();
            while running.try_join_next().is_some() {}
            // Whoever is told to end while all slots are busy takes nothing when one is free.
            let slot = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                slot = Arc::clone(&slots).acquire_owned() => slot,
            };
            let Ok(slot) = slot else { break };
            let claimed = match self.claim(&places, slot, &slots).await {
                Ok(claimed) => {
                    fails = false;
                    claimed
                }
                Err(error) => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!(%error, "cannot look for work; trying again");
                    }
                    Vec::new()
                }
            };
            let idle = claimed.is_empty();
            for (task_id, permit) in claimed {
                let worker = self.clone();
                running.spawn(async move {
                    worker.attend(&task_id).await;
                    drop(permit);
                });
            }
            if idle {
                tokio::select! {
                    _ = tokio::time::timeout(LOOK_EVERY, work.changed()) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            }
        }
        // What is under way goes on until it is waited for no longer.
        while running.join_next().await.is_some() {}
    }

    /// One claimed task. What goes wrong here is told by the task itself, or is tried again.
    async fn attend(&self, task_id: &str) {
        let done = tokio::select! {
            biased;
            done = self.one(task_id) => done,
            never = self.stay_at(task_id) => match never {},
        };
        if let Err(error) = done {
            if crate::tasks::is_over(&error) || matches!(error, Error::Overtaken | Error::NotFound(_)) {
                tracing::debug!(task_id, %error, "somebody else was faster");
            } else {
                tracing::warn!(task_id, %error, "a task cannot be carried out now; trying again");
            }
            self.put_off(task_id).await;
        }
    }
}
