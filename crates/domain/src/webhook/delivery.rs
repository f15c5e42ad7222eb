//! Deliveries of webhooks: when a failed attempt is retried, and when a destination gets a rest. Everything is a function of the counts,
//! the time, and a random number for the jitter.

use serde::{Deserialize, Serialize};

use crate::Moment;

/// Attempts go on for this long; then the delivery has failed.
pub const RETRY_WINDOW_MS: u64 = 3 * 86_400_000;
/// Deliveries are kept for this long.
pub const RETENTION_DAYS: u64 = 30;
/// Consecutive failures after which the circuit of a destination opens.
pub const CIRCUIT_THRESHOLD: u32 = 5;

const FIRST_DELAY_MS: u64 = 5_000;
const MAX_DELAY_MS: u64 = 8 * 3_600_000;
const DELAY_FACTOR: u64 = 3;
const FIRST_REST_MS: u64 = 30_000;
const MAX_REST_MS: u64 = 600_000;
/// Delays vary by up to a fifth in both directions, so that retries of many deliveries spread.
const JITTER_PERCENT: u64 = 20;

/// The delay after a number of failed attempts, at least one. `random` is any number.
pub fn retry_delay_ms(failed_attempts: u32, random: u32) -> u64 {
    let exponent = failed_attempts.saturating_sub(1).min(20);
    let delay = FIRST_DELAY_MS.saturating_mul(DELAY_FACTOR.saturating_pow(exponent)).min(MAX_DELAY_MS);
    let percent = 100 - JITTER_PERCENT + u64::from(random) % (2 * JITTER_PERCENT + 1);
    delay * percent / 100
}

/// When a failed delivery is tried again; `None` if it has failed for good.
pub fn next_attempt(failed_attempts: u32, now: Moment, give_up_at: Moment, random: u32) -> Option<Moment> {
    let next = now.plus_ms(retry_delay_ms(failed_attempts, random));
    (next <= give_up_at).then_some(next)
}

/// The circuit breaker of a destination: after several failures in a row nothing is sent to it for a while; then one attempt decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Circuit {
    /// Failures since the last success.
    pub failures: u32,
    /// Until when nothing is sent; none while the circuit is closed.
    pub open_until: Option<Moment>,
    /// Until when one attempt tests the destination.
    pub probe_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CircuitState {
    Closed,
    Open,
    /// One attempt is allowed.
    HalfOpen,
}

impl Circuit {
    pub fn state(&self, now: Moment) -> CircuitState {
        match self.open_until {
            None => CircuitState::Closed,
            Some(until) if now < until => CircuitState::Open,
            Some(_) => CircuitState::HalfOpen,
        }
    }

    /// How many attempts may start now, at most `limit`.
    pub fn allowed_attempts(&self, limit: usize, now: Moment) -> usize {
        match self.state(now) {
            CircuitState::Closed => limit,
            CircuitState::Open => 0,
            CircuitState::HalfOpen => {
                usize::from(self.probe_until.is_none_or(|until| until <= now)).min(limit)
            }
        }
    }

    /// The circuit after an attempt that the destination did not answer, or answered with an error of its own.
    #[must_use]
    pub fn after_failure(&self, now: Moment) -> Self {
        let failures = self.failures.saturating_add(1);
        let Some(excess) = failures.checked_sub(CIRCUIT_THRESHOLD) else {
            return Self { failures, ..Self::default() };
        };
        let rest = FIRST_REST_MS.saturating_mul(2_u64.saturating_pow(excess.min(20))).min(MAX_REST_MS);
        Self { failures, open_until: Some(now.plus_ms(rest)), probe_until: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::default().plus_ms(ms)
    }

    #[test]
    fn retries_from_seconds_to_hours_over_three_days() {
        for random in [0, 7, 40, u32::MAX] {
            let (mut now, mut failures, give_up_at) = (at(0), 0, at(RETRY_WINDOW_MS));
            while let Some(next) = next_attempt(failures + 1, now, give_up_at, random) {
                failures += 1;
                let delay = next.ms_since(now);
                assert!((4_000..=MAX_DELAY_MS * 12 / 10).contains(&delay), "{delay}");
                now = next;
            }
            assert!((14..=22).contains(&failures), "{failures} retries");
            assert!(now >= at(RETRY_WINDOW_MS - MAX_DELAY_MS * 12 / 10));
        }
        assert_eq!(retry_delay_ms(1, 20), 5_000);
        assert_eq!([retry_delay_ms(1, 0), retry_delay_ms(1, 40)], [4_000, 6_000]);
        assert_eq!(retry_delay_ms(u32::MAX, 20), MAX_DELAY_MS);
    }

    #[test]
    fn circuit_opens_after_failures_and_lets_one_attempt_through() {
        let mut circuit = Circuit::default();
        for _ in 1..CIRCUIT_THRESHOLD {
            circuit = circuit.after_failure(at(0));
            assert_eq!(circuit.allowed_attempts(4, at(0)), 4);
        }
        circuit = circuit.after_failure(at(0));
        assert_eq!(circuit.state(at(0)), CircuitState::Open);
        assert_eq!(circuit.allowed_attempts(4, at(FIRST_REST_MS - 1)), 0);
        assert_eq!(circuit.state(at(FIRST_REST_MS)), CircuitState::HalfOpen);
        assert_eq!(circuit.allowed_attempts(4, at(FIRST_REST_MS)), 1);
        assert_eq!(circuit.allowed_attempts(0, at(FIRST_REST_MS)), 0);
        let probing = Circuit { probe_until: Some(at(FIRST_REST_MS + 10)), ..circuit };
        assert_eq!(probing.allowed_attempts(4, at(FIRST_REST_MS + 9)), 0);
        assert_eq!(
            probing.allowed_attempts(4, at(FIRST_REST_MS + 10)),
            1,
            "the process that tested it has stopped"
        );
        let longer = probing.after_failure(at(FIRST_REST_MS));
        assert_eq!(longer.open_until, Some(at(3 * FIRST_REST_MS)));
        let longest = Circuit { failures: u32::MAX, ..longer }.after_failure(at(0));
        assert_eq!(longest.open_until, Some(at(MAX_REST_MS)));
    }
}
