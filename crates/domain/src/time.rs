//! Points in time and the clock trait. Nothing in this crate reads a clock: the current time is always an argument.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A point in time: microseconds since the Unix epoch, by the clock of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

/// The source of the current time. Each store has one clock; tests advance it manually.
pub trait Clock: fmt::Debug + Send + Sync {
    fn now(&self) -> Moment;
}

impl Moment {
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub const fn micros(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }

    #[must_use]
    pub const fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms.saturating_mul(1000)))
    }

    /// Milliseconds since `earlier`, rounded up; zero if `earlier` is later.
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0).div_ceil(1000)
    }

    /// Converts to a calendar time, clamped to the latest one that can be represented.
    pub fn timestamp(self) -> Timestamp {
        i64::try_from(self.0)
            .ok()
            .and_then(|us| Timestamp::from_microsecond(us).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

/// Times before 1970 become the Unix epoch.
impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self(u64::try_from(time.as_microsecond()).unwrap_or(0))
    }
}

/// RFC 3339 in UTC with microseconds.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_to_calendar_time_with_microseconds() {
        let moment = Moment::from_micros(1_794_744_000_000_120);
        assert_eq!(moment.to_string(), "2026-11-15T12:00:00.000120Z");
        assert_eq!(Moment::from(moment.timestamp()), moment);
        assert_eq!(Moment::from_micros(u64::MAX).timestamp(), Timestamp::MAX);
        assert_eq!(Moment::from(Timestamp::MIN), Moment::default());
        assert_eq!(moment.plus_ms(2).ms_since(moment), 2);
        assert_eq!(moment.ms_since(moment.plus_ms(2)), 0);
    }
}
