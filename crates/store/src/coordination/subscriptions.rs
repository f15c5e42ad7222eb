//! Notifications for callers that wait for a lock request: something happened to it, check again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::RequestKey;
use tokio::sync::Notify;

/// The subscriptions of this process, by request; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Subscriptions {
    by_request: Arc<Mutex<HashMap<RequestKey, Vec<Arc<Notify>>>>>,
}

impl Subscriptions {
    /// Subscribes to a request. A notification from now on is not lost, even if nobody waits for it yet.
    #[must_use]
    pub fn subscribe(&self, request: RequestKey) -> Subscription {
        let notify = Arc::new(Notify::new());
        self.lock().entry(request).or_default().push(notify.clone());
        Subscription { request, notify, subscriptions: self.clone() }
    }

    #[must_use]
    pub fn has_subscribers(&self, request: RequestKey) -> bool {
        self.lock().contains_key(&request)
    }

    pub fn notify(&self, request: RequestKey) {
        for notify in self.lock().get(&request).into_iter().flatten() {
            notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, Vec<Arc<Notify>>>> {
        self.by_request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription to one request, until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    request: RequestKey,
    notify: Arc<Notify>,
    subscriptions: Subscriptions,
}

impl Subscription {
    /// Waits for a notification since the last call.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut by_request = self.subscriptions.lock();
        if let Some(subscribers) = by_request.get_mut(&self.request) {
            subscribers.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if subscribers.is_empty() {
                by_request.remove(&self.request);
            }
        }
    }
}
