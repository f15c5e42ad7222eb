//! Rate limits per minute in a sliding window: this minute's count plus the previous minute's, weighted by the part of it that
//! still lies within the last 60 seconds. The functions on Redis mirror it.

mod block;

pub use block::{RateBlock, UnusedRequests};

use crate::Moment;

pub const WINDOW_MS: u64 = 60_000;

/// The counts of one caller. The first minute starts with the first request; a minute without requests forgets everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateWindow {
    started_at: Moment,
    last_at: Moment,
    /// When everything is forgotten.
    kept_until: Moment,
    count: u32,
    previous: u32,
}

/// Requests that were counted before they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub granted: u32,
    /// How many more of weight 1 are allowed now.
    pub remaining: u32,
    /// The start of the minute in which they were counted, and in which alone they may be spent.
    pub minute: Moment,
}

impl RateWindow {
    /// Counts a request of this weight, and returns how many more of weight 1 are allowed now. If it exceeds the limit, nothing is
    /// counted, and the error is the time at which it will be allowed.
    pub fn admit(&mut self, weight: u32, limit: u32, now: Moment) -> Result<u32, Moment> {
        self.reserve(weight, weight, limit, now).map(|reserved| reserved.remaining)
    }

    /// Counts a request of weight `needed`, and as many that may follow in this minute as the limit allows, up to `wanted` in total. If
    /// the request exceeds the limit, nothing is counted, and the error is the time at which it will be allowed.
    pub fn reserve(
        &mut self,
        needed: u32,
        wanted: u32,
        limit: u32,
        now: Moment,
    ) -> Result<Reservation, Moment> {
        let now = now.max(self.last_at);
        let mut window = self.at(now);
        let free = (u64::from(limit) * WINDOW_MS).saturating_sub(window.scaled_use(now)) / WINDOW_MS;
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        if free < needed {
            return Err(window.retry_at(needed, limit, now));
        }
        let granted = wanted.clamp(needed, free);
        window.count = window.count.saturating_add(granted);
        window.last_at = now;
        // Whatever was reserved may come as late as the end of the minute.
        let last_request = if granted > needed { window.ends_at() } else { now };
        window.kept_until = window.kept_until.max(last_request.plus_ms(WINDOW_MS));
        *self = window;
        Ok(Reservation { granted, remaining: free - granted, minute: window.started_at })
    }

    /// Takes back reserved requests that did not come.
    pub fn give_back(&mut self, unused: UnusedRequests, now: Moment) {
        let mut window = self.at(now.max(self.last_at));
        if unused.minute == window.started_at {
            window.count = window.count.saturating_sub(unused.count);
        } else if unused.minute.plus_ms(WINDOW_MS) == window.started_at {
            window.previous = window.previous.saturating_sub(unused.count);
        }
        *self = window;
    }

    /// Takes back a request that was counted in this minute.
    pub fn take_back(&mut self, weight: u32) {
        self.count = self.count.saturating_sub(weight);
    }

    /// When this minute ends.
    pub const fn ends_at(&self) -> Moment {
        self.started_at.plus_ms(WINDOW_MS)
    }

    /// Whether there was no request within the last minute, and none reserved.
    pub fn is_expired(&self, now: Moment) -> bool {
        self.kept_until <= now
    }

    /// The window moved on to the minute of `now`.
    fn at(self, now: Moment) -> Self {
        let next = self.ends_at();
        if self.is_expired(now) {
            Self { started_at: now, last_at: now, kept_until: now, count: 0, previous: 0 }
        } else if next <= now {
            // Otherwise everything would be forgotten, so at most one minute has passed since the end.
            Self { started_at: next, count: 0, previous: self.count, ..self }
        } else {
            self
        }
    }

    /// The weighted count, times the length of the window.
    fn scaled_use(&self, now: Moment) -> u64 {
        let left = WINDOW_MS.saturating_sub(now.ms_since(self.started_at));
        u64::from(self.previous) * left + u64::from(self.count) * WINDOW_MS
    }

