//! CLOCK_MONOTONIC, which worker processes read as well (`time.monotonic_ns` in Python).
//!
//! Invariant: times that are compared all come from this clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until};

pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds_ns = u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000;
    seconds_ns + u64::try_from(now.tv_nsec).unwrap_or_default()
}

pub(crate) async fn sleep_until_ns(at_ns: u64) {
    sleep_until(Instant::now() + Duration::from_nanos(at_ns.saturating_sub(now_ns()))).await;
}
