//! Which locks have waiters whose answers this process holds open: their marks must be renewed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::LockName;

/// Locks with open answers, counted.
#[derive(Debug, Clone, Default)]
pub struct Served {
    locks: Arc<Mutex<BTreeMap<LockName, usize>>>,
}

/// As long as this lives, the lock counts as served.
#[derive(Debug)]
pub(super) struct Serving {
    lock: LockName,
    served: Served,
}

impl Served {
    pub(super) fn begin(&self, lock: &LockName) -> Serving {
        *self.lock().entry(lock.clone()).or_default() += 1;
        Serving { lock: lock.clone(), served: self.clone() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<LockName> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LockName, usize>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut locks = self.served.lock();
        if let Some(count) = locks.get_mut(&self.lock) {
            *count -= 1;
            if *count == 0 {
                locks.remove(&self.lock);
            }
        }
    }
}
