//! Calls that wake workers, and locks that keep a job from being done twice at the same time.
//!
//! What is due is a fact of the record, and whoever does it looks there from time to time. A call only says that it is
//! worth looking now: one that is lost costs a little time, one too many costs a look. So calls are bounded, not kept.

use std::time::Duration;

use ade_domain::Moment;
use ade_keyspace::ade::{self as keys, ids};

use super::{CoordinationError, Reply};

/// Calls that wait in one queue; above that the oldest are dropped.
pub(crate) const MOST_WAITING: usize = 1_000;
/// Calls for later; above that no more are taken.
pub(crate) const MOST_SCHEDULED: usize = 100_000;
/// Calls for later that are moved to their queues in one step.
pub(crate) const MOST_AT_ONCE: usize = 1_000;
/// The longest that anybody waits in one go.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// When a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeAt {
    /// Now, to one of those who wait at the queue or to whoever comes next.
    Now,
    /// At a moment by the clock of the store, when somebody moves what is due. The same call waits once: the last moment counts.
    At(Moment),
    /// Not later either: what was to come does not.
    NotAnyMore,
}

/// A call to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUp {
    /// At which queue.
    pub queue: String,
    /// What it is about, as a task's id.
    pub about: String,
    /// When.
    pub when: WakeAt,
}

/// What came of moving calls whose moment had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// How many were moved.
    pub calls: usize,
    /// How long until the next is due; nothing if none waits.
    pub next_in: Option<Duration>,
}

/// A call that was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The queue it came from.
    pub queue: String,
    /// What it is about, as a task's id; what stands there instead if somebody else called.
    pub about: String,
}

/// Calls and locks of jobs. Queues are those of the catalog of keys, as `apply`; any other is refused as unavailable.
pub trait Jobs: Send + Sync {
    /// Makes calls, in one step. How many of them found no room among those for later.
    fn call(&self, calls: Vec<WakeUp>) -> Reply<'_, usize>;

    /// Waits for a call, at most so long and never longer than an hour: the oldest of the first queue that has one. Each
    /// call goes to one waiter. A waiter that goes away may take one with it. If the store is out of reach this fails at
    /// once: pause before asking again.
    fn woken(&self, queues: Vec<String>, at_most: Duration) -> Reply<'_, Option<Job>>;

    /// Moves calls whose moment has come to their queues, each once however many servers do so. There may be more than one step
    /// moves: then the next is due at once.
    fn wake_scheduled(&self) -> Reply<'_, Moved>;

    /// Locks a job for a holder, or prolongs its lock; `false` if another one has it.
    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> Reply<'_, bool>;

    /// Gives a holder's lock of a job back; whether it had it.
    fn unlock_job(&self, job_id: String, holder: String) -> Reply<'_, bool>;
}

/// A queue of the catalog.
pub(crate) fn queue_named(name: &str) -> Result<ids::QueueName, CoordinationError> {
    ids::QueueName::new(name).map_err(|error| CoordinationError(format!("no key can be made: {error}")))
}

/// Queues of the catalog, at least one.
pub(crate) fn queues_named(names: &[String]) -> Result<Vec<ids::QueueName>, CoordinationError> {
    if names.is_empty() {
        return Err(CoordinationError("nobody calls where there is no queue".to_owned()));
    }
    names.iter().map(|name| queue_named(name)).collect()
}

/// The id of a job as the catalog allows it.
pub(crate) fn job_named(job_id: &str) -> Result<ids::JobId, CoordinationError> {
    ids::JobId::new(job_id).map_err(|error| CoordinationError(format!("no key can be made: {error}")))
}

/// The id of a job that is to be locked, and for how long, as the catalog allows it.
pub(crate) fn checked_lock(job_id: &str, ttl_ms: u64) -> Result<(ids::JobId, Duration), CoordinationError> {
    let id = job_named(job_id)?;
    let given = Duration::from_millis(ttl_ms);
    let written = keys::job::lock(&id).writable_for(given);
    let ttl = written.map_err(|error| CoordinationError(error.to_string()))?.ttl().unwrap_or(given);
    Ok((id, ttl))
}
