//! Calls for jobs: those that are for now are heard and passed on, those that are for later are moved to their queues when it is time.
//!
//! One process at a time moves them: it has the turn as long as it renews it. Nothing depends on a call: without any, jobs are
//! done when they are due by themselves.

use std::time::Duration;

use ade_store::coordination::{Job as Called, WakeAt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{JOBS, Jobs};
use crate::signals::TASK_TIMEOUT;

/// The queues of jobs, each by the name of its job.
const QUEUES: [&str; 5] = ["lock_cleanup", "approval_timeout", TASK_TIMEOUT, "deadlock_detect", "archive"];
const LISTEN_FOR: Duration = Duration::from_secs(30);
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// Whose turn it is to move calls is a lock as of a job, called so.
const TURN: &str = "scheduled";
/// How long the turn is somebody's who is not heard of.
const TURN_MS: u64 = 3_000;
/// How often calls for later are looked for at least, and at most.
const MOVE_EVERY: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(20);

impl Jobs {
    /// Hears calls through the queues, until it is told to stop.
    pub(super) async fn listen(self, calls: mpsc::Sender<&'static str>, mut stopped: watch::Receiver<bool>) {
        let queues: Vec<String> = QUEUES.iter().map(|name| (*name).to_owned()).collect();
        loop {
            let heard = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                heard = self.locks.coordination().woken(queues.clone(), LISTEN_FOR) => heard,
            };
            match heard {
                Ok(None) => {}
                Ok(Some(call)) => {
                    let job = JOBS.iter().find(|job| job.name == call.queue);
                    if let Some(job) = job
                        && self.is_worth_a_look(&call).await
                        && calls.send(job.name).await.is_err()
                    {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "calls for jobs cannot be heard; what is due is done anyway");
                    sleep(LISTEN_AGAIN).await;
                }
            }
        }
    }

    /// Not, if it is about a task whose worker was heard of meanwhile: its lease ends later, and the call comes again then. Nor if
    /// nobody carries it out any more.
    async fn is_worth_a_look(&self, call: &Called) -> bool {
        // What others put into the queue may be anything.
        if call.queue != TASK_TIMEOUT || Uuid::parse_str(&call.about).is_err() {
            return true;
        }
        match self.record.lease_of(&call.about).await {
            Ok(Some(until)) if until > self.clock.now() => {
                self.reviews.signals().call(TASK_TIMEOUT, &call.about, WakeAt::At(until));
                false
            }
            Ok(lease) => lease.is_some(),
            Err(error) => {
                tracing::debug!(%error, "whether a worker is alive cannot be looked up");
                true
            }
        }
    }

    /// Moves calls to their queues when it is time, whenever it is this process' turn.
    pub(super) async fn move_calls(self, mut stopped: watch::Receiver<bool>) {
        let coordination = self.locks.coordination().clone();
        let mut is_mine;
        loop {
            let began = Instant::now();
            let mut pause = MOVE_EVERY;
            is_mine = match coordination.lock_job(TURN.to_owned(), self.name.clone(), TURN_MS).await {
                Ok(is_mine) => is_mine,
                Err(error) => {
                    tracing::trace!(%error, "whose turn it is to call is not known");
                    false
                }
            };
            if is_mine {
                match coordination.wake_scheduled().await {
                    Ok(moved) => pause = moved.next_in.map_or(pause, |next| next.min(pause)),
                    Err(error) => tracing::trace!(%error, "calls for later cannot be made now"),
                }
            }
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.reviews.signals().sooner(pause) => {}
            }
            sleep_until(began + LEAST_PAUSE).await;
        }
        if is_mine && let Err(error) = coordination.unlock_job(TURN.to_owned(), self.name).await {
            tracing::debug!(%error, "whose turn it is to call ends by itself");
        }
    }
}
