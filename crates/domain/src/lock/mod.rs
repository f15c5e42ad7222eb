//! Locks: leases with fencing tokens, fair queues and deadlock detection.
//!
//! Two layers. The state machine of one lock ([`Lock`]) executes a [`LockCommand`] at a [`Moment`](crate::Moment) and
//! returns a [`LockOutcome`] with the list of every [`LockChange`] it made: a backend stores, publishes and replays these
//! changes. The [`saga`] acquires several locks one by one in a global order, or releases them all. [`LockTable`] holds
//! many locks with the indexes that the wait-for [`graph`] needs.
//!
//! Invariants, checked by the tests: incompatible holders never coexist; nobody overtakes an earlier waiter, except a
//! holder that upgrades; a fencing token is larger than every earlier token of its lock; after each command, the head of
//! the queue waits only if it cannot be granted; a released or cancelled request cannot be revived by a late retry.

mod command;
mod execute;
mod expiry;
mod fencing;
pub mod graph;
mod holder_index;
mod limits;
mod machine;
mod name;
mod parted_map;
mod queue;
mod ranges;
mod request;
mod request_key;
pub mod saga;
mod sliced_snapshot;
mod table;

pub use command::{
    AcquireStatus, Acquisition, EndReason, Grant, HoldView, LockChange, LockCommand, LockCommandResult,
    LockOutcome, LockRefusal, UnreportedLease, WaitOptions,
};
pub use execute::{MAX_REFUSAL_HOLDERS, MIN_WAIT_EXTENSION_MS};
pub use fencing::FencingToken;
pub use graph::{Cycle, Deadlock, WaitEdge};
pub use limits::{LockLimits, MAX_TTL_MS};
pub use machine::{CircuitBreaker, Hold, Lock, MAX_REQUESTS_PER_HOLD};
pub use name::{Holder, InvalidName, LockKind, LockMode, LockName, SharedStr};
pub use queue::{QueueKey, QueueScore, Waiter};
pub use request::{
    LockRequest, LockRequestDraft, MAX_LOCKS_PER_REQUEST, RequestedLock, WaitPolicy, parse_ttl_ms,
};
pub use request_key::{InvalidRequestKey, RequestKey, digest};
pub use table::{LockReply, LockTable, TableChange};
