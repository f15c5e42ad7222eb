//! Locks, waits, agents and events as people see them.

use ade_domain::Moment;
use ade_domain::agent::{Agent, Profile, Status};
use ade_domain::lock::{
    Change, HeldBy, Hold, Holder, Lock, LockKind, LockName, Mode, RequestKey, Token, Waiter,
};

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Held or waited for by this agent.
    pub agent: Option<String>,
    /// Of resources of this type.
    pub resource_type: Option<String>,
    /// Of this kind.
    pub kind: Option<LockKind>,
}

impl Filter {
    /// Whether a lock is listed.
    #[must_use]
    pub fn admits(&self, name: &LockName, lock: &Lock) -> bool {
        let of_agent = |agent: &str| {
            let holds = lock.holds().iter().any(|hold| hold.holder.agent_id() == agent);
            holds || lock.waiters().any(|waiter| waiter.holder.agent_id() == agent)
        };
        let used = lock.mode().is_some() || lock.queue_length() > 0;
        used && self.kind.is_none_or(|kind| name.kind() == kind)
            && self.resource_type.as_deref().is_none_or(|wanted| name.resource_type() == Some(wanted))
            && self.agent.as_deref().is_none_or(of_agent)
    }
}

/// A lock.
#[derive(Debug, Clone, PartialEq)]
pub struct LockView {
    /// Its name.
    pub lock: LockName,
    /// How it is held, if it is.
    pub mode: Option<Mode>,
    /// Who holds it.
    pub holders: Vec<HeldBy>,
    /// Who waits, in order; the first of them in a list of locks.
    pub queue: Vec<Waiter>,
    /// How many wait.
    pub queue_length: usize,
}

impl LockView {
    /// A lock with at most so many holders and waiters.
    #[must_use]
    pub fn of(name: &LockName, lock: Option<&Lock>, most: usize) -> Self {
        let holds = lock.map_or(&[][..], Lock::holds);
        Self {
            lock: name.clone(),
            mode: lock.and_then(Lock::mode),
            holders: holds.iter().take(most).map(Hold::held_by).collect(),
            queue: lock.into_iter().flat_map(Lock::waiters).take(most).cloned().collect(),
            queue_length: lock.map_or(0, Lock::queue_length),
        }
    }
}

/// A wait, and in whose way it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    /// Who waits.
    pub holder: Holder,
    /// For which lock.
    pub lock: LockName,
    /// How.
    pub mode: Mode,
    /// By which request.
    pub request: RequestKey,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits just before it and could not hold together with it.
    pub ahead: Vec<Holder>,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentView {
    /// Its id.
    pub agent_id: String,
    /// What is said about it.
    pub profile: Profile,
    /// How many tasks at once.
    pub max_tasks: u32,
    /// Tasks it is doing.
    pub active_tasks: usize,
    /// Tasks that wait for it.
    pub queued_tasks: usize,
    /// Whether it takes work.
    pub status: Status,
    /// When it was last heard of.
    pub last_heartbeat: Moment,
}

impl AgentView {
    /// An agent at a moment.
    #[must_use]
    pub fn of(agent_id: &str, agent: &Agent, now: Moment) -> Self {
        Self {
            agent_id: agent_id.to_owned(),
            profile: agent.profile.clone(),
            max_tasks: agent.max_tasks,
            active_tasks: agent.active_tasks(now),
            queued_tasks: agent.queued_tasks(now),
            status: agent.status(now),
            last_heartbeat: agent.last_heartbeat,
        }
    }
}

/// Something that happened to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockEvent {
    /// Which lock.
    pub lock: LockName,
    /// When.
    pub at: Moment,
    /// What.
    pub event: LockEventKind,
}

/// What may happen to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEventKind {
    /// Someone holds it.
    Acquired(Holder, Token),
    /// Someone waits for it.
    Queued(Holder),
    /// Someone stopped waiting, and why.
    Left(Holder, &'static str),
    /// Someone does not hold it any more, and why.
    Freed(Holder, Token, &'static str),
    /// Someone was turned away from a full queue.
    QueueFull,
}

impl LockEventKind {
    /// What a change means to people, if anything.
    #[must_use]
    pub fn of(change: &Change) -> Option<Self> {
        Some(match change {
            Change::Granted(hold) => Self::Acquired(hold.holder.clone(), hold.token),
            Change::Queued(waiter) => Self::Queued(waiter.holder.clone()),
            Change::Left { holder, why, .. } => Self::Left(holder.clone(), why.word()),
            Change::Freed { holder, token, why } => Self::Freed(holder.clone(), *token, why.word()),
            Change::Crowded { .. } => Self::QueueFull,
            _ => return None,
        })
    }
}
