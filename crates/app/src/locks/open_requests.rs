//! Counts what this process has open connections for: locks that are waited for, which need server heartbeats, and requests,
//! which are given up only with their last connection, and only until they are repeated.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys that are in use by open requests, with the number of users.
#[derive(Debug, Clone)]
pub(crate) struct OpenRequests<K: Ord + Clone> {
    keys: Arc<Mutex<Keys<K>>>,
}

#[derive(Debug)]
struct Keys<K> {
    counts: BTreeMap<K, usize>,
    /// Keys that were given up and not opened since, each with a number of its own.
    given_up: BTreeMap<K, u64>,
    last_given_up: u64,
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
        let keys = Keys { counts: BTreeMap::new(), given_up: BTreeMap::new(), last_given_up: 0 };
        Self { keys: Arc::new(Mutex::new(keys)) }
    }
}

impl<K: Ord + Clone> OpenRequests<K> {
    pub(super) fn open(&self, key: &K) -> OpenGuard<K> {
        let mut keys = self.lock();
        keys.given_up.remove(key);
        *keys.counts.entry(key.clone()).or_default() += 1;
        OpenGuard { key: Some(key.clone()), open: self.clone() }
    }

    pub(super) fn is_open(&self, key: &K) -> bool {
        self.lock().counts.contains_key(key)
    }

    pub(crate) fn all(&self) -> Vec<K> {
        self.lock().counts.keys().cloned().collect()
    }

    #[cfg(test)]
    pub(super) fn count(&self, key: &K) -> usize {
        self.lock().counts.get(key).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Keys<K>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> OpenGuard<K> {
    /// Closes it. If it was the last one of its key, the key is given up until it is opened again.
    pub(super) fn give_up(&mut self) -> Option<GivenUp<K>> {
        let key = self.key.take()?;
        let mut keys = self.open.lock();
        if !keys.close(&key) {
            return None;
        }
        keys.last_given_up += 1;
        let number = keys.last_given_up;
        keys.given_up.insert(key.clone(), number);
        Some(GivenUp { key, number, open: self.open.clone() })
    }
}

impl<K: Ord> Keys<K> {
    /// Returns whether nobody has the key open any more.
    fn close(&mut self, key: &K) -> bool {
        let left = self.counts.get_mut(key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            self.counts.remove(key);
        }
        left == 0
    }
}

/// A key that was given up.
#[derive(Debug)]
pub(super) struct GivenUp<K: Ord + Clone> {
    key: K,
    number: u64,
    open: OpenRequests<K>,
}

impl<K: Ord + Clone> GivenUp<K> {
    /// Whether the key was not opened since.
    pub(super) fn is_current(&self) -> bool {
        self.open.lock().given_up.get(&self.key) == Some(&self.number)
    }
}

impl<K: Ord + Clone> Drop for GivenUp<K> {
    fn drop(&mut self) {
        let mut keys = self.open.lock();
        if keys.given_up.get(&self.key) == Some(&self.number) {
            keys.given_up.remove(&self.key);
        }
    }
}

impl<K: Ord + Clone> Drop for OpenGuard<K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.open.lock().close(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_guard_gives_up_its_key_and_only_until_it_is_opened_again() {
        let open = OpenRequests::default();
        let mut first = open.open(&1);
        let mut second = open.open(&1);
        assert!(first.give_up().is_none(), "the second guard is still open");
        assert_eq!(open.all(), [1]);
        let given_up = second.give_up().expect("the last one");
        assert!(second.give_up().is_none(), "closing twice reports once");
        drop((first, second));
        assert!(open.all().is_empty() && !open.is_open(&1) && given_up.is_current());
        let again = open.open(&1).give_up().expect("the only one");
        assert!(!given_up.is_current(), "it was opened meanwhile");
        drop(given_up);
        assert!(again.is_current());
        drop(again);
        assert!(open.lock().given_up.is_empty());
    }
}
