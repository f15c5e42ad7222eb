//! The coordination traits: locks and their queues, idempotent lock requests, agents with their heartbeats and capacity, rate limits, and
//! wake-ups for workers.
//!
//! A lock command is one atomic step on one lock. Nothing here blocks, except receiving a wake-up: a caller that waits for a lock
//! subscribes to its request and checks again when it is notified. A notification is a hint; only a reply is authoritative.

mod subscriptions;
mod views;
mod wake_ups;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::AgentProfile;
use ade_domain::lock::{Deadlock, LockCommand, LockLimits, LockName, LockReply, LockRequest, RequestKey};
use ade_keyspace::IdentifierError;
use tokio::sync::{broadcast, watch};

pub use subscriptions::{Subscription, Subscriptions, UnreportedGrant};
pub use views::{AgentView, LockEvent, LockEventKind, LockFilter, LockView, WaitView};
pub(crate) use wake_ups::{
    MAX_MOVED_WAKE_UPS, MAX_QUEUED_WAKE_UPS, MAX_SCHEDULED_WAKE_UPS, MAX_WAIT, parse_job_id, parse_job_lock,
    parse_queue, parse_queues,
};
pub use wake_ups::{MovedWakeUps, ReceivedWakeUp, WakeAt, WakeUp, WakeUpQueue};

pub(crate) type Result<T, E = CoordinationError> = std::result::Result<T, E>;

/// The boxed future of a coordination call.
pub type AsyncResult<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The backend is unavailable. The command may nevertheless have been applied: repeat it with the same request id, or read the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("coordination is unavailable: {0}")]
pub struct CoordinationError(pub String);

impl From<IdentifierError> for CoordinationError {
    fn from(error: IdentifierError) -> Self {
        Self(format!("cannot build a key: {error}"))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Locks, however many holders share them.
    pub held: usize,
    pub waiting: usize,
    pub agents: usize,
}

pub trait Locks: std::fmt::Debug + Send + Sync {
    /// Executes lock commands in order, each as one atomic step. A command that queues and closes a cycle resolves the deadlock in
    /// the same call.
    fn execute_commands(&self, commands: Vec<(LockName, LockCommand)>) -> AsyncResult<'_, Vec<LockReply>>;

    /// Executes the commands of one request in order, each as one atomic step, up to the first whose outcome is not a success. Returns
    /// one reply for each command that was executed.
    fn execute_while_successful(
        &self,
        commands: Vec<(LockName, LockCommand)>,
    ) -> AsyncResult<'_, Vec<LockReply>> {
        Box::pin(async move {
            let mut replies = Vec::with_capacity(commands.len());
            for command in commands {
                replies.extend(self.execute_commands(vec![command]).await?);
                if replies.last().is_none_or(|reply: &LockReply| !reply.outcome.is_success()) {
                    break;
                }
            }
            Ok(replies)
        })
    }

    /// The view of one lock; a free lock has neither holders nor queue.
    fn lock_view(&self, lock: LockName) -> AsyncResult<'_, LockView>;

    /// A glance at several locks: their holders and the lengths of their queues, in the order of the names. Ends nothing that is due,
    /// but leaves out expired holders.
    fn peek_locks(&self, locks: Vec<LockName>) -> AsyncResult<'_, Vec<LockView>>;

    /// Locks by name, after the name `after`, with the heads of their queues.
    fn list_locks(
        &self,
        filter: LockFilter,
        after: Option<LockName>,
        limit: usize,
    ) -> AsyncResult<'_, Vec<LockView>>;

    /// At most `limit` waits, and who blocks each of them.
    fn waits(&self, limit: usize) -> AsyncResult<'_, Vec<WaitView>>;

    fn counts(&self) -> AsyncResult<'_, LockCounts>;

    /// How many locks each of these agents holds, in their order. A lease that has just ended may still count.
    fn held_counts(&self, agents: Vec<String>) -> AsyncResult<'_, Vec<usize>>;

    /// Does everything that is due: ends expired leases and waits, cancels waits of silent agents, and resolves remaining deadlocks.
    /// Any number of servers may call it at any time.
    fn sweep(&self) -> AsyncResult<'_, Vec<Deadlock>>;

    /// Subscribes to notifications about a request.
    fn subscribe(&self, request: RequestKey) -> Subscription;

    /// Subscribes to lock events, best effort: a slow subscriber misses some.
    fn subscribe_events(&self) -> broadcast::Receiver<Arc<LockEvent>>;

    /// The limits that it was opened with.
    fn limits(&self) -> &LockLimits;

    /// Turns the detection of deadlocks on or off in this process. Deadlocks that arise while it is off are found once it is on.
    fn set_deadlock_detection(&self, is_enabled: bool);

    /// The time by the clock of the store.
    fn now(&self) -> Moment;
}

/// The outcome of registering a lock request.
#[derive(Debug, Clone, PartialEq)]
pub enum Registration {
    New,
    /// The same request was registered before.
    Repeated,
    /// Another request was registered with the same id.
    KeyReused,
}

