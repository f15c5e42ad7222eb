//! Notifications for callers that wait for a lock request: something happened to it, check again. A grant whose lease started
//! with the promotion comes along: its caller need not check.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::{Grant, Holder, LockCommand, LockName, RequestKey, UnreportedLease};
use tokio::sync::Notify;

/// A lease that started with the promotion of a waiter and is not reported to its caller yet.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreportedGrant {
    pub lock: LockName,
    pub holder: Holder,
    pub grant: Grant,
}

impl UnreportedGrant {
    /// The command that gives it back.
    #[must_use]
    pub fn return_command(&self) -> LockCommand {
        let lease = UnreportedLease::WithToken(self.grant.token);
        LockCommand::ReturnUnreported { holder: self.holder.clone(), lease }
    }
}

/// The subscriptions of this process, by request; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Subscriptions {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    by_request: HashMap<RequestKey, Subscribers>,
    /// Grants that no caller took.
    returned: Vec<UnreportedGrant>,
}

#[derive(Debug, Default)]
struct Subscribers {
    all: Vec<Arc<Subscriber>>,
    /// A grant that several subscribers were notified of. It is to be returned when the last of them leaves, which does nothing
    /// if one of them has asked for it.
    asked_for: Option<UnreportedGrant>,
}

#[derive(Debug, Default)]
struct Subscriber {
    notify: Notify,
    grant: Mutex<Option<UnreportedGrant>>,
}

impl Subscriptions {
    /// Subscribes to a request. A notification from now on is not lost, even if nobody waits for it yet.
    #[must_use]
    pub fn subscribe(&self, request: RequestKey) -> Subscription {
        let subscriber = Arc::<Subscriber>::default();
        locked(&self.state).by_request.entry(request).or_default().all.push(subscriber.clone());
        Subscription { request, subscriber, subscriptions: self.clone() }
    }

    #[must_use]
    pub fn has_subscribers(&self, request: RequestKey) -> bool {
        locked(&self.state).by_request.contains_key(&request)
    }

    pub fn notify(&self, request: RequestKey) {
        if let Some(subscribers) = locked(&self.state).by_request.get(&request) {
            subscribers.notify_all();
        }
    }

    /// Hands a grant to the only subscriber of its request. Several subscribers are notified instead, and ask for it: what is
    /// handed over must be reported at most once. Without a subscriber it is to be returned.
    pub fn deliver(&self, request: RequestKey, grant: UnreportedGrant) {
        let mut state = locked(&self.state);
        let Some(subscribers) = state.by_request.get_mut(&request) else {
            state.returned.push(grant);
            return;
        };
        match subscribers.all.as_slice() {
            [only] => *locked(&only.grant) = Some(grant),
            _ => subscribers.asked_for = Some(grant),
        }
        subscribers.notify_all();
    }

    /// The grants that no caller took since the last call.
    #[must_use]
    pub fn take_returned(&self) -> Vec<UnreportedGrant> {
        std::mem::take(&mut locked(&self.state).returned)
    }

    /// Keeps a grant that could not be given back for the next attempt.
    pub fn put_back(&self, grant: UnreportedGrant) {
        locked(&self.state).returned.push(grant);
    }
}

impl Subscribers {
    fn notify_all(&self) {
        self.all.iter().for_each(|subscriber| subscriber.notify.notify_one());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscription to one request, until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    request: RequestKey,
    subscriber: Arc<Subscriber>,
    subscriptions: Subscriptions,
}

impl Subscription {
    /// Waits for a notification since the last call. Returns the grant if the notification brought it; the caller of the request
    /// must get it.
    pub async fn changed(&self) -> Option<Grant> {
        self.subscriber.notify.notified().await;
        locked(&self.subscriber.grant).take().map(|delivered| delivered.grant)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = locked(&self.subscriptions.state);
        let State { by_request, returned } = &mut *state;
        returned.extend(locked(&self.subscriber.grant).take());
        if let Entry::Occupied(mut subscribers) = by_request.entry(self.request) {
            let all = &mut subscribers.get_mut().all;
            all.retain(|subscriber| !Arc::ptr_eq(subscriber, &self.subscriber));
            if all.is_empty() {
                returned.extend(subscribers.remove().asked_for);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::Moment;
    use ade_domain::lock::{FencingToken, LockMode};
    use futures_util::FutureExt;

    use super::*;

    fn grant() -> UnreportedGrant {
        let now = Moment::from_micros(1);
        let token = FencingToken::from_number(7);
        UnreportedGrant {
            lock: "task:1".parse().expect("valid"),
            holder: Holder::new("ann", None).expect("valid"),
            grant: Grant {
                mode: LockMode::Exclusive,
                token,
                acquired_at: now,
                expires_at: now,
                claimed: true,
            },
        }
    }

    #[test]
    fn delivers_a_grant_to_one_subscriber_or_returns_it() {
        let (subscriptions, request) = (Subscriptions::default(), RequestKey::from_nonce(1));
        subscriptions.deliver(request, grant());
        assert_eq!(subscriptions.take_returned(), [grant()], "nobody waits for it");

        let first = subscriptions.subscribe(request);
        subscriptions.deliver(request, grant());
        assert_eq!(first.changed().now_or_never(), Some(Some(grant().grant)));
        drop(first);
        assert_eq!(subscriptions.take_returned(), [], "its caller has it");

        let first = subscriptions.subscribe(request);
        subscriptions.deliver(request, grant());
        drop(first);
        assert_eq!(subscriptions.take_returned(), [grant()], "its caller has left");

        let (first, second) = (subscriptions.subscribe(request), subscriptions.subscribe(request));
        subscriptions.deliver(request, grant());
        assert_eq!(first.changed().now_or_never(), Some(None), "asks for it");
        assert_eq!(second.changed().now_or_never(), Some(None), "asks for it");
        drop(first);
        assert_eq!(subscriptions.take_returned(), [], "the second may have it");
        drop(second);
        assert_eq!(subscriptions.take_returned(), [grant()], "which does nothing if one of them has asked");
    }
}
