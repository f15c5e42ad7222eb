//! What can be asked of one lock, what it answers, and what it changed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::machine::Hold;
use super::queue::{Score, Waiter};
use super::{Cycle, Holder, Mode, RequestKey, Text, Token};
use crate::Moment;

/// A wish for a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Acquire {
    /// Who wants it.
    pub holder: Holder,
    /// The request, which may be a repetition.
    pub request: RequestKey,
    /// Whether the request must not come back once it is over: it has an id of its caller's.
    pub remember: bool,
    /// How.
    pub mode: Mode,
    /// How long a grant lasts from its claim.
    pub ttl_ms: u64,
    /// Whether a grant counts as claimed: yes for a single lock, not yet while others are still to be taken.
    pub claimed: bool,
    /// Whether to queue, and for how long; `None` takes no for an answer.
    pub wait: Option<Wait>,
    /// What for.
    pub purpose: Text,
    /// Carried and shown.
    pub priority: i32,
}

/// How a request waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// For how long.
    pub ms: u64,
    /// The server that holds the request open; none for a ticket, which is polled.
    pub served_by: Option<Text>,
}

/// A command to one lock.
#[derive(Debug, Clone, PartialEq)]
pub enum LockCommand {
    /// Take it, or queue for it, or learn how that stands.
    Acquire(Acquire),
    /// Start the lease of a grant.
    Claim {
        /// Whose.
        holder: Holder,
        /// The request that won it.
        request: RequestKey,
        /// How long it lasts from now.
        ttl_ms: u64,
    },
    /// Hold an unclaimed grant a little longer, while other locks of the request are waited for.
    Keep {
        /// Whose.
        holder: Holder,
        /// The request that won it.
        request: RequestKey,
        /// How long it lasts from now.
        ms: u64,
    },
    /// Heartbeat: extend the lease, never shorten it.
    Extend {
        /// Whose.
        holder: Holder,
        /// The token of the grant.
        token: Token,
        /// How long it lasts from now.
        ms: u64,
    },
    /// Give it up.
    Release {
        /// Whose.
        holder: Holder,
        /// The token of the grant.
        token: Token,
    },
    /// From exclusive to shared, with the same token.
    Downgrade {
        /// Whose.
        holder: Holder,
        /// The token of the grant.
        token: Token,
    },
    /// Is this token a current holder's?
    Verify {
        /// The token.
        token: Token,
    },
    /// How does this request stand? Changes nothing.
    Inquire {
        /// Whose.
        holder: Holder,
        /// The request.
        request: RequestKey,
    },
    /// Leave the queue, or give back what the request won. A lease that has begun belongs to whoever was told of it: only
    /// [`End::Cancelled`], the wish of its holder, ends it.
    Cancel {
        /// Whose.
        holder: Holder,
        /// The request.
        request: RequestKey,
        /// Why; some ends are not remembered, so that the request may be tried again.
        why: End,
        /// Whether whoever cancels has begun the lease itself, and told nobody.
        begun: bool,
    },
    /// The caller hung up on this server: the same as a cancellation, unless another server serves the request by now.
    HangUp {
        /// Whose.
        holder: Holder,
        /// The request.
        request: RequestKey,
        /// The server that was hung up on.
        server: Text,
        /// Whether nobody else can have been told that the lease began: then it ends too.
        begun: bool,
    },
    /// Take it from all its holders.
    Break,
    /// A holder has been chosen to end a deadlock: its wait for this lock fails and its hold of it is freed.
    Abort {
        /// The victim.
        holder: Holder,
        /// The request that must still wait here, or nothing is done: what was seen of the cycle may be over.
        waits_by: Option<RequestKey>,
        /// The cycle.
        cycle: Arc<Cycle>,
    },
    /// The server that serves some of the waiters is alive.
    Mark {
        /// The server.
        server: Text,
    },
    /// Nothing but what is due.
    Tick,
    /// The same, and waiters of servers that were silent for too long leave, wherever they stand.
    Sweep,
}

impl LockCommand {
    /// Whom it is about, if about one holder.
    #[must_use]
    pub const fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Acquire(Acquire { holder, .. })
            | Self::Claim { holder, .. }
            | Self::Keep { holder, .. }
            | Self::Extend { holder, .. }
            | Self::Release { holder, .. }
            | Self::Downgrade { holder, .. }
            | Self::Inquire { holder, .. }
            | Self::Cancel { holder, .. }
            | Self::HangUp { holder, .. }
            | Self::Abort { holder, .. } => Some(holder),
            Self::Verify { .. } | Self::Break | Self::Mark { .. } | Self::Tick | Self::Sweep => None,
        }
    }
}

/// A grant as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// How it is held.
    pub mode: Mode,
    /// Its fencing token.
    pub token: Token,
    /// Since when.
    pub acquired_at: Moment,
    /// Until when.
    pub expires_at: Moment,
    /// Whether its lease has begun.
    pub claimed: bool,
}

/// Someone who is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    /// Who.
    pub holder: Holder,
    /// Its grant.
    pub grant: Grant,
    /// What for.
    pub purpose: Text,
    /// How often it was heard of.
    pub heartbeat_count: u64,
}

/// How a request for this lock stands, if it is not held and not waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockRefusal {
    /// Others hold it or were first, and the request does not wait.
    Held {
        /// The first of the holders.
        holders: Vec<HeldBy>,
        /// How many wait.
        queue_length: usize,
    },
    /// Too many wait already.
    QueueFull {
        /// How many wait.
        queue_length: usize,
    },
    /// Too many were turned away lately; come back later.
    Contention {
        /// When.
        retry_at: Moment,
    },
    /// It was granted, but too few replicas of the store had it in time, so it was given back.
    Unconfirmed {
        /// How many had it.
        acks: u32,
        /// How many must.
        wanted: u32,
    },
}

