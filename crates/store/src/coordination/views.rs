//! Locks, waits, agents and lock events, for display.

use ade_domain::Moment;
use ade_domain::agent::{Agent, AgentProfile, AgentStatus};
use ade_domain::lock::{
    FencingToken, Hold, HoldView, Holder, Lock, LockChange, LockKind, LockMode, LockName, RequestKey, Waiter,
};

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFilter {
    /// The agent holds the lock or waits for it.
    pub agent: Option<String>,
    pub resource_type: Option<String>,
    pub kind: Option<LockKind>,
    /// A part of the name, in its normal form.
    pub name_part: Option<String>,
}

impl LockFilter {
    /// Whether a lock is listed. A lock without holders and waiters never is.
    #[must_use]
    pub fn matches(&self, name: &LockName, lock: &Lock) -> bool {
        let is_used_by = |agent: &str| {
            let is_holder = lock.holds().iter().any(|hold| hold.holder.agent_id() == agent);
            is_holder || lock.waiters().any(|waiter| waiter.holder.agent_id() == agent)
        };
        let is_used = lock.mode().is_some() || lock.queue_length() > 0;
        is_used && self.matches_name(name) && self.agent.as_deref().is_none_or(is_used_by)
    }

    /// The part of the filter that needs no more than the name.
    pub(crate) fn matches_name(&self, name: &LockName) -> bool {
        self.kind.is_none_or(|kind| name.kind() == kind)
            && self.resource_type.as_deref().is_none_or(|wanted| name.resource_type() == Some(wanted))
            && self.name_part.as_deref().is_none_or(|part| name.as_str().contains(part))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct LockView {
    pub lock: LockName,
    /// `None` if nobody holds it.
    pub mode: Option<LockMode>,
    pub holders: Vec<HoldView>,
    /// The waiters in order; only the first of them in a list of locks, and none in a glance.
    pub queue: Vec<Waiter>,
    /// The number of all waiters.
    pub queue_length: usize,
}

impl LockView {
    /// A view with at most `limit` holders and `limit` waiters.
    #[must_use]
    pub fn new(name: &LockName, lock: Option<&Lock>, limit: usize) -> Self {
        let holds = lock.map_or(&[][..], Lock::holds);
        Self {
            lock: name.clone(),
            mode: lock.and_then(Lock::mode),
            holders: holds.iter().take(limit).map(Hold::view).collect(),
            queue: lock.into_iter().flat_map(Lock::waiters).take(limit).cloned().collect(),
            queue_length: lock.map_or(0, Lock::queue_length),
        }
    }

    /// A view without waiters and without expired holders.
    pub(crate) fn peek(name: &LockName, lock: Option<&Lock>, now: Moment) -> Self {
        let holds = lock.map_or(&[][..], Lock::holds).iter();
        let holders: Vec<_> = holds.filter(|hold| hold.expires_at > now).map(Hold::view).collect();
        Self {
            lock: name.clone(),
            mode: lock.and_then(Lock::mode).filter(|_| !holders.is_empty()),
            holders,
            queue: Vec::new(),
            queue_length: lock.map_or(0, Lock::queue_length),
        }
    }
}

/// A wait, and who blocks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    pub holder: Holder,
    pub lock: LockName,
    pub mode: LockMode,
    pub request: RequestKey,
    pub holders: Vec<Holder>,
    /// Earlier waiters of an incompatible mode.
    pub ahead: Vec<Holder>,
}

impl WaitView {
    /// The wait of a holder, with at most `limit` holders and `limit` earlier waiters; `None` if it does not wait.
    pub(crate) fn new(name: &LockName, lock: &Lock, holder: &Holder, limit: usize) -> Option<Self> {
        let (waiter, ahead) = lock.waiter_and_blockers(holder)?;
        Some(Self {
            holder: holder.clone(),
            lock: name.clone(),
            mode: waiter.mode,
            request: waiter.request,
            holders: lock.holds().iter().take(limit).map(|hold| hold.holder.clone()).collect(),
            ahead: ahead.into_iter().take(limit).map(|waiter| waiter.holder.clone()).collect(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentView {
    pub agent_id: String,
    pub profile: AgentProfile,
    pub max_tasks: u32,
    /// Tasks that the agent has claimed.
    pub active_tasks: usize,
    /// Tasks that wait until the agent has capacity.
    pub queued_tasks: usize,
    pub status: AgentStatus,
    pub last_heartbeat: Moment,
}

impl AgentView {
    /// The view at the time `now`.
    #[must_use]
    pub fn new(agent_id: &str, agent: &Agent, now: Moment) -> Self {
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
    pub kind: LockEventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEventKind {
    Acquired(Holder, FencingToken),
    /// A waiter has the lock.
    Promoted(Holder, FencingToken),
    Queued(Holder),
    /// A wait ended without a grant, with the reason.
    WaitEnded(Holder, &'static str),
    /// A hold ended, with the reason.
    Released(Holder, FencingToken, &'static str),
    /// A request was refused because the queue is full.
    QueueFull,
}

impl LockEventKind {
    /// The event of a change; `None` for internal changes.
    #[must_use]
    pub fn from_change(change: &LockChange) -> Option<Self> {
        Some(match change {
            LockChange::Granted(hold) => Self::Acquired(hold.holder.clone(), hold.token),
            LockChange::Promoted(hold) => Self::Promoted(hold.holder.clone(), hold.token),
            LockChange::Queued(waiter) => Self::Queued(waiter.holder.clone()),
            LockChange::WaitEnded { holder, reason, .. } => Self::WaitEnded(holder.clone(), reason.as_str()),
            LockChange::HoldEnded { holder, token, reason } => {
                Self::Released(holder.clone(), *token, reason.as_str())
            }
            LockChange::RefusalCounted(_) => Self::QueueFull,
            _ => return None,
        })
    }
}
