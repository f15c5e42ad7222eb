//! The rate limits that a process counts itself, by endpoint and caller: kept in memory, lost with the process, bounded in number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::rate::RateWindow;
use ade_keyspace::ade::ids;

use crate::coordination::RateCount;

/// Above that the oldest ones are dropped.
const MAX_WINDOWS: usize = 100_000;
/// Windows that each count checks for removal. More than one, so that removal keeps up with insertion.
const CHECKED_PER_COUNT: usize = 2;

/// Endpoint and caller.
pub(crate) type WindowKey = (ids::Endpoint, String);

#[derive(Debug, Default)]
pub(crate) struct RateWindows {
    windows: HashMap<Arc<WindowKey>, RateWindow>,
    /// The same keys, roughly in the order of their last requests.
    in_order: VecDeque<Arc<WindowKey>>,
    now: Moment,
}

impl RateWindows {
    pub(crate) fn count(&mut self, key: WindowKey, limit: u32, clock: Moment) -> RateCount {
        self.now = self.now.max(clock);
        let now = self.now;
        self.remove_expired(now);
        let mut window = self.windows.get(&key).copied().unwrap_or_default();
        let admitted = window.admit(1, limit, now);
        if admitted.is_ok() {
            match self.windows.get_mut(&key) {
                Some(known) => *known = window,
                None => self.insert(key, window),
            }
        }
        match admitted {
            Ok(remaining) => RateCount { allowed: true, limit, remaining, reset_at: window.ends_at() },
            Err(retry_at) => RateCount { allowed: false, limit, remaining: 0, reset_at: retry_at },
        }
    }

    /// Takes back a request that was counted here and refused elsewhere.
    pub(crate) fn take_back(&mut self, key: &WindowKey) {
        if let Some(window) = self.windows.get_mut(key) {
            window.take_back(1);
        }
    }

    fn insert(&mut self, key: WindowKey, window: RateWindow) {
        if self.windows.len() >= MAX_WINDOWS
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.windows.remove(&oldest);
        }
        let key = Arc::new(key);
        self.in_order.push_back(Arc::clone(&key));
        self.windows.insert(key, window);
    }

    fn remove_expired(&mut self, now: Moment) {
        for _ in 0..CHECKED_PER_COUNT {
            let Some(key) = self.in_order.pop_front() else { return };
            if self.windows.get(&key).is_some_and(|window| window.is_expired(now)) {
                self.windows.remove(&key);
            } else {
                self.in_order.push_back(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_the_number_of_windows_and_removes_expired_ones() {
        let mut windows = RateWindows::default();
        let mut count = |caller: usize, ms| {
            let key = (ids::Endpoint::TasksCreate, caller.to_string());
            windows.count(key, 1, Moment::default().plus_ms(ms)).allowed
        };
        for caller in 0..MAX_WINDOWS {
            assert!(count(caller, 1));
        }
        assert!(!count(0, 2) && !count(MAX_WINDOWS - 1, 2));
        assert!((MAX_WINDOWS..MAX_WINDOWS + 10).all(|caller| count(caller, 3)), "each drops an old one");
        assert!(
            (MAX_WINDOWS..MAX_WINDOWS + 10).all(|caller| !count(caller, 1)),
            "time does not run backwards"
        );
        assert!((0..MAX_WINDOWS).all(|caller| count(caller, 60_003)), "all others have ended");
        let (known, ordered) = (windows.windows.len(), windows.in_order.len());
        assert!(known == ordered && known <= MAX_WINDOWS, "{known} {ordered}");
        for caller in 0..MAX_WINDOWS {
            windows.count(
                (ids::Endpoint::TasksRead, caller.to_string()),
                0,
                Moment::default().plus_ms(200_000),
            );
        }
        assert_eq!((windows.windows.len(), windows.in_order.len()), (0, 0), "refused requests leave nothing");
    }
}
