//! The clock of the machine, as locks need it: it tells the time of day and never jumps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ade_domain::{Clock, Moment};

/// The time of day when the process began, plus what a clock that only runs forward has counted since. Somebody who
/// sets the time of day does not end leases early.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    began: Moment,
    counting_since: Instant,
}

impl SystemClock {
    /// Reads the time of day, once.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn start() -> Self {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let began = Moment::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        Self { began, counting_since: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let micros = u64::try_from(self.counting_since.elapsed().as_micros()).unwrap_or(u64::MAX);
        Moment::from_micros(self.began.micros().saturating_add(micros))
    }
}
