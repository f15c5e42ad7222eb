//! Requests that a server has reserved in a window that it shares with others, so that it need not ask for each of them.
//!
//! A block is spent only within the minute in which it was counted: until then it counts in full, so that the requests of all
//! servers together never exceed the limit. What is left at the end of the minute is given back, once.

use super::WINDOW_MS;
use crate::Moment;

/// A block is this part of the limit, so that servers with little traffic keep little from the others.
const BLOCKS_PER_LIMIT: u32 = 50;
const MAX_BLOCK: u32 = 100;

/// The clock that `until` and `now` refer to belongs to the server; it need not be that of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateBlock {
    left: u32,
    minute: Moment,
    until: Moment,
    /// Of an earlier minute.
    unused: Option<UnusedRequests>,
}

/// Requests that were reserved in a minute and did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusedRequests {
    pub count: u32,
    /// The start of that minute.
    pub minute: Moment,
}

impl RateBlock {
    /// How many requests to reserve at once.
    #[must_use]
    pub fn size(limit: u32) -> u32 {
        (limit / BLOCKS_PER_LIMIT).clamp(1, MAX_BLOCK)
    }

    /// Spends requests of this weight, and returns how many are left; `None` if there are not enough.
    pub fn spend(&mut self, weight: u32, now: Moment) -> Option<u32> {
        self.end_minute(now);
        self.left = self.left.checked_sub(weight)?;
        Some(self.left)
    }

    /// Adds requests that were counted in the given minute, to be spent before `until`.
    pub fn add(&mut self, count: u32, minute: Moment, until: Moment) {
        if self.minute != minute {
            self.end_minute(self.until);
            (self.minute, self.until) = (minute, until);
        }
        self.left = self.left.saturating_add(count);
        self.until = self.until.min(until);
    }

    /// Takes what is left of a minute that is over, to give it back. The caller gives it back at most once.
    pub fn take_unused(&mut self, now: Moment) -> Option<UnusedRequests> {
        self.end_minute(now);
        self.unused.take()
    }

    /// Takes everything that is left, of this minute too, to give it back. The caller gives it back at most once.
    pub fn take_all(&mut self) -> [Option<UnusedRequests>; 2] {
        let left = UnusedRequests { count: std::mem::take(&mut self.left), minute: self.minute };
        [self.unused.take(), Some(left).filter(|left| left.count > 0)]
    }

    /// When the minute ends, by the clock of the window.
    #[must_use]
    pub const fn ends_at(&self) -> Moment {
        self.minute.plus_ms(WINDOW_MS)
    }