/// How a request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It holds the lock.
    Held(Grant),
    /// It waits.
    Waiting {
        /// The head of the queue is 1.
        position: usize,
        /// When it gives up.
        deadline: Moment,
    },
    /// It was refused and left no trace.
    Refused(LockRefusal),
    /// It is over, and why.
    Over(End),
}

/// What a lock answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// To acquire and inquire: how the request stands.
    Standing(Standing),
    /// To claim, keep, extend, downgrade: the grant as it is now.
    Kept(Grant),
    /// To verify: whose token it is.
    Valid(HeldBy),
    /// The token or the request is not a current holder's. Nothing was changed.
    Lost,
    /// Done.
    Done,
    /// To break: who held it.
    Broken(Vec<HeldBy>),
}

/// How a grant or a wait comes to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Given up by its holder.
    Released,
    /// The lease ran out.
    Expired,
    /// Granted to a waiter that did not come to claim it.
    Unclaimed,
    /// Taken away by an administrator.
    Broken,
    /// Cancelled by the caller.
    Cancelled,
    /// The caller hung up while its answer was held open.
    HungUp,
    /// Another lock of the same request was refused.
    Refused,
    /// Waited as long as it wanted to.
    TimedOut,
    /// A newer request of the same holder took the place.
    Superseded,
    /// The server that held it open is gone.
    ServerSilent,
    /// The agent has not been heard of for too long.
    AgentOffline,
    /// Chosen to end a deadlock.
    Deadlock(Arc<Cycle>),
}

impl End {
    /// Whether it ends a grant that nobody was told of, so that what was held before it is held again.
    #[must_use]
    pub const fn is_given_back(&self) -> bool {
        matches!(self, Self::Unclaimed | Self::Cancelled | Self::HungUp | Self::Refused | Self::TimedOut)
    }

    /// Whether a repetition of the request is told so, instead of trying anew.
    #[must_use]
    pub const fn is_remembered(&self) -> bool {
        !matches!(self, Self::TimedOut | Self::Refused | Self::ServerSilent | Self::HungUp)
    }

    /// The end that a word stands for; a deadlock is more than a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        let all = [
            Self::Released,
            Self::Expired,
            Self::Unclaimed,
            Self::Broken,
            Self::Cancelled,
            Self::HungUp,
            Self::Refused,
            Self::TimedOut,
            Self::Superseded,
            Self::ServerSilent,
            Self::AgentOffline,
        ];
        all.into_iter().find(|end| end.word() == word)
    }

    /// The word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Unclaimed => "unclaimed",
            Self::Broken => "broken",
            Self::Cancelled => "cancelled",
            Self::HungUp => "hung_up",
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Superseded => "superseded",
            Self::ServerSilent => "server_silent",
            Self::AgentOffline => "agent_offline",
            Self::Deadlock(_) => "deadlock",
        }
    }
}

/// One change of one lock. Applied in order to an empty lock, all its changes give its state: a backend journals them,
/// derives its indexes from them and publishes what people may want to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// What is left of a lock that forgot everything else: its last token and score.
    Fenced(Token, Score),
    /// Someone queues.
    Queued(Waiter),
    /// A waiter that asked again is served by another server now, or waits longer.
    Served {
        /// Who waits.
        holder: Holder,
        /// The server; none for a ticket.
        by: Option<Text>,
        /// When it gives up.
        deadline: Moment,
    },
    /// A waiter leaves without the lock.
    Left {
        /// Who.
        holder: Holder,
        /// Its request.
        request: RequestKey,
        /// Why.
        why: End,
    },
    /// Someone holds the lock from now on; if it waited, it left the queue.
    Granted(Hold),
    /// A holder's further request shares its grant.
    Joined {
        /// Whose.
        holder: Holder,
        /// The request.
        request: RequestKey,
        /// Whether it must not come back once the grant is over.
        remember: bool,
    },
    /// One of several requests that share a grant does not need it any more.
    Parted {
        /// Whose.
        holder: Holder,
        /// The request.
        request: RequestKey,
    },
    /// The lease has begun.
    Claimed {
        /// Whose.
        holder: Holder,
        /// Until when.
        expires_at: Moment,
    },
    /// The lease is longer.
    Extended {
        /// Whose.
        holder: Holder,
        /// The token of the grant, or of the shared one under an upgrade that is not claimed yet.
        token: Token,
        /// Until when.
        expires_at: Moment,
        /// Heartbeats so far.
        heartbeat_count: u64,
    },
    /// From exclusive to shared.
    Downgraded {
        /// Whose.
        holder: Holder,
    },
    /// Nobody holds by this grant any more.
    Freed {
        /// Who did.
        holder: Holder,
        /// Its token.
        token: Token,
        /// Why.
        why: End,
    },
    /// A request is over and must not come back.
    Gone {
        /// The request.
        request: RequestKey,
        /// Why.
        why: End,
        /// How long that is remembered.
        until: Moment,
    },
    /// A server was silent for too long, and none of its waiters is left.
    Silenced {
        /// The server.
        server: Text,
    },
    /// A server that serves waiters is alive.
    Marked {
        /// The server.
        server: Text,
        /// When it said so.
        at: Moment,
    },
    /// Someone was turned away because the queue is full.
    Crowded {
        /// Since when they are counted.
        since: Moment,
        /// How many.
        count: u32,
        /// Until when everybody is turned away.
        until: Moment,
    },
}

/// What a step of the machine gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The answer.
    pub outcome: Outcome,
    /// What changed, in order. Empty if nothing did.
    pub changes: Vec<Change>,
}
