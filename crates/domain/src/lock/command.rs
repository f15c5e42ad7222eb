//! The commands of one lock, their outcomes, and the changes they make to its state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::machine::{CircuitBreaker, Hold};
use super::queue::{QueueScore, Waiter};
use super::{Cycle, FencingToken, Holder, LockMode, LockName, RequestKey, SharedStr};
use crate::Moment;

#[derive(Debug, Clone, PartialEq)]
pub struct Acquisition {
    pub holder: Holder,
    /// Identifies the request; a retry has the same key.
    pub request: RequestKey,
    /// Whether the end of the request leaves a tombstone, so that a late retry cannot revive it.
    pub leave_tombstone: bool,
    pub mode: LockMode,
    /// The lease runs for this time from the claim.
    pub ttl_ms: u64,
    /// Whether a grant starts its lease at once: true for a single lock, false while more locks are to be acquired.
    pub claimed: bool,
    /// `None` refuses the request if the lock is not free.
    pub wait: Option<WaitOptions>,
    pub purpose: SharedStr,
    /// Informational; the queue order ignores it.
    pub priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitOptions {
    pub timeout_ms: u64,
    /// The server that keeps the caller's connection open; `None` for a ticket, which is polled.
    pub served_by: Option<SharedStr>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum LockCommand {
    /// Grants the lock, queues the request or refuses it. A retry returns the current status of the request.
    Acquire(Acquisition),
    /// Starts the lease of a grant.
    Claim { holder: Holder, request: RequestKey, ttl_ms: u64 },
    /// Extends an unclaimed grant while its request waits for its other locks.
    ExtendUnclaimed { holder: Holder, request: RequestKey, ttl_ms: u64 },
    /// Holder heartbeat: extends the lease, never shortens it.
    Extend { holder: Holder, token: FencingToken, ttl_ms: u64 },
    /// Ends the hold with this token. `server` is the one that sends the command and learns from its reply who holds the lock
    /// next: a waiter for a single lock that it serves is granted with its lease started, and needs no claim. `None` if the
    /// sender serves no waiters, or must claim each grant by itself.
    Release { holder: Holder, token: FencingToken, server: Option<SharedStr> },
    /// Gives back a lease that started with a promotion, because no caller got it. Nothing happens once the request was
    /// repeated: then its caller has the grant.
    ReturnUnreported { holder: Holder, lease: UnreportedLease },
    /// Changes an exclusive hold to shared; the token stays the same.
    Downgrade { holder: Holder, token: FencingToken },
    /// Checks whether the token belongs to a current holder.
    Verify { token: FencingToken },
    /// Reads the status of a request without changing it.
    Query { holder: Holder, request: RequestKey },
    /// Leaves the queue, or gives back the grant of the request. Some reasons leave no tombstone, so that the request can be
    /// retried.
    ///
    /// A claimed lease ends only for [`EndReason::Cancelled`], because its holder asked for it, or with `include_claimed`: set
    /// only by the server that claimed the lease itself and has not reported it to the caller.
    Cancel { holder: Holder, request: RequestKey, reason: EndReason, include_claimed: bool },
    /// The caller disconnected from this server: a cancellation, unless another server serves the request by now.
    /// `include_claimed` is set if no other server can have reported the lease to the caller.
    Disconnect { holder: Holder, request: RequestKey, server: SharedStr, include_claimed: bool },
    /// Takes the lock from all its holders, on behalf of an administrator.
    Break,
    /// Resolves a deadlock: ends the victim's wait for this lock and its hold on it. With an expected request, the victim must
    /// still wait here with it; otherwise the cycle is gone and nothing happens.
    Abort { holder: Holder, expected_request: Option<RequestKey>, cycle: Arc<Cycle> },
    /// The server that serves some of the waiters is alive.
    ServerHeartbeat { server: SharedStr },
    /// Processes only what is due: expired leases, timed-out waits and promotions.
    Tick,
    /// The same as [`Self::Tick`], and also removes all waiters of lost servers, at any position of the queue.
    Sweep,
}

/// A lease that started with a promotion, and that no caller got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreportedLease {
    /// The sender learned of it, but its caller did not take it.
    WithToken(FencingToken),
    /// Whichever a release by this server started for the request. The server sends the command itself: the reply to its release
    /// may be lost, and it has reported no grant of the request since it saw it waiting.
    StartedBy(SharedStr, RequestKey),
}

impl LockCommand {
    pub const fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Acquire(Acquisition { holder, .. })
            | Self::Claim { holder, .. }
            | Self::ExtendUnclaimed { holder, .. }
            | Self::Extend { holder, .. }
            | Self::Release { holder, .. }
            | Self::ReturnUnreported { holder, .. }
            | Self::Downgrade { holder, .. }
            | Self::Query { holder, .. }
            | Self::Cancel { holder, .. }
            | Self::Disconnect { holder, .. }
            | Self::Abort { holder, .. } => Some(holder),
            Self::Verify { .. } | Self::Break | Self::ServerHeartbeat { .. } | Self::Tick | Self::Sweep => {
                None
            }
        }
    }
}

/// A hold as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub mode: LockMode,
    pub token: FencingToken,
    pub acquired_at: Moment,
    pub expires_at: Moment,
    /// Whether the lease has started. Until then `expires_at` is the end of the claim window.
    pub claimed: bool,
}

/// A hold as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    pub holder: Holder,
    pub grant: Grant,
    pub purpose: SharedStr,
    pub heartbeat_count: u64,
}

