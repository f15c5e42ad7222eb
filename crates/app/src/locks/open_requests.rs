//! Counts what this process has open connections for: locks that are waited for, which need server heartbeats, and requests,
//! which are cancelled only with their last connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys that are in use by open requests, with the number of users.
#[derive(Debug, Clone)]
pub(crate) struct OpenRequests<K: Ord + Clone> {
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// Keeps its key open while it lives.
#[derive(Debug)]
pub(super) struct OpenGuard<K: Ord + Clone> {
    /// `None` once it is closed.
    key: Option<K>,
    open: OpenRequests<K>,
}

impl<K: Ord + Clone> Default for OpenRequests<K> {
    fn default() -> Self {
        Self { counts: Arc::default() }
    }
}

impl<K: Ord + Clone> OpenRequests<K> {
    pub(super) fn open(&self, key: &K) -> OpenGuard<K> {
        *self.lock().entry(key.clone()).or_default() += 1;
        OpenGuard { key: Some(key.clone()), open: self.clone() }
    }

    pub(super) fn is_open(&self, key: &K) -> bool {
        self.lock().contains_key(key)
    }

    pub(crate) fn all(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> OpenGuard<K> {
    /// Closes it early; returns whether it was the last one of its key.
    pub(super) fn close(&mut self) -> bool {
        let Some(key) = self.key.take() else { return false };
        let mut counts = self.open.lock();
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

impl<K: Ord + Clone> Drop for OpenGuard<K> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_guard_reports_that_its_key_is_closed() {
        let open = OpenRequests::default();
        let mut first = open.open(&1);
        let mut second = open.open(&1);
        assert!(!first.close(), "the second guard is still open");
        assert_eq!(open.all(), [1]);
        assert!(second.close() && !second.close(), "closing twice reports once");
        drop((first, second));
        assert!(open.all().is_empty() && !open.is_open(&1));
    }
}
