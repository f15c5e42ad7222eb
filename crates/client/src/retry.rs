//! Exponential backoff with full jitter: many clients that failed together do not come back together.

use std::time::Duration;

use rand::RngExt;

/// How long to wait before the next try.
#[derive(Debug, Clone)]
pub struct Backoff {
    ceiling: Duration,
    most: Duration,
}

impl Backoff {
    /// Waits between nothing and `first`, then twice that each time, up to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { ceiling: first, most }
    }

    /// The next pause; at least what the server asked for.
    pub fn pause(&mut self, at_least: Option<Duration>) -> Duration {
        let jitter = self.ceiling.mul_f64(rand::rng().random_range(0.0..=1.0));
        self.ceiling = (self.ceiling * 2).min(self.most);
        at_least.unwrap_or_default() + jitter
    }
}

/// From 50 ms up to 5 s.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_are_bounded_and_respect_the_server() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
        let mut ceiling = Duration::from_millis(10);
        for _ in 0..10 {
            assert!(backoff.pause(None) <= ceiling);
            ceiling = (ceiling * 2).min(Duration::from_millis(40));
        }
        assert!(backoff.pause(Some(Duration::from_secs(1))) >= Duration::from_secs(1));
    }
}
