//! The numbers that locks go by. Configuration may change the first group; the rest is part of the contract.

use serde::{Deserialize, Serialize};

/// Limits and windows of the lock machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLimits {
    /// Lease of a request that names none.
    pub default_ttl_ms: u64,
    /// Longest lease that may be asked for.
    pub max_ttl_ms: u64,
    /// Waiters that one lock may have.
    pub max_queue: usize,
    /// Holders that may share one lock.
    pub max_holders: usize,
    /// How long a request waits if it does not say.
    pub default_wait_ms: u64,
    /// Longest wait that may be asked for.
    pub max_wait_ms: u64,
    /// Whether cycles of waiting holders are looked for.
    pub deadlock_detection: bool,

    /// A ticket that was granted must be claimed within this time.
    pub ticket_claim_ms: u64,
    /// The same for a request that a server holds open: the server claims at once, unless it died.
    pub served_claim_ms: u64,
    /// A server that did not renew its mark for so long does not serve its waiters any more.
    pub server_silence_ms: u64,
    /// How long a released or cancelled request is remembered.
    pub repeat_ms: u64,
    /// How many of them one lock remembers.
    pub max_repeats: usize,
    /// So many refusals for a full queue ...
    pub crowded_after: u32,
    /// ... within this time ...
    pub crowded_within_ms: u64,
    /// ... turn everybody away for so long.
    pub crowded_for_ms: u64,
    /// Grants, expiries and departures that one step carries out; the rest is due at once.
    pub batch: usize,
    /// Acquisitions that one agent may try in a minute.
    pub acquisitions_per_minute: u32,
}

impl Default for LockLimits {
    fn default() -> Self {
        Self {
            default_ttl_ms: 30_000,
            max_ttl_ms: 300_000,
            max_queue: 1_000,
            max_holders: 10_000,
            default_wait_ms: 60_000,
            max_wait_ms: 3_600_000,
            deadlock_detection: true,
            ticket_claim_ms: 10_000,
            served_claim_ms: 3_000,
            server_silence_ms: 3_000,
            repeat_ms: 600_000,
            max_repeats: 10_000,
            crowded_after: 100,
            crowded_within_ms: 10_000,
            crowded_for_ms: 5_000,
            batch: 128,
            acquisitions_per_minute: 60_000,
        }
    }
}
