//! What time it is by Redis' clock, without asking: the last time it told, and what passed here since.

use std::sync::Mutex;

use ade_domain::Moment;
use tokio::time::Instant;

use super::locked;

/// An estimate that never runs back by itself.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    heard: Mutex<Option<(Moment, Instant)>>,
}

impl StoreClock {
    /// Redis said that it is this late, a moment ago. An answer that was long on its way does not set the clock back, a
    /// Redis whose clock is behind does.
    pub(super) fn heard(&self, now: Moment) {
        /// Answers take less than this; what is farther behind is another clock.
        const LATE_MS: u64 = 2_000;
        let mut heard = locked(&self.heard);
        let here = Instant::now();
        let known = heard.map(|known| after(known, here));
        if known.is_none_or(|known| now >= known || known.ms_since(now) > LATE_MS) {
            *heard = Some((now, here));
        }
    }

    pub(super) fn now(&self) -> Moment {
        let heard = *locked(&self.heard);
        heard.map_or_else(Moment::default, |known| after(known, Instant::now()))
    }
}

fn after((moment, at): (Moment, Instant), here: Instant) -> Moment {
    let passed = u64::try_from(here.duration_since(at).as_micros()).unwrap_or(u64::MAX);
    Moment::from_micros(moment.micros().saturating_add(passed))
}
