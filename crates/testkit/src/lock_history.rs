//! What clients saw of exclusive locks, and the checks that it never contradicts itself: tokens are unique and grow, and no two clients
//! held a lock at the same time. It is recorded while servers fail, so only what a server confirmed counts.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// A grant as its client saw it.
#[derive(Debug, Clone)]
pub struct ObservedGrant {
    pub lock: String,
    pub holder: String,
    pub token: u64,
    /// When the request was sent that returned the grant.
    pub requested_at: Instant,
    /// When the grant arrived.
    pub granted_at: Instant,
    /// When the release was sent, if a server confirmed that the lock was held until then.
    pub held_until: Option<Instant>,
}

/// All grants that any client saw.
#[derive(Debug, Default)]
pub struct LockHistory(Mutex<Vec<ObservedGrant>>);

impl LockHistory {
    pub fn record(&self, grant: ObservedGrant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(grant);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The contradictions; none if all is well.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut by_lock: BTreeMap<String, Vec<ObservedGrant>> = BTreeMap::new();
        for grant in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            by_lock.entry(grant.lock.clone()).or_default().push(grant.clone());
        }
        by_lock.into_values().flat_map(|grants| contradictions(&grants)).collect()
    }
}

fn contradictions(grants: &[ObservedGrant]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, one) in grants.iter().enumerate() {
        for other in grants.iter().skip(at + 1) {
            let (first, second) = if one.token <= other.token { (one, other) } else { (other, one) };
            if first.token == second.token {
                found.push(format!("a token was granted twice: {first:?} {second:?}"));
            }
            // The greater token was granted before the other one was requested.
            if second.granted_at < first.requested_at {
                found.push(format!("a token is smaller than an earlier one: {first:?} {second:?}"));
            }
            let is_overlapping = |one: &ObservedGrant, other: &ObservedGrant| {
                one.held_until.zip(other.held_until).is_some_and(|(one_until, other_until)| {
                    one.granted_at < other_until && other.granted_at < one_until
                })
            };
            if is_overlapping(first, second) {
                found.push(format!("held twice: {first:?} {second:?}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn finds_every_contradiction() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let grant = |token, requested, granted, until: Option<u64>| ObservedGrant {
            lock: "task:1".to_owned(),
            holder: "ann".to_owned(),
            token,
            requested_at: at(requested),
            granted_at: at(granted),
            held_until: until.map(at),
        };
        let found = |grants: &[ObservedGrant]| {
            let history = LockHistory::default();
            grants.iter().for_each(|grant| history.record(grant.clone()));
            assert_eq!(history.len(), grants.len());
            history.contradictions().len()
        };
        assert_eq!(found(&[grant(1, 0, 1, Some(2)), grant(2, 0, 3, Some(4))]), 0);
        assert_eq!(found(&[grant(1, 0, 1, Some(2)), grant(1, 0, 3, Some(4))]), 1, "twice the same token");
        assert_eq!(found(&[grant(2, 0, 1, Some(2)), grant(1, 2, 3, Some(4))]), 1, "a smaller token later");
        assert_eq!(found(&[grant(2, 0, 1, Some(2)), grant(1, 0, 3, Some(4))]), 0, "requested before");
        assert_eq!(found(&[grant(1, 0, 1, Some(4)), grant(2, 0, 3, Some(5))]), 1, "at the same time");
        assert_eq!(found(&[grant(1, 0, 1, None), grant(2, 0, 3, Some(5))]), 0, "not confirmed");
    }
}
