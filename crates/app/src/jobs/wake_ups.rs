//! Wake-ups of jobs: immediate ones are received and passed to the scheduler; scheduled ones are delivered to their queues when
//! they are due.
//!
//! One process at a time delivers them, for as long as it renews its lease. Nothing depends on wake-ups: without them, jobs run
//! when they are due by time.

use std::time::Duration;

use ade_store::coordination::{ReceivedWakeUp, WakeAt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::{JOBS, Jobs};
use crate::events::wake_ups::TASK_TIMEOUT_QUEUE;

/// The queues of jobs, each with the name of its job.
const QUEUES: [&str; 5] =
    ["lock_cleanup", "approval_timeout", TASK_TIMEOUT_QUEUE, "deadlock_detect", "archive"];
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const RECONNECT_BACKOFF: Duration = Duration::from_secs(1);
/// The name of the lease for delivering scheduled wake-ups.
const DELIVERY_LEASE: &str = "scheduled";
const DELIVERY_LEASE_MS: u64 = 3_000;
const MAX_PAUSE: Duration = Duration::from_secs(1);
const MIN_PAUSE: Duration = Duration::from_millis(20);

impl Jobs {
    /// Receives wake-ups from the queues until stopped.
    pub(super) async fn receive_wake_ups(
        self,
        wake_ups: mpsc::Sender<&'static str>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let queues: Vec<String> = QUEUES.iter().map(|name| (*name).to_owned()).collect();
        loop {
            let received = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                received = self.context.coordination.receive_wake_up(queues.clone(), LISTEN_TIMEOUT) => received,
            };
            match received {
                Ok(None) => {}
                Ok(Some(wake_up)) => {
                    let job = JOBS.iter().find(|job| job.name == wake_up.queue);
                    if let Some(job) = job
                        && self.is_relevant(&wake_up).await
                        && wake_ups.send(job.name).await.is_err()
                    {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot receive wake-ups for jobs; they run when they are due");
                    sleep(RECONNECT_BACKOFF).await;
                }
            }
        }
    }

    /// False for a task whose worker renewed its lease, which is scheduled again, and for a task that is no longer executed.
    async fn is_relevant(&self, wake_up: &ReceivedWakeUp) -> bool {
        // The queue may contain entries of others.
        if wake_up.queue != TASK_TIMEOUT_QUEUE || Uuid::parse_str(&wake_up.subject).is_err() {
            return true;
        }
        match self.context.database.lease_expiry(&wake_up.subject).await {
            Ok(Some(until)) if until > self.context.now() => {
                let wake_ups = &self.tasks.subscriptions().wake_ups;
                wake_ups.schedule(TASK_TIMEOUT_QUEUE, &wake_up.subject, WakeAt::At(until));
                false
            }
            Ok(lease) => lease.is_some(),
            Err(error) => {
                tracing::debug!(%error, "cannot read the lease of a worker");
                true
            }
        }
    }

    /// Delivers scheduled wake-ups to their queues while this process holds the lease for it.
    pub(super) async fn deliver_scheduled(self, mut stopped: watch::Receiver<bool>) {
        let coordination = self.context.coordination.clone();
        let mut has_lease;
        loop {
            let started = Instant::now();
            let mut pause = MAX_PAUSE;
            let lease =
                coordination.lock_job(DELIVERY_LEASE.to_owned(), self.name.clone(), DELIVERY_LEASE_MS);
            has_lease = lease.await.unwrap_or_else(|error| {
                tracing::trace!(%error, "cannot acquire the lease for scheduled wake-ups");
                false
            });
            if has_lease {
                match coordination.move_due_wake_ups().await {
                    Ok(moved) => pause = moved.next_in.map_or(pause, |next| next.min(pause)),
                    Err(error) => tracing::trace!(%error, "cannot deliver scheduled wake-ups"),
                }
            }
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.tasks.subscriptions().wake_ups.wait(pause) => {}
            }
            sleep_until(started + MIN_PAUSE).await;
        }
        if has_lease && let Err(error) = coordination.unlock_job(DELIVERY_LEASE.to_owned(), self.name).await {
            tracing::debug!(%error, "cannot release the lease for scheduled wake-ups; it expires");
        }
    }
}