/// A request that waits without an open connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket {
    pub request: LockRequest,
    /// When it stops waiting.
    pub deadline: Moment,
}

/// Idempotent lock requests, and tickets.
pub trait LockRequests: Send + Sync {
    /// Registers a request until `until`, with its ticket if it has one.
    fn register_request(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> AsyncResult<'_, Registration>;

    /// Unregisters a request that was refused, so that its id can be used again.
    fn forget_request(&self, key: RequestKey) -> AsyncResult<'_, ()>;

    fn ticket(&self, key: RequestKey) -> AsyncResult<'_, Option<Ticket>>;
}

/// Changes of an agent; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentUpdate {
    pub profile: Option<AgentProfile>,
    pub max_tasks: Option<u32>,
    /// Whether it takes no new tasks.
    pub draining: Option<bool>,
}

pub trait Agents: Send + Sync {
    /// Registers an agent, or updates one. `None` if `create` and the name is taken, or if not `create` and the name is unknown.
    fn put_agent(&self, id: String, update: AgentUpdate, create: bool) -> AsyncResult<'_, Option<AgentView>>;

    fn agent(&self, id: String) -> AsyncResult<'_, Option<AgentView>>;

    /// Agents by id, after the id `after`.
    fn agents(&self, after: Option<String>, limit: usize) -> AsyncResult<'_, Vec<AgentView>>;

    /// Removes an agent; `false` if it is unknown.
    fn remove_agent(&self, id: String) -> AsyncResult<'_, bool>;

    /// Records a heartbeat, and registers an unknown agent automatically; `false` if there are too many of those.
    fn record_heartbeat(&self, id: String) -> AsyncResult<'_, bool>;

    /// Counts the locks of an acquisition against the rate limit of the agent; `Err` with the time to retry at if it is exceeded.
    fn admit_acquisition(&self, id: String, locks: u32) -> AsyncResult<'_, Result<(), Moment>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapacityClaim {
    /// The agent has the task until the requested time, or longer.
    Claimed,
    /// The agent has as many tasks as it may have. The task counts as queued until it is claimed or released, or until the requested
    /// time.
    Full,
    Draining,
    /// The agent is unknown, and there are too many automatically registered ones.
    Unknown,
}

/// How many tasks agents work on at once.
pub trait Capacity: Send + Sync {
    /// Claims capacity of an agent for a task, until a time by the clock of the store. Repeated, it renews the claim, also while the
    /// agent is draining, and never shortens it. An unknown agent is registered automatically.
    fn claim_capacity(&self, agent: String, task: String, until: Moment) -> AsyncResult<'_, CapacityClaim>;

    /// Releases the claim or the queued task. Does nothing if there is none.
    fn release_capacity(&self, agent: String, task: String) -> AsyncResult<'_, ()>;
}

/// The state of a rate limit after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateCount {
    /// A request that is not allowed is not counted.
    pub allowed: bool,
    /// Requests per minute.
    pub limit: u32,
    /// How many more requests are allowed now, at least.
    pub remaining: u32,
    /// When a request that was not allowed will be; otherwise, when the current minute ends.
    pub reset_at: Moment,
}

/// How requests are counted in a limit that several processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// One by one.
    Exact,
    /// A process may count several at once that it expects in this minute. Near the limit, another process is refused while it has some
    /// left.
    InBlocks,
}

/// Rate limits per user and endpoint.
pub trait RateLimits: Send + Sync {
    /// Counts a request to an endpoint, in a sliding window of one minute ([`ade_domain::rate`]). The endpoints are those of the key
    /// catalog, as `tasks:create`; any other one, and an empty user, is rejected as unavailable. A backend may lose counts, but admits
    /// no more requests than it counts. A backend that is shared by several processes and unavailable counts the requests of this
    /// process.
    fn count_request(
        &self,
        endpoint: String,
        user: String,
        limit: u32,
        counting: Counting,
    ) -> AsyncResult<'_, RateCount>;

    /// Gives back what this process has counted for requests that did not come. To be called when it stops.
    fn return_reserved_requests(&self) -> AsyncResult<'_, ()>;
}

/// Announcements between processes that share a database. They are hints: one may be lost, and says only that it is worth reading.
pub trait EventAnnouncements: Send + Sync {
    /// Announces to all processes that events got numbers.
    fn announce_events(&self) -> AsyncResult<'_, ()>;

    /// Changes when a process has announced events, or announcements may have been lost.
    fn event_announcements(&self) -> watch::Receiver<()>;
}

/// All coordination traits together.
pub trait Coordination:
    Locks + LockRequests + Agents + Capacity + RateLimits + WakeUpQueue + EventAnnouncements
{
}

impl<T: Locks + LockRequests + Agents + Capacity + RateLimits + WakeUpQueue + EventAnnouncements> Coordination
    for T
{
}
