//! Exponential backoff with full jitter, so that clients that failed at the same time do not retry at the same time.

use std::time::Duration;

use rand::RngExt;

/// Delays between retries.
#[derive(Debug, Clone)]
pub struct Backoff {
    ceiling: Duration,
    max: Duration,
}

impl Backoff {
    /// The first delay is between zero and `first`. The upper bound doubles each time, up to `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { ceiling: first, max }
    }

    /// The next delay, added to the minimum that the server requests.
    pub fn next_delay(&mut self, at_least: Option<Duration>) -> Duration {
        let jitter = self.ceiling.mul_f64(rand::rng().random_range(0.0..=1.0));
        self.ceiling = (self.ceiling * 2).min(self.max);
        at_least.unwrap_or_default() + jitter
    }
}

/// From 50 ms to 5 s.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_the_maximum_and_respect_retry_after() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
        let mut ceiling = Duration::from_millis(10);
        for _ in 0..10 {
            assert!(backoff.next_delay(None) <= ceiling);
            ceiling = (ceiling * 2).min(Duration::from_millis(40));
        }
        assert!(backoff.next_delay(Some(Duration::from_secs(1))) >= Duration::from_secs(1));
    }
}
