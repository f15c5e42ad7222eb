//! Wake-ups: queues in coordination learn what becomes due when. They are sent after a commit, without a guarantee, and
//! nobody waits for them.
//!
//! Pending wake-ups are bounded and sent in batches: the next batch gathers while one is on its way. A lost wake-up, because
//! there are too many or coordination is unavailable, only delays work until the next poll.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::task::Task;
use ade_domain::task::{Phase, TaskState};
use ade_store::Coordination;
use ade_store::coordination::{WakeAt, WakeUp};
use ade_store::database::{StoredTask, WorkKind, Write};
use tokio::sync::Notify;

/// Wakes workers for approved tasks and for rollbacks.
pub(crate) const APPLY_QUEUE: &str = "apply";
/// Wakes workers for previews.
pub(crate) const PREVIEW_QUEUE: &str = "preview";
/// Wakes the job that escalates overdue approval requests and expires old approvals.
pub(crate) const APPROVAL_TIMEOUT_QUEUE: &str = "approval_timeout";
/// Wakes the job that handles tasks of lost workers.
pub(crate) const TASK_TIMEOUT_QUEUE: &str = "task_timeout";

/// Further wake-ups are dropped.
const MAX_PENDING: usize = 10_000;
const MAX_BATCH_SIZE: usize = 500;
/// A wake-up that is due this soon interrupts the pause of the scheduler.
const SOON_MS: u64 = 1_000;

/// Sends wake-ups to coordination; clones share one batch.
#[derive(Debug, Clone)]
pub(crate) struct WakeUps(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    coordination: Arc<dyn Coordination>,
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    wake_ups: BTreeMap<(&'static str, String), WakeAt>,
    is_sending: bool,
}

impl Sender {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch; `None` ends the sending task, and the next wake-up starts a new one.
    fn next_batch(&self) -> Option<Vec<WakeUp>> {
        let mut pending = self.pending();
        if pending.wake_ups.is_empty() {
            pending.is_sending = false;
            return None;
        }
        let mut batch = std::mem::take(&mut pending.wake_ups);
        if let Some(rest) = batch.keys().nth(MAX_BATCH_SIZE).cloned() {
            pending.wake_ups = batch.split_off(&rest);
        }
        let wake_up = |((queue, subject), when): ((&str, String), WakeAt)| WakeUp {
            queue: queue.to_owned(),
            subject,
            when,
        };
        Some(batch.into_iter().map(wake_up).collect())
    }

    async fn send(&self) {
        while let Some(batch) = self.next_batch() {
            let soon = self.coordination.now().plus_ms(SOON_MS);
            let any_soon = batch.iter().any(|wake_up| matches!(wake_up.when, WakeAt::At(at) if at <= soon));
            match self.coordination.send_wake_ups(batch).await {
                Ok(0) => {}
                Ok(dropped) => {
                    tracing::debug!(dropped, "too many wake-ups are scheduled; polling finds the rest");
                }
                Err(error) => tracing::debug!(%error, "cannot send wake-ups; polling finds what is due"),
            }
            if any_soon {
                self.changed.notify_one();
            }
        }
    }
}

impl WakeUps {
    pub(crate) fn new(coordination: Arc<dyn Coordination>) -> Self {
        Self(Arc::new(Sender { coordination, pending: Mutex::default(), changed: Notify::new() }))
    }

    /// Schedules a wake-up of a queue about an object. It replaces an earlier one about the same object.
    pub(crate) fn schedule(&self, queue: &'static str, subject: &str, when: WakeAt) {
        let mut pending = self.0.pending();
        let key = (queue, subject.to_owned());
        if pending.wake_ups.len() >= MAX_PENDING && !pending.wake_ups.contains_key(&key) {
            return;
        }
        pending.wake_ups.insert(key, when);
        if !std::mem::replace(&mut pending.is_sending, true) {
            let sender = Arc::clone(&self.0);
            tokio::spawn(async move { sender.send().await });
        }
    }

    /// Waits for at most `timeout`, or until a wake-up is scheduled that is due soon.
    pub(crate) async fn wait(&self, timeout: Duration) {
        // The caller polls in either case.
        let _ = tokio::time::timeout(timeout, self.0.changed.notified()).await;
    }
}

/// What follows from a commit: wake-ups to schedule or cancel, and tasks that have work now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FollowUp {
    pub(super) wake_ups: Vec<(&'static str, String, WakeAt)>,
    /// Each with its queue.
    pub(super) ready: Vec<(&'static str, String)>,
}

impl FollowUp {
    pub(crate) fn of(writes: &[Write], now: Moment) -> Self {
        let mut follow_up = Self::default();
        for write in writes {
            if let Write::Task { task, expected, .. } = write {
                follow_up.add_deadlines(task, expected.is_some());
                follow_up.add_work(task, now);
            }
        }
        follow_up
    }

    /// One deadline per queue: the earliest of its approval requests and of the end of its approval, and the end of the
    /// worker's lease. Deadlines that no longer apply are cancelled.
    fn add_deadlines(&mut self, task: &StoredTask, is_update: bool) {
        let task_id = &task.task_id;
        match earliest_due(task).into_iter().chain(task.approval_ends_at).min() {
            Some(at) => self.wake_ups.push((APPROVAL_TIMEOUT_QUEUE, task_id.clone(), WakeAt::At(at))),
            // A completed or failed task cancelled this when it began to be applied.
            None if is_update && !matches!(task.state, TaskState::Completed | TaskState::Failed) => {
                self.wake_ups.push((APPROVAL_TIMEOUT_QUEUE, task_id.clone(), WakeAt::Never));
            }
            None => {}
        }
        if let Some(execution) = &task.execution {
            let is_ended = execution.phase == Phase::Ended;
            let when = if is_ended { WakeAt::Never } else { WakeAt::At(execution.lease_until) };
            self.wake_ups.push((TASK_TIMEOUT_QUEUE, task_id.clone(), when));
        }
    }

    fn add_work(&mut self, task: &StoredTask, now: Moment) {
        let Some(kind) = WorkKind::of(task) else { return };
        let (task_id, ready_at) = (task.task_id.clone(), kind.ready_at(task));
        if ready_at > now {
            self.wake_ups.push((APPLY_QUEUE, task_id, WakeAt::At(ready_at)));
        } else {
            self.ready.push((if kind == WorkKind::Preview { PREVIEW_QUEUE } else { APPLY_QUEUE }, task_id));
        }
    }
}

/// When the first pending approval request of a task in review escalates.
fn earliest_due(task: &Task) -> Option<Moment> {
    let pending = task.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Pending);
    pending.filter_map(Approval::escalates_at).min().filter(|_| task.state == TaskState::Reviewing)
}
