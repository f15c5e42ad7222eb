//! The wire types of the HTTP API, a typed client, and a guard that holds locks.
//!
//! The server uses the same types, so what one side writes the other side reads. A guard never lets its owner believe in
//! a lock longer than the server promised, measured by a clock of its own from before the promise was asked for.

#![warn(missing_docs)]

mod error;
mod guard;
mod http;
mod retry;
pub mod wire;

pub use error::{Error, Kind};
pub use guard::{LockGuard, LockRequest, Lost, Trust};
pub use http::{Acquired, Client, Export, SignedIn};
pub use retry::Backoff;

/// The examples of the guide must compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/locks.md")]
struct Guide;
