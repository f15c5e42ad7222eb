//! Wire types of locks: requests, grants, tickets, holders, waiters and the wait graph.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Time;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Together with other shared holders.
    Shared,
    /// Alone.
    #[default]
    Exclusive,
}

/// A lock to acquire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LockSpec {
    /// Name: `task:ID` or `resource:TYPE:ID`. The id may contain any character.
    #[schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)")]
    pub lock: String,
    /// Mode; exclusive by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
}

/// Acquires locks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// Locks to acquire: all or none. At most 100; the server acquires them in one global order.
    #[schema(min_items = 1, max_items = 100)]
    pub locks: Vec<LockSpec>,
    /// Agent that holds the locks; the caller by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Activity of the agent. Locks of one activity exclude all other activities; by default, the agent as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// Lease in seconds; `lock:default_ttl` (30) by default, and at most `lock:max_ttl` (300).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<f64>,
    /// Time to wait for the locks. Without `queue` the response is held open for so long, and by default not at all;
    /// with `queue` a ticket waits for so long, 60 s by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Return a ticket instead of holding the response open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queue: bool,
    /// Shown to others, and selects the victim of a deadlock among equally old holders. It does not change the order of
    /// a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Shown to others; at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Makes the request idempotent: the same id with the same body returns the state of the earlier request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// A granted lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Name of the lock.
    pub lock: String,
    /// Mode in which it is held.
    pub mode: LockMode,
    /// Larger than every earlier token of this lock. A resource that checks tokens can reject former holders.
    pub fencing_token: u64,
    /// Start of the lease.
    pub acquired_at: Time,
    /// End of the lease, unless a heartbeat extends it.
    pub expires_at: Time,
    /// Send a heartbeat every so many seconds: the setting `lock:heartbeat_interval`, or earlier for a short lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_seconds: Option<f64>,
}

/// All locks of a request are granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Grants {
    /// The grants, in the order of acquisition.
    pub grants: Vec<Grant>,
}

/// Status of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TicketStatus {
    /// Waits in a queue, or is stored until Redis is back.
    Waiting,
    /// All locks are reserved: claim the ticket now.
    Ready,
    /// Claimed: the leases are running.
    Granted,
}

/// A lock request that waits without an open connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// Id to poll and to claim the ticket with.
    pub ticket: String,
    /// Status of the ticket.
    pub status: TicketStatus,
    /// The request arrived while Redis was unavailable and waits until it is back, in the order of arrival.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// Lock in whose queue it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Position in that queue; the head is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Time at which the wait ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Time until which a ready ticket must be claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_by: Option<Time>,
    /// The grants, once the ticket is claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// A lock with the fencing token of its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LockToken {
    /// Name of the lock.
    #[schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)")]
    pub lock: String,
    /// Fencing token of the grant.
    pub fencing_token: u64,
}

/// Extends the leases of held locks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// Agent that holds the locks; the caller by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Activity of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// Held locks; at most 1,000.
    #[schema(min_items = 1, max_items = 1_000)]
    pub locks: Vec<LockToken>,
    /// New lease in seconds from now, the default lease by default. A lease is never shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_extension: Option<f64>,
    /// The caller's time, as RFC 3339 or as a number of milliseconds since 1970; informational only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<ClientTime>,
}

/// The time of a client, in the form that it prefers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ClientTime {
    /// RFC 3339.
    Text(Time),
    /// Milliseconds since 1970-01-01T00:00:00Z.
    Number(f64),
}

/// Held locks to release or to downgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldLocksRequest {
    /// Agent that holds the locks; the caller by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Activity of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// Held locks; at most 1,000.
    #[schema(min_items = 1, max_items = 1_000)]
    pub locks: Vec<LockToken>,
}

/// The result for one held lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldLockResult {
    /// Name of the lock.
    pub lock: String,
    /// Whether the operation succeeded.
    pub ok: bool,
    /// `LOCK_LOST` if the token does not belong to a current holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Mode in which the lock is now held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<LockMode>,
    /// End of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// The results for all locks of a request, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldLockResults {
    /// One result per lock.
    pub results: Vec<HeldLockResult>,
    /// Redis is unavailable: the locks are released under their tokens once it is back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
}

/// Verifies that a fencing token belongs to a current holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyTokenRequest {
    /// Name of the lock.
    #[schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)")]
    pub lock: String,
    /// The token to verify.
    pub fencing_token: u64,
}

/// A fencing token that belongs to a current holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifiedToken {
    /// Always true; an invalid token is answered with 409 `LOCK_LOST`.
    pub valid: bool,
    /// The holder.
    pub holder: LockHolder,
}

/// A holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockHolder {
    /// The agent.
    pub agent_id: String,
    /// Activity of the agent.
    pub holder_id: String,
    /// Fencing token of the grant.
    pub fencing_token: u64,
    /// Start of the lease.
    pub acquired_at: Time,
    /// End of the lease, unless a heartbeat extends it.
    pub expires_at: Time,
    /// Purpose that the holder stated.
    pub purpose: String,
    /// Number of times the lease was extended.
    pub heartbeat_count: u64,
}

/// A waiter in the queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockWaiter {
    /// Position in the queue, in the order of grants; the head is 1.
    pub position: u64,
    /// The agent.
    pub agent_id: String,
    /// Activity of the agent.
    pub holder_id: String,
    /// Requested mode.
    pub mode: LockMode,
    /// Priority of the request.
    pub priority: i32,
    /// Time of the request.
    pub requested_at: Time,
    /// Time at which the wait ends.
    pub deadline: Time,
    /// Purpose that the waiter stated.
    pub purpose: String,
}

/// A lock with its holders and waiters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lock {
    /// Name, as it was given.
    pub lock: String,
    /// Mode in which it is held; null if it is free.
    pub mode: Option<LockMode>,
    /// Current holders.
    pub holders: Vec<LockHolder>,
    /// Waiters, in the order of grants; in lists only the first twenty.
    pub queue: Vec<LockWaiter>,
    /// Number of all waiters.
    pub queue_length: u64,
}

/// An agent and its activity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct HolderRef {
    /// The agent.
    pub agent_id: String,
    /// Activity of the agent.
    pub holder_id: String,
}

/// A waiter in the wait graph, with those it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitGraphEdge {
    /// The agent.
    pub agent_id: String,
    /// Activity of the agent.
    pub holder_id: String,
    /// Requested mode.
    pub mode: LockMode,
    /// Lock that it waits for.
    pub waits_for: String,
    /// Current holders of that lock.
    pub holders: Vec<HolderRef>,
    /// The waiters directly ahead of it with an incompatible mode.
    pub ahead: Vec<HolderRef>,
}

/// The wait graph: who waits for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitGraph {
    /// Waiters; at most 1,000.
    pub waits: Vec<WaitGraphEdge>,
}

/// An edge of a deadlock cycle: this holder waits for the holder of the next edge, and the last one for the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CycleEdge {
    /// The agent.
    pub agent_id: String,
    /// Activity of the agent.
    pub holder_id: String,
    /// Lock that it waited for.
    pub waits_for: String,
}

/// A lock that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BrokenLock {
    /// Name of the lock.
    pub lock: String,
    /// Former holders; empty if the lock was free.
    pub holders: Vec<LockHolder>,
}
