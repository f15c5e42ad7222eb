//! Failed sign-ins delay further ones: by name over all addresses, by address, and by device.

use crate::Moment;

/// Failed attempts that delay nothing: of one name or device, and of one address, which several people may share.
pub const FREE_FAILURES: u32 = 5;
pub const FREE_FAILURES_PER_ADDRESS: u32 = 20;
const FIRST_DELAY_MS: u64 = 1_000;
const MAX_DELAY_MS: u64 = 15 * 60_000;
/// After this time without a failed attempt, earlier ones are forgotten.
const FORGET_AFTER_MS: u64 = 60 * 60_000;

/// The failed sign-ins of one name, address or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailedSignIns {
    count: u32,
    last_at: Moment,
}

impl FailedSignIns {
    pub fn record(&mut self, now: Moment) {
        let count = if self.is_forgotten(now) { 0 } else { self.count };
        *self = Self { count: count.saturating_add(1), last_at: now.max(self.last_at) };
    }

    /// When the next attempt is allowed: each failure beyond the free ones doubles the delay.
    #[must_use]
    pub fn next_attempt_at(&self, free: u32) -> Moment {
        let Some(doublings) = self.count.checked_sub(free) else { return Moment::default() };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.last_at.plus_ms(FIRST_DELAY_MS.saturating_mul(factor).min(MAX_DELAY_MS))
    }

    #[must_use]
    pub fn is_forgotten(&self, now: Moment) -> bool {
        self.last_at.plus_ms(FORGET_AFTER_MS) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_a_quarter_of_an_hour_and_is_forgotten_after_an_hour() {
        let now = Moment::from_micros(5_000_000);
        let mut failed = FailedSignIns::default();
        let mut delay = |failures: u32| {
            (0..failures).for_each(|_| failed.record(now));
            failed.next_attempt_at(FREE_FAILURES).ms_since(now)
        };
        assert_eq!([delay(0), delay(4), delay(1), delay(1), delay(1)], [0, 0, 1_000, 2_000, 4_000]);
        assert_eq!([delay(6), delay(1), delay(100)], [256_000, 512_000, 900_000]);
        let hour_later = now.plus_ms(3_600_000);
        assert!(failed.is_forgotten(hour_later) && !failed.is_forgotten(now.plus_ms(3_599_999)));
        failed.record(hour_later);
        assert_eq!(failed.next_attempt_at(FREE_FAILURES), Moment::default());
    }

    #[test]
    fn guesses_at_one_name_are_few() {
        let (mut failed, mut now, mut guesses) = (FailedSignIns::default(), Moment::from_micros(1), 0);
        while now < Moment::default().plus_ms(86_400_000) {
            now = now.max(failed.next_attempt_at(FREE_FAILURES));
            failed.record(now);
            guesses += 1;
        }
        assert!(guesses < 120, "{guesses} in a day");
    }
}
