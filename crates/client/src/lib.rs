//! Wire types of the HTTP API, a typed client, a guard that holds locks, and a follower of events.
//!
//! The server uses the same wire types, so both sides always agree on the format. A lock guard never trusts a lease longer
//! than the server granted it, measured with a local clock from before the request was sent.

#![warn(missing_docs)]

mod error;
mod events;
mod guard;
mod http;
mod retry;
pub mod wire;

pub use error::{Error, ErrorKind};
pub use events::{EventFollower, EventTransport, FollowError};
pub use guard::{LeaseRenewals, LockGuard, LockRequest, LostReason};
pub use http::{AcquireOutcome, AuditExport, Client, UserSession};
pub use retry::Backoff;

/// Compiles the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/locks.md")]
struct Guide;