    fn retry_at(&self, weight: u32, limit: u32, now: Moment) -> Moment {
        let (count, previous) = (u64::from(self.count), u64::from(self.previous));
        let needed = count + u64::from(weight);
        let at = match u64::from(limit).checked_sub(needed) {
            // Within this minute, when enough of the previous one lies behind.
            Some(free) => self.ends_at().micros().saturating_sub(free * WINDOW_MS * 1_000 / previous.max(1)),
            // In the next minute, when enough of this one lies behind.
            None => {
                let excess = needed - u64::from(limit);
                self.ends_at().micros() + (excess * WINDOW_MS * 1_000).div_ceil(count.max(1))
            }
        };
        // Without further requests everything is forgotten after a minute.
        let forgotten = if count + previous == 0 { now.plus_ms(WINDOW_MS) } else { self.kept_until };
        Moment::from_micros(at).clamp(now.plus_ms(1), forgotten.max(now.plus_ms(1)))
    }
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    const START: Moment = Moment::from_micros(1_000_000_000_007);

    fn fill(window: &mut RateWindow, limit: u32, at: Moment) -> u32 {
        (0..).take_while(|_| window.admit(1, limit, at).is_ok()).count() as u32
    }

    #[test]
    fn slides_over_the_end_of_a_minute() {
        let mut window = RateWindow::default();
        assert_eq!(window.admit(1, 60, START), Ok(59));
        // The rest at the end of the minute: a fixed window would allow as many again right after it.
        assert_eq!(fill(&mut window, 60, START.plus_ms(59_000)), 59);
        assert_eq!(fill(&mut window, 60, START.plus_ms(60_000)), 0);
        assert_eq!(fill(&mut window, 60, START.plus_ms(75_000)), 15);
        assert_eq!(fill(&mut window, 60, START.plus_ms(90_000)), 15);
        assert_eq!(fill(&mut window, 60, START.plus_ms(119_999)), 29, "30 of this minute");
        assert!(window.is_expired(START.plus_ms(179_999)) && !window.is_expired(START.plus_ms(179_998)));
        assert_eq!(fill(&mut window, 60, START.plus_ms(179_999)), 60, "a minute without requests");
    }

    #[test]
    fn refused_requests_do_not_count_and_know_when_to_retry() {
        let mut window = RateWindow::default();
        for remaining in [2, 1, 0] {
            assert_eq!(window.admit(1, 3, START), Ok(remaining));
        }
        let forgotten = START.plus_ms(60_000);
        assert_eq!(window.admit(1, 3, START.plus_ms(59_999)), Err(forgotten));
        assert_eq!(window.admit(1, 4, START.plus_ms(59_999)), Ok(0), "the limit was raised");
        assert_eq!(window.admit(1, 0, START.plus_ms(59_999)), Err(START.plus_ms(119_999)));
        assert_eq!(RateWindow::default().admit(1, 0, START), Err(START.plus_ms(60_000)));
        window.take_back(1);
        assert_eq!(window.admit(1, 4, START), Ok(0), "time does not run backwards");
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn retry_time_is_exact_and_the_count_is_bounded(
            limit in 1_u32..20,
            steps in proptest::collection::vec((1_u32..5, 0_u64..40_000), 1..80),
        ) {
            let (mut window, mut now) = (RateWindow::default(), START);
            let mut admitted: Vec<(Moment, u32)> = Vec::new();
            for (weight, ms) in steps {
                let weight = weight.min(limit);
                now = now.plus_ms(ms);
                if let Err(retry_at) = window.admit(weight, limit, now) {
                    prop_assert!(retry_at > now && retry_at <= now.plus_ms(120_000));
                    let just_before = Moment::from_micros(retry_at.micros() - 1_001).max(now);
                    let before = window;
                    prop_assert!(window.admit(weight, limit, just_before).is_err(), "{before:?}");
                    prop_assert_eq!(window, before, "a refused request changes nothing");
                    now = retry_at;
                    prop_assert!(window.admit(weight, limit, now).is_ok(), "{before:?} at {now}");
                }
                admitted.push((now, weight));
                // Counts of the last minute are estimated, but never more than twice the limit.
                let recent = admitted.iter().filter(|(at, _)| at.plus_ms(WINDOW_MS) > now);
                prop_assert!(recent.map(|(_, weight)| weight).sum::<u32>() <= 2 * limit);
            }
        }
    }
}
