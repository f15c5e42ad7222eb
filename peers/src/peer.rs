//! What a lock has to offer to be measured. One file for each peer implements this, and `contestants.rs` lists them.
//!
//! Invariant: a peer adds nothing of its own to what its users would write: no pooling, no batching, no shortcut.

use crate::failure::Failure;

/// Time that a lock is granted for, where a lock expires: far beyond every hold of this benchmark.
pub(crate) const TTL_MS: u64 = 30_000;

/// One way to lock.
pub(crate) trait Peer: Send + Sync + 'static {
    type Client: Client;

    /// A new client, connected; what that costs is not measured.
    fn client(&self) -> impl Future<Output = Result<Self::Client, Failure>> + Send;
}

/// One client, which holds at most one lock at a time.
pub(crate) trait Client: Send + 'static {
    /// Returns when this client holds the lock, however long that takes.
    fn acquire(&mut self, lock: &str) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Gives back the lock that was acquired last; fails if it was not held any more.
    fn release(&mut self, lock: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}