/// Why a request was refused. A refusal leaves no trace: the request can be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockRefusal {
    /// The lock is held or others wait for it, and the request does not wait. Lists at most
    /// [`MAX_REFUSAL_HOLDERS`](super::MAX_REFUSAL_HOLDERS).
    Held { holders: Vec<HoldView>, queue_length: usize },
    /// As many requests wait as the limits allow.
    QueueFull { queue_length: usize },
    /// The circuit breaker of this lock is open after too many refusals for a full queue.
    CircuitOpen { retry_at: Moment },
    /// The grant reached too few replicas of the store in time and was given back.
    Unreplicated { acks: u32, required_acks: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcquireStatus {
    /// The lock is granted.
    Held(Grant),
    /// The position of the head of the queue is 1.
    Waiting { position: usize, deadline: Moment },
    /// The request neither holds the lock nor waits for it.
    Refused(LockRefusal),
    /// The request held the lock or waited for it.
    Ended(EndReason),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockOutcome {
    /// For acquire and query.
    Status(AcquireStatus),
    /// For commands that change a grant: claim, extend, downgrade.
    Updated(Grant),
    /// For verify.
    Valid(HoldView),
    /// No current hold or wait matches the token or the request. Nothing was changed.
    NotFound,
    Done,
    /// For break: the former holders.
    Broken(Vec<HoldView>),
}

impl LockOutcome {
    /// Whether a request for several locks goes on with its next command.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Status(AcquireStatus::Held(_)) | Self::Updated(_) | Self::Done)
    }
}

/// Why a hold or a wait ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EndReason {
    Released,
    Expired,
    /// The grant was not claimed in time.
    Unclaimed,
    /// Broken by an administrator.
    Broken,
    Cancelled,
    /// The caller disconnected while its request was open.
    #[strum(serialize = "hung_up")]
    Disconnected,
    /// Another lock of the same request was refused.
    Refused,
    TimedOut,
    /// Replaced by a newer request of the same holder.
    Superseded,
    /// The server that served the waiter is lost.
    #[strum(serialize = "server_silent")]
    ServerLost,
    /// The agent has sent no heartbeat for too long.
    AgentOffline,
    /// Aborted as the victim of a deadlock.
    Deadlock(Arc<Cycle>),
}

impl EndReason {
    /// Whether a grant that ends for this reason was never reported to its caller: an upgrade then falls back to the
    /// shared hold it replaced.
    pub const fn restores_previous_hold(&self) -> bool {
        matches!(
            self,
            Self::Unclaimed | Self::Cancelled | Self::Disconnected | Self::Refused | Self::TimedOut
        )
    }

    /// Whether a retry of the request gets this end as its status, instead of a new attempt.
    pub const fn leaves_tombstone(&self) -> bool {
        !matches!(self, Self::TimedOut | Self::Refused | Self::ServerLost | Self::Disconnected)
    }

    /// The lock that a victim of a deadlock waited for.
    pub fn awaited_lock(&self, victim: &Holder) -> Option<&LockName> {
        let Self::Deadlock(cycle) = self else { return None };
        cycle.iter().find(|edge| edge.holder == *victim).map(|edge| &edge.waits_for)
    }

    /// The reverse of [`Self::as_str`]. A deadlock is not found, because its cycle is missing.
    pub fn parse(word: &str) -> Option<Self> {
        word.parse().ok().filter(|reason| !matches!(reason, Self::Deadlock(_)))
    }

    /// The stored and published code; the Redis scripts use the same ones.
    pub fn as_str(&self) -> &'static str {
        self.into()
    }
}

/// One change of one lock. All changes of a lock, applied in order to an empty lock, reproduce its state: a backend
/// journals them, derives its indexes from them and publishes events from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockChange {
    /// The last token and score, which a snapshot must preserve.
    CountersAdvanced(FencingToken, QueueScore),
    /// A request waits in the queue.
    Queued(Waiter),
    /// A retry moved the waiter to another server, or extended its deadline.
    WaitRenewed { holder: Holder, served_by: Option<SharedStr>, deadline: Moment },
    /// A waiter left the queue without a grant.
    WaitEnded { holder: Holder, request: RequestKey, reason: EndReason },
    /// The holder has the lock; if it waited, it left the queue.
    Granted(Hold),
    /// A waiter has the lock, and left the queue.
    Promoted(Hold),
    /// Another request of the holder shares its grant. See [`Acquisition::leave_tombstone`].
    RequestJoined { holder: Holder, request: RequestKey, leave_tombstone: bool },
    /// One of several requests that share a grant no longer needs it.
    RequestDetached { holder: Holder, request: RequestKey },
    /// The lease has started.
    Claimed { holder: Holder, expires_at: Moment },
    /// The token is that of the hold, or of the shared hold below an unclaimed upgrade.
    Extended { holder: Holder, token: FencingToken, expires_at: Moment, heartbeat_count: u64 },
    /// The exclusive hold is shared from now on.
    Downgraded { holder: Holder },
    /// The holder lost the lock.
    HoldEnded { holder: Holder, token: FencingToken, reason: EndReason },
    /// The request has ended and must not be revived before the tombstone expires.
    TombstoneAdded { request: RequestKey, reason: EndReason, expires_at: Moment },
    /// The server is lost, and none of its waiters is left.
    ServerRemoved { server: SharedStr },
    /// The server that serves some of the waiters is alive.
    ServerHeartbeat { server: SharedStr, at: Moment },
    /// A request was refused because the queue is full. The circuit breaker counts these.
    RefusalCounted(CircuitBreaker),
}

#[derive(Debug, Clone, PartialEq)]
pub struct LockCommandResult {
    pub outcome: LockOutcome,
    /// In order; empty if the command changed nothing.
    pub changes: Vec<LockChange>,
}
