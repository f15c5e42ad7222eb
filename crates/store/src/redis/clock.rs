//! Estimates the time of the Redis server without a round trip: the last time it reported, plus the time elapsed
//! since.

use std::sync::Mutex;

use ade_domain::Moment;
use tokio::time::Instant;

use super::locked;

#[derive(Debug, Default)]
pub(super) struct StoreClock {
    last_observed: Mutex<Option<(Moment, Instant)>>,
}

impl StoreClock {
    /// Takes over a time that Redis just reported. A reply that was delayed must not set the clock back, but a server
    /// whose clock is behind must.
    pub(super) fn observe(&self, now: Moment) {
        /// Replies take less than this; a time further behind comes from another clock.
        const MAX_DELAY_MS: u64 = 2_000;
        let mut last = locked(&self.last_observed);
        let local_now = Instant::now();
        let estimate = last.map(|observed| advance(observed, local_now));
        if estimate.is_none_or(|estimate| now >= estimate || estimate.ms_since(now) > MAX_DELAY_MS) {
            *last = Some((now, local_now));
        }
    }

    pub(super) fn now(&self) -> Moment {
        let last = *locked(&self.last_observed);
        last.map_or_else(Moment::default, |observed| advance(observed, Instant::now()))
    }
}

fn advance((moment, at): (Moment, Instant), local_now: Instant) -> Moment {
    let elapsed = u64::try_from(local_now.duration_since(at).as_micros()).unwrap_or(u64::MAX);
    Moment::from_micros(moment.micros().saturating_add(elapsed))
}
