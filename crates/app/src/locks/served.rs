//! What this process serves: locks whose waiters have their answers held open here, so that their marks are renewed, and
//! the requests behind them, so that one connection that breaks does not take the place from another that repeats it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::{LockName, RequestKey};

/// Things in use, counted.
#[derive(Debug)]
pub(crate) struct Counted<K> {
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// Locks with open answers, and the requests that are open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    pub(crate) locks: Counted<LockName>,
    pub(crate) requests: Counted<RequestKey>,
}

/// As long as this lives, the thing counts as in use.
#[derive(Debug)]
pub(super) struct InUse<K: Ord + Clone> {
    key: Option<K>,
    counted: Counted<K>,
}

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self { counts: Arc::default() }
    }
}

impl<K> Clone for Counted<K> {
    fn clone(&self) -> Self {
        Self { counts: self.counts.clone() }
    }
}

impl<K: Ord + Clone> Counted<K> {
    pub(super) fn begin(&self, key: &K) -> InUse<K> {
        *self.lock().entry(key.clone()).or_default() += 1;
        InUse { key: Some(key.clone()), counted: self.clone() }
    }

    /// All that is in use.
    pub(crate) fn all(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> InUse<K> {
    /// Ends the use; whether it was the last one of the same thing.
    pub(super) fn end(&mut self) -> bool {
        let Some(key) = self.key.take() else { return false };
        let mut counts = self.counted.lock();
        let left = counts.get_mut(&key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            counts.remove(&key);
        }
        left == 0
    }
}

impl<K: Ord + Clone> Drop for InUse<K> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_user_knows_that_it_is_the_last() {
        let served = Served::default();
        let key = RequestKey::once(1);
        let mut first = served.requests.begin(&key);
        let mut second = served.requests.begin(&key);
        assert!(!first.end(), "the other one is still there");
        assert_eq!(served.requests.all(), [key]);
        assert!(second.end() && !second.end(), "once");
        assert!(served.requests.all().is_empty());
        drop((first, second));
        assert!(served.requests.all().is_empty());
    }
}
