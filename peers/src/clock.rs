//! The clock of the whole machine, which workers in other processes read as well (Python's `time.monotonic_ns`).
//!
//! Invariant: every time that is compared with another one comes from here or from there.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until};

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Returns at that time.
pub(crate) async fn reach(at_ns: u64) {
    sleep_until(Instant::now() + Duration::from_nanos(at_ns.saturating_sub(now_ns()))).await;
}
