//! Wake-ups for workers, and locks that keep a job from running twice at the same time.
//!
//! The database knows what is due, and workers poll it from time to time. A wake-up only says that polling now is worthwhile: a lost one
//! costs a delay, a spurious one costs a query. So queues are bounded, and wake-ups are not durable.

use std::time::Duration;

use ade_domain::Moment;
use ade_keyspace::ade::{self as keys, ids};

use super::{AsyncResult, CoordinationError, Result};

/// Wake-ups in one queue; above that the oldest are dropped.
pub(crate) const MAX_QUEUED_WAKE_UPS: usize = 1_000;
/// Scheduled wake-ups; above that no more are accepted.
pub(crate) const MAX_SCHEDULED_WAKE_UPS: usize = 100_000;
/// Scheduled wake-ups that are moved to their queues in one step.
pub(crate) const MAX_MOVED_WAKE_UPS: usize = 1_000;
/// Longer waits are cut.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeAt {
    /// Now: for one of those who wait at the queue, or the next one.
    Now,
    /// At a time by the clock of the store. The same wake-up is scheduled once: the last time counts.
    At(Moment),
    /// Never: a scheduled wake-up is cancelled.
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUp {
    pub queue: String,
    /// What the wake-up is about, as a task id.
    pub subject: String,
    pub when: WakeAt,
}

/// The outcome of moving scheduled wake-ups to their queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MovedWakeUps {
    /// How many were moved.
    pub count: usize,
    /// How long until the next one is due; `None` if nothing is scheduled.
    pub next_in: Option<Duration>,
}

/// A wake-up that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedWakeUp {
    pub queue: String,
    /// What the wake-up is about, as a task id. Unchecked: on Redis others may write to the queue.
    pub subject: String,
}

/// Wake-ups and job locks. The queues are those of the key catalog, as `apply`; any other one is rejected as unavailable.
pub trait WakeUpQueue: Send + Sync {
    /// Sends, schedules or cancels wake-ups, in one step. Returns how many could not be scheduled because there are too many.
    fn send_wake_ups(&self, wake_ups: Vec<WakeUp>) -> AsyncResult<'_, usize>;

    /// Waits for a wake-up for at most `max_wait`, and never longer than an hour: the oldest one of the first queue that has one. Each
    /// wake-up goes to one receiver. A cancelled call may lose one. Fails at once if the store is unreachable: pause before the next call.
    fn receive_wake_up(
        &self,
        queues: Vec<String>,
        max_wait: Duration,
    ) -> AsyncResult<'_, Option<ReceivedWakeUp>>;

    /// Moves scheduled wake-ups that are due to their queues, each once, however many servers do so. If there are more than one step
    /// moves, the next is due at once.
    fn move_due_wake_ups(&self) -> AsyncResult<'_, MovedWakeUps>;

    /// Locks a job for a holder, or extends its lock; `false` if another holder has it.
    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> AsyncResult<'_, bool>;

    /// Releases the lock of a job; `false` if the holder does not have it.
    fn unlock_job(&self, job_id: String, holder: String) -> AsyncResult<'_, bool>;
}

/// A queue of the key catalog.
pub(crate) fn parse_queue(name: &str) -> Result<ids::QueueName> {
    ids::QueueName::new(name).map_err(|error| CoordinationError(format!("invalid queue {name:?}: {error}")))
}

/// Queues of the key catalog, at least one.
pub(crate) fn parse_queues(names: &[String]) -> Result<Vec<ids::QueueName>> {
    if names.is_empty() {
        return Err(CoordinationError("no queue to wait at".to_owned()));
    }
    names.iter().map(|name| parse_queue(name)).collect()
}

pub(crate) fn parse_job_id(job_id: &str) -> Result<ids::JobId> {
    ids::JobId::new(job_id).map_err(|error| CoordinationError(format!("invalid job id {job_id:?}: {error}")))
}

/// A job id, and the TTL of its lock as the key catalog allows it.
pub(crate) fn parse_job_lock(job_id: &str, ttl_ms: u64) -> Result<(ids::JobId, Duration)> {
    let id = parse_job_id(job_id)?;
    let requested = Duration::from_millis(ttl_ms);
    let writable = keys::job::lock(&id).writable_for(requested);
    let ttl = writable.map_err(|error| CoordinationError(error.to_string()))?.ttl().unwrap_or(requested);
    Ok((id, ttl))
}
