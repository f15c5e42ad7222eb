//! The interface of a measured lock service. One file per service implements it, and `registry.rs` lists them.
//!
//! Invariant: an implementation does what a user of the service would do, without pooling, batching or shortcuts of its own.

use crate::error::BenchError;

/// Lease of a lock, where locks expire: far longer than any hold in this benchmark.
pub(crate) const TTL_MS: u64 = 30_000;

pub(crate) trait LockService: Send + Sync + 'static {
    type Client: LockClient;

    /// Connects a client; the time for this is not measured.
    fn client(&self) -> impl Future<Output = Result<Self::Client, BenchError>> + Send;
}

/// A client that holds at most one lock at a time.
pub(crate) trait LockClient: Send + 'static {
    /// Returns when this client holds the lock, however long that takes.
    fn acquire(&mut self, lock: &str) -> impl Future<Output = Result<(), BenchError>> + Send;

    /// Releases the lock that was acquired last; fails if it is no longer held.
    fn release(&mut self, lock: &str) -> impl Future<Output = Result<(), BenchError>> + Send;
}
