//! What this process holds answers open for: locks, whose marks must be renewed, and requests, which are given up with
//! their last open answer only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks or requests with open answers, counted.
#[derive(Debug, Clone)]
pub struct Served<K: Ord + Clone> {
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// As long as this lives, what it is for counts as served.
#[derive(Debug)]
pub(super) struct Serving<K: Ord + Clone> {
    /// Nothing, once it has ended.
    what: Option<K>,
    served: Served<K>,
}

impl<K: Ord + Clone> Default for Served<K> {
    fn default() -> Self {
        Self { counts: Arc::default() }
    }
}

impl<K: Ord + Clone> Served<K> {
    pub(super) fn begin(&self, what: &K) -> Serving<K> {
        *self.lock().entry(what.clone()).or_default() += 1;
        Serving { what: Some(what.clone()), served: self.clone() }
    }

    pub(super) fn serves(&self, what: &K) -> bool {
        self.lock().contains_key(what)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> Serving<K> {
    /// Ends it before its time; whether nobody else serves the same.
    pub(super) fn end(&mut self) -> bool {
        let Some(what) = self.what.take() else { return false };
        let mut counts = self.served.lock();
        let left = counts.get_mut(&what).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            counts.remove(&what);
        }
        left == 0
    }
}

impl<K: Ord + Clone> Drop for Serving<K> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_knows_that_it_is_the_last() {
        let served = Served::default();
        let mut first = served.begin(&1);
        let mut second = served.begin(&1);
        assert!(!first.end(), "the other one is still there");
        assert_eq!(served.all(), [1]);
        assert!(second.end() && !second.end(), "once");
        drop((first, second));
        assert!(served.all().is_empty() && !served.serves(&1));
    }
}
