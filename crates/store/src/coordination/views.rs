//! Locks, waits, agents and lock events, for display.

use ade_domain::Moment;
use ade_domain::agent::{Agent, Profile, Status};
use ade_domain::lock::{
    Change, HeldBy, Hold, Holder, Lock, LockKind, LockName, Mode, RequestKey, Token, Waiter,
};

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The agent holds the lock or waits for it.
    pub agent: Option<String>,
    pub resource_type: Option<String>,
    pub kind: Option<LockKind>,
}

impl Filter {
    /// Whether a lock is listed. A lock without holders and waiters never is.
    #[must_use]
    pub fn admits(&self, name: &LockName, lock: &Lock) -> bool {
        let is_used_by = |agent: &str| {
            let is_holder = lock.holds().iter().any(|hold| hold.holder.agent_id() == agent);
            is_holder || lock.waiters().any(|waiter| waiter.holder.agent_id() == agent)
        };
        let is_used = lock.mode().is_some() || lock.queue_length() > 0;
        is_used
            && self.kind.is_none_or(|kind| name.kind() == kind)
            && self.resource_type.as_deref().is_none_or(|wanted| name.resource_type() == Some(wanted))
            && self.agent.as_deref().is_none_or(is_used_by)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct LockView {
    pub lock: LockName,
    /// `None` if nobody holds it.
    pub mode: Option<Mode>,
    pub holders: Vec<HeldBy>,
    /// The waiters in order; only the first of them in a list of locks.
    pub queue: Vec<Waiter>,
    /// The number of all waiters.
    pub queue_length: usize,
}

impl LockView {
    /// A view with at most `limit` holders and `limit` waiters.
    #[must_use]
    pub fn of(name: &LockName, lock: Option<&Lock>, limit: usize) -> Self {
        let holds = lock.map_or(&[][..], Lock::holds);
        Self {
            lock: name.clone(),
            mode: lock.and_then(Lock::mode),
            holders: holds.iter().take(limit).map(Hold::held_by).collect(),
            queue: lock.into_iter().flat_map(Lock::waiters).take(limit).cloned().collect(),
            queue_length: lock.map_or(0, Lock::queue_length),
        }
    }
}

/// A wait, and who blocks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    pub holder: Holder,
    pub lock: LockName,
    pub mode: Mode,
    pub request: RequestKey,
    pub holders: Vec<Holder>,
    /// Earlier waiters of an incompatible mode.
    pub ahead: Vec<Holder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentView {
    pub agent_id: String,
    pub profile: Profile,
    pub max_tasks: u32,
    /// Tasks that the agent has claimed.
    pub active_tasks: usize,
    /// Tasks that wait until the agent has capacity.
    pub queued_tasks: usize,
    pub status: Status,
    pub last_heartbeat: Moment,
}

impl AgentView {
    /// The view at the time `now`.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockEvent {
    pub lock: LockName,
    pub at: Moment,
    pub event: LockEventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEventKind {
    Acquired(Holder, Token),
    Queued(Holder),
    /// A wait ended without a grant, with the reason.
    Left(Holder, &'static str),
    /// A hold ended, with the reason.
    Freed(Holder, Token, &'static str),
    /// A request was refused because the queue is full.
    QueueFull,
}

impl LockEventKind {
    /// The event of a change; `None` for internal changes.
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
