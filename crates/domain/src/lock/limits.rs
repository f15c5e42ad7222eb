//! Limits and time windows of locks. Settings that all processes share set the first group, the configuration of each process the
//! second; the third is part of the contract.

/// The longest lease that the settings can allow.
pub const MAX_TTL_MS: u64 = 3_600_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockLimits {
    pub default_ttl_ms: u64,
    pub max_ttl_ms: u64,
    /// How often holders are asked to send a heartbeat.
    pub heartbeat_interval_ms: u64,
    pub deadlock_detection: bool,

    /// Waiters per lock.
    pub max_queue: usize,
    /// Holders that share one lock.
    pub max_holders: usize,
    pub default_wait_ms: u64,
    pub max_wait_ms: u64,

    /// Claim window of a granted ticket.
    pub ticket_claim_ms: u64,
    /// Claim window of a request that a server holds open. It is short, because a live server claims at once.
    pub long_poll_claim_ms: u64,
    /// A server without a heartbeat for this time is lost, and its waiters are abandoned.
    pub server_timeout_ms: u64,
    /// How long a request stays known after its end, so that a retry gets the same result.
    pub idempotency_ttl_ms: u64,
    /// Tombstones per lock.
    pub max_tombstones: usize,
    /// Refusals for a full queue within the window that open the circuit breaker.
    pub breaker_threshold: u32,
    pub breaker_window_ms: u64,
    /// How long an open circuit breaker refuses new waiters.
    pub breaker_open_ms: u64,
    /// Grants, expiries and abandoned waits that one command processes; the rest is due at once.
    pub batch_size: usize,
    /// Per agent.
    pub acquisitions_per_minute: u32,
}

impl LockLimits {
    /// When the holder of a lease should send its next heartbeat: a short lease needs it earlier than the interval says.
    #[must_use]
    pub const fn heartbeat_after_ms(&self, lease_ms: u64) -> u64 {
        let third = lease_ms / 3;
        if third < self.heartbeat_interval_ms { third } else { self.heartbeat_interval_ms }
    }
}

impl Default for LockLimits {
    fn default() -> Self {
        Self {
            default_ttl_ms: 30_000,
            max_ttl_ms: 300_000,
            heartbeat_interval_ms: 10_000,
            deadlock_detection: true,
            max_queue: 1_000,
            max_holders: 10_000,
            default_wait_ms: 60_000,
            max_wait_ms: 3_600_000,
            ticket_claim_ms: 10_000,
            long_poll_claim_ms: 3_000,
            server_timeout_ms: 3_000,
            idempotency_ttl_ms: 600_000,
            max_tombstones: 10_000,
            breaker_threshold: 100,
            breaker_window_ms: 10_000,
            breaker_open_ms: 5_000,
            batch_size: 128,
            acquisitions_per_minute: 60_000,
        }
    }
}
