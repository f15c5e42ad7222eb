//! Hints to those who wait: something happened to your request, ask again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::RequestKey;
use tokio::sync::Notify;

/// Who wants to hear about which request.
#[derive(Debug, Clone, Default)]
pub struct Subscriptions {
    by_request: Arc<Mutex<HashMap<RequestKey, Vec<Arc<Notify>>>>>,
}

impl Subscriptions {
    /// Starts to listen. What happens from now on is not missed, also if nobody waits yet.
    #[must_use]
    pub fn watch(&self, request: RequestKey) -> Subscription {
        let notify = Arc::new(Notify::new());
        self.lock().entry(request).or_default().push(notify.clone());
        Subscription { request, notify, watchers: self.clone() }
    }

    /// Whether anybody listens to this request.
    #[must_use]
    pub fn is_watched(&self, request: RequestKey) -> bool {
        self.lock().contains_key(&request)
    }

    /// Tells whoever listens to this request.
    pub fn wake(&self, request: RequestKey) {
        for notify in self.lock().get(&request).into_iter().flatten() {
            notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, Vec<Arc<Notify>>>> {
        self.by_request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An ear for one request.
#[derive(Debug)]
pub struct Subscription {
    request: RequestKey,
    notify: Arc<Notify>,
    watchers: Subscriptions,
}

impl Subscription {
    /// Waits until something happened to the request since this was called last.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut watchers = self.watchers.lock();
        if let Some(listening) = watchers.get_mut(&self.request) {
            listening.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            if listening.is_empty() {
                watchers.remove(&self.request);
            }
        }
    }
}
