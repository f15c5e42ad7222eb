//! The library of Redis functions: its source with the limits in force, and its functions by name.
//!
//! Every function is registered under the same name in `scripts/*.lua`.

use std::fmt::Write;

use ade_domain::agent::MAX_QUEUED_TASKS;
use ade_domain::lock::{
    LockLimits, MAX_REFUSAL_HOLDERS, MAX_REQUESTS_PER_HOLD, MAX_TTL_MS, MIN_WAIT_EXTENSION_MS,
};

use super::connection::Script;
use crate::coordination::{MAX_MOVED_WAKE_UPS, MAX_QUEUED_WAKE_UPS, MAX_SCHEDULED_WAKE_UPS};

/// The files that implement locks, in the order in which they depend on each other. Lua allows 200 local names in one block,
/// so only `apply_commands` leaves theirs.
const LOCK_SOURCES: [&str; 4] = [
    include_str!("scripts/state.lua"),
    include_str!("scripts/grants.lua"),
    include_str!("scripts/commands.lua"),
    include_str!("scripts/calls.lua"),
];
const OTHER_SOURCES: [&str; 2] = [include_str!("scripts/functions.lua"), include_str!("scripts/jobs.lua")];

/// Minimum TTL of a queue after a waiter joined it.
const MIN_QUEUE_TTL_MS: u64 = 300_000;
/// The key of a lock outlives its lease by this much, so that the sweep ends the lease and not Redis.
const EXPIRY_GRACE_MS: u64 = 5_000;
/// How long the last token of a lock is stored on a cluster.
const FENCE_TTL_MS: u64 = 86_400_000;
/// How often the sweep visits a lock that has waiters, even if nothing is due.
const VISIT_INTERVAL_MS: u64 = 2_000;
/// Shared holders that are scanned to find out whether an agent has another hold.
const MAX_SCANNED_SHARERS: usize = 64;
/// Entries of the field `holders`.
const MAX_LISTED_SHARERS: usize = 100;

/// TTL of index entries without a heartbeat: the longest lease that the settings can allow, plus its grace period.
pub(super) const INDEX_TTL_MS: u64 = MAX_TTL_MS + EXPIRY_GRACE_MS;

/// TTL of the index entry of a wait.
pub(super) fn queue_ttl_ms(wait_ms: u64) -> u64 {
    MIN_QUEUE_TTL_MS.max(wait_ms + EXPIRY_GRACE_MS)
}

/// The source of the library, with the limits as constants at its beginning.
fn library_source(limits: &LockLimits) -> String {
    let constants: [(&str, u64); 25] = [
        ("MIN_QUEUE_TTL_MS", MIN_QUEUE_TTL_MS),
        ("EXPIRY_GRACE_MS", EXPIRY_GRACE_MS),
        ("FENCE_TTL_MS", FENCE_TTL_MS),
        ("VISIT_INTERVAL_MS", VISIT_INTERVAL_MS.min(limits.server_timeout_ms)),
        ("INDEX_TTL_MS", INDEX_TTL_MS),
        ("MAX_SCANNED_SHARERS", MAX_SCANNED_SHARERS as u64),
        ("MAX_LISTED_SHARERS", MAX_LISTED_SHARERS as u64),
        ("MAX_REQUESTS_PER_HOLD", MAX_REQUESTS_PER_HOLD as u64),
        ("MAX_REFUSAL_HOLDERS", MAX_REFUSAL_HOLDERS as u64),
        ("MIN_WAIT_EXTENSION_MS", MIN_WAIT_EXTENSION_MS),
        ("TOMBSTONE_TTL_MS", limits.idempotency_ttl_ms),
        ("MAX_TOMBSTONES", limits.max_tombstones as u64),
        ("BATCH_SIZE", limits.batch_size as u64),
        ("MAX_WAITERS", limits.max_queue as u64),
        ("MAX_HOLDERS", limits.max_holders as u64),
        ("SERVER_TIMEOUT_MS", limits.server_timeout_ms),
        ("LONG_POLL_CLAIM_TIMEOUT_MS", limits.long_poll_claim_ms),
        ("TICKET_CLAIM_TIMEOUT_MS", limits.ticket_claim_ms),
        ("BREAKER_THRESHOLD", limits.breaker_threshold.into()),
        ("BREAKER_WINDOW_MS", limits.breaker_window_ms),
        ("BREAKER_OPEN_MS", limits.breaker_open_ms),
        ("MAX_QUEUED_TASKS", MAX_QUEUED_TASKS as u64),
        ("MAX_QUEUED_WAKE_UPS", MAX_QUEUED_WAKE_UPS as u64),
        ("MAX_SCHEDULED_WAKE_UPS", MAX_SCHEDULED_WAKE_UPS as u64),
        ("MAX_MOVED_WAKE_UPS", MAX_MOVED_WAKE_UPS as u64),
    ];
    let mut source = String::new();
    for (name, value) in constants {
        // Writing to a string does not fail.
        let _ = writeln!(source, "local {name} = {value}");
    }
    let (locks, others) = (LOCK_SOURCES.concat(), OTHER_SOURCES.concat());
    format!("{source}local apply_commands\ndo\n{locks}end\n{others}")
}

macro_rules! functions {
    ($($name:ident),+ $(,)?) => {
        /// The functions of the library under the limits in force.
        pub(super) struct Scripts {
            $(pub(super) $name: Script),+
        }

        impl Scripts {
            pub(super) fn new(limits: &LockLimits) -> Self {
                let [$($name),+] = Script::library(&library_source(limits), [$(stringify!($name)),+]);
                Self { $($name),+ }
            }
        }
    };
}

functions!(
    acquire,
    apply_commands,
    read_locks,
    add_to_registry,
    compare_and_set_score,
    prune_lock_names,
    put_agent,
    record_heartbeat,
    mark_agent_offline,
    claim_task,
    release_task,
    count_requests,
    enqueue_wake_ups,
    move_due_wake_ups,
    lock_job,
    unlock_job,
);

impl Scripts {
    /// Acquiring is a function of its own because only it is refused when Redis is out of memory.
    pub(super) const fn for_steps(&self, includes_acquire: bool) -> &Script {
        if includes_acquire { &self.acquire } else { &self.apply_commands }
    }
}
