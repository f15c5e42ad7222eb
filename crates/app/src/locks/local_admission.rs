//! The rate limit of an agent's lock requests while coordination, which counts it for all processes, is unavailable: each process counts
//! its own. It is never open: agents that it has no room for are refused.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ade_domain::Moment;
use ade_domain::rate::{RateWindow, WINDOW_MS};

/// As many agents as requests can be stored.
const MAX_AGENTS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct LocalAdmission(Mutex<HashMap<String, RateWindow>>);

impl LocalAdmission {
    /// Counts the locks of a request; fails with the time to retry at.
    pub(super) fn admit(&self, agent: &str, locks: usize, limit: u32, now: Moment) -> Result<(), Moment> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= MAX_AGENTS && !windows.contains_key(agent) {
            windows.retain(|_, window| !window.is_expired(now));
            if windows.len() >= MAX_AGENTS {
                return Err(now.plus_ms(WINDOW_MS));
            }
        }
        // More locks than the limit count as many as it allows: such a request must be possible, too, unless none is allowed.
        let weight = u32::try_from(locks).unwrap_or(u32::MAX).min(limit).max(1);
        windows.entry(agent.to_owned()).or_default().admit(weight, limit, now).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_agent_and_refuses_agents_without_room() {
        let (admission, start) = (LocalAdmission::default(), Moment::from_micros(1_000_000));
        assert!(admission.admit("ann", 2, 3, start).is_ok());
        let retry_at = admission.admit("ann", 2, 3, start).expect_err("too many locks");
        assert!(retry_at > start);
        assert!(admission.admit("ann", 1, 3, start).is_ok() && admission.admit("ben", 9, 3, start).is_ok());
        assert!(admission.admit("cem", 1, 0, start).is_err(), "none is allowed, which leaves nothing");
        for number in 2..MAX_AGENTS {
            assert!(admission.admit(&number.to_string(), 1, 1, start).is_ok());
        }
        assert!(admission.admit("new", 1, 1, start).is_err(), "no room");
        assert!(
            admission.admit("new", 1, 1, start.plus_ms(3 * WINDOW_MS)).is_ok(),
            "all others have expired"
        );
    }
}
