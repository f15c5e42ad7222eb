//! What becomes due is told to the queues of coordination, so that somebody looks when it is: a hint beside the commit, which nobody
//! waits for.
//!
//! What waits to be told is bounded, and goes out together: while one message is on its way, the next gathers. A hint that is
//! lost, because there are too many or coordination is away, costs no more than the time until somebody looks by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::task::Task;
use ade_domain::task::{Phase, State};
use ade_store::Coordination;
use ade_store::coordination::{WakeAt, WakeUp};
use ade_store::database::{StoredTask, WorkKind, Write};
use tokio::sync::Notify;

/// The queue at which workers are called for what is approved, and for what is to be undone.
pub(crate) const APPLY: &str = "apply";
/// The queue at which workers are called for previews.
pub(crate) const PREVIEW: &str = "preview";
/// The job that asks others where nobody answered in time, and ends approvals that grew old.
pub(crate) const APPROVAL_TIMEOUT: &str = "approval_timeout";
/// The job that sees to tasks whose worker is gone.
pub(crate) const TASK_TIMEOUT: &str = "task_timeout";

/// Calls that wait to be told; more are dropped.
const MOST_WAITING: usize = 10_000;
/// Calls that are told at once.
const MOST_AT_ONCE: usize = 500;
/// How soon something is due that whoever moves what is due should know of at once.
pub(crate) const SOON_MS: u64 = 1_000;

/// Tells coordination what is due when; clones tell the same one. Without coordination nothing is told.
#[derive(Clone, Default)]
pub(crate) struct WakeUps {
    to: Option<Arc<To>>,
}

struct To {
    coordination: Arc<dyn Coordination>,
    waiting: Mutex<Waiting>,
    sooner: Notify,
}

#[derive(Default)]
struct Waiting {
    calls: BTreeMap<(&'static str, String), WakeAt>,
    is_telling: bool,
}

impl To {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next that are told; nothing, and somebody else begins to tell, if none wait.
    fn take(&self) -> Option<Vec<WakeUp>> {
        let mut waiting = self.waiting();
        if waiting.calls.is_empty() {
            waiting.is_telling = false;
            return None;
        }
        let mut some = std::mem::take(&mut waiting.calls);
        if let Some(next) = some.keys().nth(MOST_AT_ONCE).cloned() {
            waiting.calls = some.split_off(&next);
        }
        let call = |((queue, about), when): ((&str, String), WakeAt)| WakeUp {
            queue: queue.to_owned(),
            about,
            when,
        };
        Some(some.into_iter().map(call).collect())
    }

    async fn tell(&self) {
        while let Some(calls) = self.take() {
            let soon = self.coordination.now().plus_ms(SOON_MS);
            let any_soon = calls.iter().any(|call| matches!(call.when, WakeAt::At(at) if at <= soon));
            match self.coordination.call(calls).await {
                Ok(0) => {}
                Ok(many) => tracing::debug!(many, "too much is due later; it is found by looking"),
                Err(error) => tracing::debug!(%error, "nobody is called; what is due is found by looking"),
            }
            if any_soon {
                self.sooner.notify_one();
            }
        }
    }
}

impl WakeUps {
    pub(crate) fn to(coordination: Option<Arc<dyn Coordination>>) -> Self {
        let to = coordination.map(|coordination| {
            Arc::new(To { coordination, waiting: Mutex::default(), sooner: Notify::new() })
        });
        Self { to }
    }

    /// Calls whoever waits at a queue, when it is time. The last that is said about the same counts.
    pub(crate) fn call(&self, queue: &'static str, about: &str, when: WakeAt) {
        let Some(to) = &self.to else { return };
        let mut waiting = to.waiting();
        let key = (queue, about.to_owned());
        if waiting.calls.len() >= MOST_WAITING && !waiting.calls.contains_key(&key) {
            return;
        }
        waiting.calls.insert(key, when);
        if !std::mem::replace(&mut waiting.is_telling, true) {
            let to = Arc::clone(to);
            tokio::spawn(async move { to.tell().await });
        }
    }

    /// Something is due within a second that was not known before, or so much time passed.
    pub(crate) async fn sooner(&self, at_most: Duration) {
        match &self.to {
            // Whether it was heard or the time passed: looking is the same.
            Some(to) => drop(tokio::time::timeout(at_most, to.sooner.notified()).await),
            None => tokio::time::sleep(at_most).await,
        }
    }
}

/// What follows from a commit once it is one: what is due later, what is not any more, and what has work now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    calls: Vec<(&'static str, String, WakeAt)>,
    ready: Vec<(&'static str, String)>,
}

impl Due {
    /// What follows from these writes, decided at this moment.
    pub(crate) fn of(writes: &[Write], now: Moment) -> Self {
        let mut due = Self::default();
        for write in writes {
            if let Write::Task { task, expected, .. } = write {
                due.times(task, expected.is_some());
                due.work(task, now);
            }
        }
        due
    }

    /// Tells it. What has work now: its queue, and its task.
    pub(crate) fn tell(self, signals: &WakeUps) -> Vec<(&'static str, String)> {
        for (queue, about, when) in &self.calls {
            signals.call(queue, about, *when);
        }
        self.ready
    }

    /// What is due later for a task, each once: the earliest of its requests or the end of its approval, and the lease of whoever
    /// carries it out. What may have been told before is taken back where it is over.
    fn times(&mut self, task: &StoredTask, is_old: bool) {
        let (review, task_id) = (&task.task, &task.task_id);
        match answers_due(review).into_iter().chain(task.approval_ends_at).min() {
            Some(at) => self.calls.push((APPROVAL_TIMEOUT, task_id.clone(), WakeAt::At(at))),
            // Once it is done or failed this was said before, when it began.
            None if is_old && !matches!(review.state, State::Completed | State::Failed) => {
                self.calls.push((APPROVAL_TIMEOUT, task_id.clone(), WakeAt::NotAnyMore));
            }
            None => {}
        }
        if let Some(execution) = &review.execution {
            let is_over = execution.phase == Phase::Ended;
            let when = if is_over { WakeAt::NotAnyMore } else { WakeAt::At(execution.lease_until) };
            self.calls.push((TASK_TIMEOUT, task_id.clone(), when));
        }
    }

    /// Work that is ready now; for what becomes ready later somebody is called then.
    fn work(&mut self, task: &StoredTask, now: Moment) {
        let Some(kind) = WorkKind::of(task) else { return };
        let (task_id, ready_at) = (task.task_id.clone(), kind.ready_at(&task.task));
        if ready_at > now {
            self.calls.push((APPLY, task_id, WakeAt::At(ready_at)));
        } else {
            self.ready.push((if kind == WorkKind::Preview { PREVIEW } else { APPLY }, task_id));
        }
    }
}

/// When somebody else is asked in the place of whoever did not answer first.
fn answers_due(review: &Task) -> Option<Moment> {
    let waits = review.approvals.iter().filter(|one| one.status == ApprovalStatus::Pending);
    waits.map(|one| one.due_at).min().filter(|_| review.state == State::Reviewing)
}
