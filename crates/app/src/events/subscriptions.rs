//! Who is woken after a commit: the workers and the recovery of this process, remote ones, and jobs. A notification only says that
//! something may have changed; subscribers look for themselves.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::people::UserId;
use ade_store::Coordination;
use ade_store::coordination::WakeAt;
use tokio::sync::watch;

use super::wake_ups::{APPLY_QUEUE, APPROVAL_TIMEOUT_QUEUE, FollowUp, PREVIEW_QUEUE, WakeUps};

/// Wakes a worker for recovery, where a task id would wake it for that task.
const LOST_WORKERS: &str = "lost-workers";
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
const RECONNECT_BACKOFF: Duration = Duration::from_secs(1);

/// Clones share the subscribers.
#[derive(Debug, Clone)]
pub(crate) struct Subscriptions {
    coordination: Arc<dyn Coordination>,
    pub(crate) wake_ups: WakeUps,
    has_remote_workers: bool,
    work_ready: watch::Sender<()>,
    worker_lost: watch::Sender<()>,
}

impl Subscriptions {
    pub(crate) fn new(coordination: &Arc<dyn Coordination>, has_remote_workers: bool) -> Self {
        Self {
            wake_ups: WakeUps::new(coordination.clone()),
            coordination: coordination.clone(),
            has_remote_workers,
            work_ready: watch::Sender::new(()),
            worker_lost: watch::Sender::new(()),
        }
    }

    /// Notifies that some task may have work for workers.
    pub(crate) fn work(&self) -> watch::Receiver<()> {
        self.work_ready.subscribe()
    }

    /// Notifies that some worker may be lost, whose tasks need recovery.
    pub(crate) fn lost_workers(&self) -> watch::Receiver<()> {
        self.worker_lost.subscribe()
    }

    /// Wakes the subscribers that have work after a commit.
    pub(crate) fn committed(&self, follow_up: &FollowUp) {
        for (queue, subject, when) in &follow_up.wake_ups {
            self.wake_ups.schedule(queue, subject, *when);
        }
        if !follow_up.ready.is_empty() {
            self.work_ready.send_replace(());
        }
        for (queue, task_id) in follow_up.ready.iter().filter(|_| self.has_remote_workers) {
            self.wake_ups.schedule(queue, task_id, WakeAt::Now);
        }
    }

    /// Wakes recovery in this process, and in one remote worker if there may be some.
    pub(crate) fn wake_recovery(&self) {
        self.worker_lost.send_replace(());
        if self.has_remote_workers {
            self.wake_ups.schedule(APPLY_QUEUE, LOST_WORKERS, WakeAt::Now);
        }
    }

    /// Wakes the job that reassigns what could not be reassigned in the transaction in which a user left.
    pub(crate) fn schedule_reassignment(&self, leaver: &UserId) {
        self.wake_ups.schedule(APPROVAL_TIMEOUT_QUEUE, leaver.as_str(), WakeAt::Now);
    }

    /// Relays wake-ups from coordination to the workers of this process, for as long as it is polled.
    pub(crate) async fn relay(&self) {
        let queues = [PREVIEW_QUEUE, APPLY_QUEUE].map(str::to_owned);
        loop {
            match self.coordination.receive_wake_up(queues.to_vec(), LISTEN_TIMEOUT).await {
                Ok(Some(wake_up)) if wake_up.subject == LOST_WORKERS => self.worker_lost.send_replace(()),
                Ok(Some(_)) => self.work_ready.send_replace(()),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot receive wake-ups for workers; they poll");
                    tokio::time::sleep(RECONNECT_BACKOFF).await;
                }
            }
        }
    }
}
