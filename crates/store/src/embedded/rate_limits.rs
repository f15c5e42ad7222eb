//! Rate limits, in this process: counted in memory, lost with the process, and bounded in number.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use ade_domain::Moment;
use ade_keyspace::ade::ids;

use super::EmbeddedCoordination;
use crate::coordination::{AsyncResult, RateCount, RateLimits};

const WINDOW_MS: u64 = 60_000;
/// Above that the oldest windows are dropped.
const MAX_WINDOWS: usize = 100_000;

/// Endpoint and user.
type WindowKey = (ids::Endpoint, String);

/// Counting windows by endpoint and user.
#[derive(Debug, Default)]
pub(super) struct RateWindows {
    /// The start of each window, and its count.
    counts: HashMap<Arc<WindowKey>, (Moment, u32)>,
    /// The same keys in the order in which their windows began, and will end.
    in_order: VecDeque<Arc<WindowKey>>,
    now: Moment,
}

impl RateWindows {
    fn count(&mut self, key: WindowKey, limit: u32, clock: Moment) -> RateCount {
        self.now = self.now.max(clock);
        let now = self.now;
        while self.oldest().is_some_and(|start| start.plus_ms(WINDOW_MS) <= now) {
            self.drop_oldest();
        }
        let (start, count) = self.counts.get(&key).copied().unwrap_or((now, 0));
        let allowed = count < limit;
        let count = if allowed { count + 1 } else { count };
        if allowed && count == 1 {
            if self.counts.len() >= MAX_WINDOWS {
                self.drop_oldest();
            }
            let key = Arc::new(key);
            self.in_order.push_back(Arc::clone(&key));
            self.counts.insert(key, (start, count));
        } else if let Some((_, known)) = self.counts.get_mut(&key) {
            *known = count;
        }
        let reset_at = start.plus_ms(WINDOW_MS);
        RateCount { allowed, limit, remaining: limit.saturating_sub(count), reset_at }
    }

    fn oldest(&self) -> Option<Moment> {
        self.in_order.front().and_then(|key| self.counts.get(key)).map(|(start, _)| *start)
    }

    fn drop_oldest(&mut self) {
        if let Some(key) = self.in_order.pop_front() {
            self.counts.remove(&key);
        }
    }
}

impl RateLimits for EmbeddedCoordination {
    fn count_request(&self, endpoint: String, user: String, limit: u32) -> AsyncResult<'_, RateCount> {
        Box::pin(async move {
            let endpoint = ids::Endpoint::new(&endpoint)?;
            ids::UserId::new(&user)?;
            // A mutex of its own: counting neither waits for lock commands nor delays them.
            let mut windows = self.inner.rate_windows.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(windows.count((endpoint, user), limit, self.inner.now()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_oldest_windows_above_the_limit() {
        let mut windows = RateWindows::default();
        let mut count = |user: usize, ms| {
            let key = (ids::Endpoint::TasksCreate, user.to_string());
            windows.count(key, 1, Moment::default().plus_ms(ms)).allowed
        };
        for user in 0..MAX_WINDOWS {
            assert!(count(user, 1));
        }
        assert!(!count(0, 2) && !count(MAX_WINDOWS - 1, 2));
        assert!(count(MAX_WINDOWS, 3), "a new window drops the first one");
        assert!(!count(MAX_WINDOWS, 3) && !count(1, 3));
        assert!(count(0, 4));
        assert!(!count(0, 1), "time does not run backwards");
        assert!(count(MAX_WINDOWS - 1, 60_001), "its window has ended");
        assert!(!count(MAX_WINDOWS, 60_002), "its window has not ended");
        assert_eq!(windows.counts.len(), 3);
        assert_eq!(windows.in_order.len(), 3);
    }
}
