//! Fencing tokens: a number that grows with every grant of a lock, so that a resource can reject a former holder.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Moment;

/// Below 2^53, so that every JSON reader keeps it exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Every token is below this.
    pub const LIMIT: u64 = 1 << 53;

    /// A token as presented by a caller; only the lock knows whether it is valid.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The next token at `now`. It grows with the clock even if the last token was forgotten.
    #[must_use]
    pub fn next(self, now: Moment) -> Self {
        Self(self.0.saturating_add(1).max(now.micros()).min(Self::LIMIT - 1))
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_a_running_stopped_or_reversed_clock_and_after_data_loss() {
        let now = Moment::from_micros(1_000);
        let first = FencingToken::default().next(now);
        assert_eq!(first.number(), 1_000);
        assert_eq!(first.next(now).number(), 1_001);
        assert_eq!(first.next(Moment::from_micros(5)).number(), 1_001);
        assert!(FencingToken::default().next(now.plus_ms(1)) > first);
    }
}