    /// Whether nothing can be spent and nothing given back.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.until <= now && self.left == 0 && self.unused.is_none()
    }

    fn end_minute(&mut self, now: Moment) {
        if self.until <= now && self.left > 0 {
            self.unused = Some(UnusedRequests { count: self.left, minute: self.minute });
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;
    use crate::rate::RateWindow;

    const START: Moment = Moment::from_micros(1_000_000_000_007);

    #[test]
    fn is_a_small_part_of_the_limit() {
        let sizes = [0, 1, 99, 100, 600, 4_999, 5_000, 60_000, u32::MAX].map(RateBlock::size);
        assert_eq!(sizes, [1, 1, 1, 2, 12, 99, 100, 100, 100]);
    }

    #[test]
    fn ends_with_its_minute_and_is_given_back_once() {
        let mut block = RateBlock::default();
        assert_eq!((block.spend(1, START), block.take_unused(START)), (None, None));
        let end = START.plus_ms(WINDOW_MS);
        block.add(5, START, end);
        assert_eq!((block.spend(2, START), block.spend(4, START), block.ends_at()), (Some(3), None, end));
        block.add(2, START, end);
        let before = Moment::from_micros(end.micros() - 1);
        assert_eq!((block.spend(1, before), block.take_unused(before)), (Some(4), None));
        assert!(block.spend(1, end).is_none() && !block.is_over(end));
        assert_eq!(block.take_unused(end), Some(UnusedRequests { count: 4, minute: START }));
        assert!(block.take_unused(end).is_none() && block.is_over(end));
        // A reservation that reached the window in its next minute ends the block, although this server was not aware of it.
        block.add(3, end, end.plus_ms(WINDOW_MS));
        block.add(1, end.plus_ms(WINDOW_MS), end.plus_ms(2 * WINDOW_MS));
        assert_eq!(block.take_unused(end), Some(UnusedRequests { count: 3, minute: end }));
        assert_eq!(block.spend(1, end), Some(0));
    }

    #[test]
    fn gives_everything_back_once() {
        let (mut block, end) = (RateBlock::default(), START.plus_ms(WINDOW_MS));
        assert_eq!(block.take_all(), [None, None]);
        block.add(5, START, end);
        block.add(3, end, end.plus_ms(WINDOW_MS));
        let unused = |count, minute| Some(UnusedRequests { count, minute });
        assert_eq!(block.take_all(), [unused(5, START), unused(3, end)]);
        assert_eq!((block.take_all(), block.spend(1, end)), ([None, None], None));
    }

    /// What happened in one minute of the window.
    #[derive(Debug, Clone, Copy, Default)]
    struct Minute {
        start: Moment,
        admitted: u32,
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        /// Servers that share a window and spend blocks: the counts of the window are exactly what was admitted plus what is reserved.
        /// So the sliding count of what was admitted never exceeds the limit, and a request is refused only if the limit is
        /// used up by admitted and reserved requests together.
        #[test]
        fn servers_together_never_exceed_the_limit(
            limit in 1_u32..400,
            steps in proptest::collection::vec((0_usize..3, 1_u32..4, 0_u64..9_000, any::<bool>()), 1..200),
        ) {
            let (mut window, mut now) = (RateWindow::default(), START);
            let mut blocks = [RateBlock::default(); 3];
            let (mut current, mut previous) = (Minute::default(), Minute::default());
            for (server, weight, ms, is_burst) in steps {
                now = now.plus_ms(if is_burst { ms % 50 } else { ms });
                let weight = weight.min(limit);
                let block = &mut blocks[server];
                let is_spent = block.spend(weight, now).is_some();
                let mut refused = false;
                if !is_spent {
                    if let Some(unused) = block.take_unused(now) {
                        window.give_back(unused, now);
                    }
                    match window.reserve(weight, RateBlock::size(limit).max(weight), limit, now) {
                        Ok(reserved) => {
                            let until = reserved.minute.plus_ms(WINDOW_MS);
                            prop_assert!(until > now);
                            block.add(reserved.granted - weight, reserved.minute, until);
                        }
                        Err(_) => refused = true,
                    }
                }
                window = window.at(now);
                if current.start != window.started_at {
                    let follows = current.start.plus_ms(WINDOW_MS) == window.started_at;
                    previous = if follows { current } else { Minute::default() };
                    current = Minute { start: window.started_at, admitted: 0 };
                }
                current.admitted += if refused { 0 } else { weight };
                let reserved_in = |start: Moment| {
                    let left = blocks.iter().filter(|block| block.minute == start).map(|block| block.left);
                    let unused = blocks.iter().filter_map(|block| block.unused);
                    let unused = unused.filter(|unused| unused.minute == start).map(|unused| unused.count);
                    left.chain(unused).sum::<u32>()
                };
                prop_assert_eq!(window.count, current.admitted + reserved_in(current.start));
                if previous.start != Moment::default() {
                    prop_assert_eq!(window.previous, previous.admitted + reserved_in(previous.start));
                }
                let left_ms = WINDOW_MS - now.ms_since(window.started_at).min(WINDOW_MS);
                let sliding = |count: u32, before: u32| {
                    u64::from(count) * WINDOW_MS + u64::from(before) * left_ms
                };
                let allowed = u64::from(limit) * WINDOW_MS;
                prop_assert!(sliding(current.admitted, previous.admitted) <= allowed);
                if refused {
                    prop_assert!(sliding(window.count + weight, window.previous) > allowed);
                }
            }
        }
    }
}
