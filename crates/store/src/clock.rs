//! The system clock, made monotonic: it tells the time of day and never jumps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ade_domain::{Clock, Moment};

/// The time of day at the start of the process, plus the elapsed time of a monotonic clock. Setting the time of day does not make
/// leases expire early.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started_at: Moment,
    started: Instant,
}

impl SystemClock {
    /// Reads the time of day, once.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn start() -> Self {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let started_at = Moment::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        Self { started_at, started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Moment::from_micros(self.started_at.micros().saturating_add(elapsed))
    }
}
