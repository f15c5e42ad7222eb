//! How often somebody may ask, in this process: counted in memory, forgotten when it ends, never more than a bounded number of
//! minutes at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use ade_domain::Moment;
use ade_keyspace::IdentifierError;
use ade_keyspace::ade::ids;

use super::EmbeddedCoordination;
use crate::coordination::{CoordinationError, Limits, RateCount, Reply};

/// How long requests are counted together.
const MINUTE_MS: u64 = 60_000;
/// Pairs of endpoint and asker that are counted; above that the oldest are forgotten.
const MOST: usize = 100_000;

/// Who asked for what.
type Pair = (ids::Endpoint, String);

/// The minutes that are counted.
#[derive(Debug, Default)]
pub(super) struct Windows {
    counts: HashMap<Arc<Pair>, (Moment, u32)>,
    /// The same pairs in the order in which their minutes began, in which they also end.
    in_order: VecDeque<Arc<Pair>>,
    now: Moment,
}

impl Windows {
    fn count(&mut self, pair: Pair, most: u32, clock: Moment) -> RateCount {
        self.now = self.now.max(clock);
        let now = self.now;
        while self.oldest().is_some_and(|began| began.plus_ms(MINUTE_MS) <= now) {
            self.drop_oldest();
        }
        let (began, asked) = self.counts.get(&pair).copied().unwrap_or((now, 0));
        let allowed = asked < most;
        let asked = if allowed { asked + 1 } else { asked };
        if allowed && asked == 1 {
            if self.counts.len() >= MOST {
                self.drop_oldest();
            }
            let pair = Arc::new(pair);
            self.in_order.push_back(Arc::clone(&pair));
            self.counts.insert(pair, (began, asked));
        } else if let Some((_, count)) = self.counts.get_mut(&pair) {
            *count = asked;
        }
        let reset_at = began.plus_ms(MINUTE_MS);
        RateCount { allowed, most, remaining: most.saturating_sub(asked), reset_at }
    }

    fn oldest(&self) -> Option<Moment> {
        self.in_order.front().and_then(|pair| self.counts.get(pair)).map(|(began, _)| *began)
    }

    fn drop_oldest(&mut self) {
        if let Some(pair) = self.in_order.pop_front() {
            self.counts.remove(&pair);
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn uncountable(error: IdentifierError) -> CoordinationError {
    CoordinationError(format!("no key can be made: {error}"))
}

impl Limits for EmbeddedCoordination {
    fn count(&self, endpoint: String, who: String, most: u32) -> Reply<'_, RateCount> {
        Box::pin(async move {
            let endpoint = ids::Endpoint::new(&endpoint).map_err(uncountable)?;
            ids::UserId::new(&who).map_err(uncountable)?;
            // Beside the state: who is counted neither waits for locks nor delays them.
            let mut windows = self.inner.windows.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(windows.count((endpoint, who), most, self.inner.now()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_minutes_are_forgotten_when_there_are_too_many() {
        let mut windows = Windows::default();
        let mut count = |who: usize, ms| {
            let pair = (ids::Endpoint::TasksCreate, who.to_string());
            windows.count(pair, 1, Moment::default().plus_ms(ms)).allowed
        };
        for who in 0..MOST {
            assert!(count(who, 1));
        }
        assert!(!count(0, 2) && !count(MOST - 1, 2));
        assert!(count(MOST, 3), "one more, and the first is forgotten");
        assert!(!count(MOST, 3) && !count(1, 3));
        assert!(count(0, 4));
        assert!(!count(0, 1), "time does not run back");
        assert!(count(MOST - 1, 60_001), "its minute is over");
        assert!(!count(MOST, 60_002), "this one's is not");
        assert_eq!(windows.counts.len(), 3);
        assert_eq!(windows.in_order.len(), 3);
    }
}
