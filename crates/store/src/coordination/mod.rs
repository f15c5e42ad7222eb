//! The coordination port: locks and their queues, requests that may be repeated, agents, whether they are alive and how much they
//! do, how often somebody may ask, and calls that wake workers.
//!
//! A command to a lock is one atomic step on that lock alone. Nothing here waits, except for calls: a caller that waits
//! watches its request and asks again; what it hears is a hint, what it reads is the truth.

mod jobs;
mod views;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::Profile;
use ade_domain::lock::{Answer, Deadlock, LockCommand, LockLimits, LockName, LockRequest, RequestKey};
use tokio::sync::broadcast;

pub use jobs::{Job, Jobs, Moved, WakeAt, WakeUp};
pub(crate) use jobs::{
    LONGEST_WAIT, MOST_AT_ONCE, MOST_SCHEDULED, MOST_WAITING, checked_lock, job_named, queue_named,
    queues_named,
};
pub use views::{AgentView, Filter, LockEvent, LockEventKind, LockView, WaitView};
pub use watch::{Subscription, Subscriptions};

/// An answer that takes a while.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, CoordinationError>> + Send + 'a>>;

/// The backend cannot answer now. What was asked may have happened: repeat it with the same request id, or look.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("coordination is not available: {0}")]
pub struct CoordinationError(pub String);

/// How much there is of everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants in force.
    pub held: usize,
    /// Requests in queues.
    pub waiting: usize,
    /// Agents that are known.
    pub agents: usize,
}

/// Locks.
pub trait Locks: Send + Sync {
    /// Commands to locks, each one atomic step, in order. Whoever queues and closes a cycle ends it in the same call.
    fn commands(&self, commands: Vec<(LockName, LockCommand)>) -> Reply<'_, Vec<Answer>>;

    /// One lock as people see it; a lock that nobody holds or waits for has neither holders nor queue.
    fn look(&self, lock: LockName) -> Reply<'_, LockView>;

    /// Locks by name, from the first one after `after`, with the heads of their queues.
    fn list(&self, filter: Filter, after: Option<LockName>, limit: usize) -> Reply<'_, Vec<LockView>>;

    /// Who waits for whom: at most `limit` waits.
    fn waits(&self, limit: usize) -> Reply<'_, Vec<WaitView>>;

    /// How much there is of everything.
    fn counts(&self) -> Reply<'_, Counts>;

    /// Carries out what is due without anybody asking: leases and waits that ended, agents that went silent, cycles that
    /// were left over. May be called by any number of servers at any time.
    fn sweep(&self) -> Reply<'_, Vec<Deadlock>>;

    /// Hints that something happened to a request.
    fn watch(&self, request: RequestKey) -> Subscription;

    /// What happens to locks, best effort: who listens too slowly misses some.
    fn events(&self) -> broadcast::Receiver<Arc<LockEvent>>;

    /// The rules in force.
    fn rules(&self) -> &LockLimits;

    /// The time by the clock of the store.
    fn now(&self) -> Moment;
}

/// What is remembered of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Registration {
    /// It was not known.
    New,
    /// It is repeated.
    Same,
    /// Its id was used for another one.
    Other,
}

/// A request that waits with a ticket.
#[derive(Debug, Clone, PartialEq)]
pub struct Ticket {
    /// The request.
    pub request: LockRequest,
    /// When it gives up.
    pub deadline: Moment,
}

/// Requests that may be repeated, and tickets.
pub trait Requests: Send + Sync {
    /// Remembers a request until `until`, with its ticket if it waits with one.
    fn remember(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> Reply<'_, Registration>;

    /// Forgets a request that was refused, so that its id may be used again.
    fn forget(&self, key: RequestKey) -> Reply<'_, ()>;

    /// The request of a ticket.
    fn recall(&self, key: RequestKey) -> Reply<'_, Option<Ticket>>;
}

/// What an agent's registration says; `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentUpdate {
    /// What is said about it.
    pub profile: Option<Profile>,
    /// How many tasks at once.
    pub max_tasks: Option<u32>,
    /// Whether it takes nothing new.
    pub draining: Option<bool>,
}

/// Agents.
pub trait Agents: Send + Sync {
    /// Registers an agent under a free name, or changes one. `None` if `create` and the name is taken, or if not `create`
    /// and the name is unknown.
    fn put(&self, agent_id: String, update: AgentUpdate, create: bool) -> Reply<'_, Option<AgentView>>;

    /// One agent.
    fn agent(&self, agent_id: String) -> Reply<'_, Option<AgentView>>;

    /// Agents by id, from the first one after `after`.
    fn agents(&self, after: Option<String>, limit: usize) -> Reply<'_, Vec<AgentView>>;

    /// Removes an agent; whether it was known.
    fn remove(&self, agent_id: String) -> Reply<'_, bool>;

    /// The agent was heard of. An unknown one is registered by its name alone; `false` if there are too many of those.
    fn heard(&self, agent_id: String) -> Reply<'_, bool>;

    /// Counts the locks of an acquisition; the moment to come back if the agent asks for too many.
    fn admit(&self, agent_id: String, locks: u32) -> Reply<'_, Result<(), Moment>>;
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapacityClaim {
    /// The agent has the task until the moment that was asked for, or longer.
    Yes,
    /// It does as much as it may. The task counts as queued until it is claimed or given back, or its claim would have ended.
    Full,
    /// It takes nothing new.
    Draining,
    /// Nobody knows it, and there are too many agents that were only named.
    Unknown,
}

/// How much agents do at once.
pub trait Capacity: Send + Sync {
    /// Takes a task on for an agent until a moment by the clock of the store, after which it does not count any more. Repeated,
    /// it renews the claim, also when the agent takes nothing new, and never makes it shorter. An unknown agent is
    /// registered by its name alone.
    fn claim(&self, agent_id: String, task_id: String, until: Moment) -> Reply<'_, CapacityClaim>;

    /// Gives a task back, done or not, or stops waiting for room. Of whom or what nothing is known, nothing needs to be done.
    fn unclaim(&self, agent_id: String, task_id: String) -> Reply<'_, ()>;
}

/// How often somebody has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateCount {
    /// Whether this one may pass. One that may not is not counted.
    pub allowed: bool,
    /// How many may pass in a minute.
    pub most: u32,
    /// How many more may pass before `reset_at`.
    pub remaining: u32,
    /// When counting begins anew.
    pub reset_at: Moment,
}

/// How often somebody may ask.
pub trait Limits: Send + Sync {
    /// Counts a request to an endpoint in the minute that began with the first one. Endpoints are those of the catalog of keys,
    /// as `tasks:create`; any other, and nobody's requests, are refused as unavailable. What was counted may be forgotten,
    /// never invented.
    fn count(&self, endpoint: String, who: String, most: u32) -> Reply<'_, RateCount>;
}

/// Everything that coordinates.
pub trait Coordination: Locks + Requests + Agents + Capacity + Limits + Jobs {}

impl<T: Locks + Requests + Agents + Capacity + Limits + Jobs> Coordination for T {}
