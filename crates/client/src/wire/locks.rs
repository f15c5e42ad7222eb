//! Locks, requests for them, tickets, holders and waiters on the wire.

use serde::{Deserialize, Serialize};

use super::Time;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Together with other sharers.
    Shared,
    /// Alone.
    Exclusive,
}

impl From<Mode> for ade_domain::lock::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Exclusive => Self::Exclusive,
        }
    }
}

impl From<ade_domain::lock::Mode> for Mode {
    fn from(mode: ade_domain::lock::Mode) -> Self {
        match mode {
            ade_domain::lock::Mode::Shared => Self::Shared,
            ade_domain::lock::Mode::Exclusive => Self::Exclusive,
        }
    }
}

/// A lock that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LockAsk {
    /// `task:ID` or `resource:TYPE:ID`; the id may have any characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)"))]
    pub lock: String,
    /// Exclusive, unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// A request for locks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// At most 100; they are taken in one order, all or none.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 100))]
    pub locks: Vec<LockAsk>,
    /// Who holds them; the caller itself, unless it may act for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which activity of the agent; activities exclude each other. The agent as a whole, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// Length of the leases: 30, and at most 300, unless configured otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<f64>,
    /// How long the answer is held open; with `queue`, how long the ticket waits (60).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<f64>,
    /// Answer with a ticket instead of holding the answer open.
    #[serde(default, skip_serializing_if = "is_false")]
    pub queue: bool,
    /// Shown to others, and decides which of two equally old holders gives way in a deadlock; the order of a queue does
    /// not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Shown to others: at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Makes the request repeatable: the same id with the same body answers how the request stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A lock that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The lock.
    pub lock: String,
    /// How it is held.
    pub mode: Mode,
    /// Larger than every earlier token of this lock; resources that check it turn former holders away.
    pub fencing_token: u64,
    /// Since when.
    pub acquired_at: Time,
    /// Until when, unless a heartbeat extends it.
    pub expires_at: Time,
}

/// Every lock of the request is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grants {
    /// In the order in which they were taken.
    pub grants: Vec<Grant>,
}

/// The state of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TicketStatus {
    /// In a queue.
    Waiting,
    /// Everything is held; claim it now.
    Ready,
    /// Claimed: the grants are in force.
    Granted,
}

/// A request that waits without an open answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ticket {
    /// What to poll and to claim with.
    pub ticket: String,
    /// Where it stands.
    pub status: TicketStatus,
    /// The lock whose queue it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Its position there; the head is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// When it gives up waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When a ready ticket is given to the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_by: Option<Time>,
    /// The grants, once claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// A lock and the token by which it is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeldLock {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)"))]
    pub lock: String,
    /// The token of its grant.
    pub fencing_token: u64,
}

/// A heartbeat for all locks of a holder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// Who holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which activity of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// At most 1,000.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1_000))]
    pub locks: Vec<HeldLock>,
    /// Seconds from now; a lease is never shortened. The default length of a lease, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_extension: Option<f64>,
    /// The caller's time, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
}

/// Locks to release or to downgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// Who holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which activity of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// At most 1,000.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1_000))]
    pub locks: Vec<HeldLock>,
}

/// What became of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldResult {
    /// The lock.
    pub lock: String,
    /// Whether it was done.
    pub ok: bool,
    /// `LOCK_LOST` if the token is not a current holder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How it is held now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Until when it is held now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// What became of every lock of a call, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldResults {
    /// One for each lock.
    pub results: Vec<HoldResult>,
}

/// Is this token a current holder's?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// The lock.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, pattern = "^(task:|resource:[^:]+:)"))]
    pub lock: String,
    /// The token.
    pub fencing_token: u64,
}

/// A token that is a current holder's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Verified {
    /// Always true; otherwise the answer is 409 `LOCK_LOST`.
    pub valid: bool,
    /// Whose it is.
    pub holder: LockHolder,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockHolder {
    /// The agent.
    pub agent_id: String,
    /// Which of its activities.
    pub holder_id: String,
    /// The token of its grant.
    pub fencing_token: u64,
    /// Since when.
    pub acquired_at: Time,
    /// Until when.
    pub expires_at: Time,
    /// What for.
    pub purpose: String,
    /// How often its lease was extended.
    pub heartbeat_count: u64,
}

/// Who waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockWaiter {
    /// The head is 1; that is the order of the grants.
    pub position: u64,
    /// The agent.
    pub agent_id: String,
    /// Which of its activities.
    pub holder_id: String,
    /// How it wants to hold.
    pub mode: Mode,
    /// How important it says to be.
    pub priority: i32,
    /// Since when.
    pub requested_at: Time,
    /// When it gives up.
    pub deadline: Time,
    /// What for.
    pub purpose: String,
}

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lock {
    /// Its name, as it was given.
    pub lock: String,
    /// How it is held; null if nobody holds it.
    pub mode: Option<Mode>,
    /// Who holds it.
    pub holders: Vec<LockHolder>,
    /// Who waits, in the order of the grants. In lists: the first twenty.
    pub queue: Vec<LockWaiter>,
    /// How many wait.
    pub queue_length: u64,
}

/// A holder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HolderRef {
    /// The agent.
    pub agent_id: String,
    /// Which of its activities.
    pub holder_id: String,
}

/// Someone waits for a lock, and who is in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GraphWait {
    /// The agent.
    pub agent_id: String,
    /// Which of its activities.
    pub holder_id: String,
    /// How it wants to hold.
    pub mode: Mode,
    /// What it waits for.
    pub waits_for: String,
    /// Who holds that.
    pub holders: Vec<HolderRef>,
    /// Who waits just before it and could not hold together with it.
    pub ahead: Vec<HolderRef>,
}

/// Who waits for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Graph {
    /// The waits: at most 1,000.
    pub waits: Vec<GraphWait>,
}

/// One step of a deadlock; the next one's holder is in the way, and the last waits for the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CycleEdge {
    /// The agent.
    pub agent_id: String,
    /// Which of its activities.
    pub holder_id: String,
    /// What it waited for.
    pub waits_for: String,
}

/// Who was taken a lock from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Broken {
    /// The lock.
    pub lock: String,
    /// Who held it; nobody, if it was free.
    pub holders: Vec<LockHolder>,
}
