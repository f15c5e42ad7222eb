//! Wakes waiting requests when another server changes their lock: which channels are subscribed for which requests,
//! and which requests a message wakes.
//!
//! A message only says that it is worth asking again, never what the reply will be.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::lock::{RequestKey, SharedStr};
use ade_keyspace::ChannelName;

use super::connection::{ChannelEvent, RedisClient};
use super::locked;
use crate::coordination::Subscriptions;

/// Messages name an agent, not a request. If an agent has many waiting requests for one lock, only the oldest are
/// woken; the others poll.
const MAX_WOKEN: usize = 4;

/// Waiting requests by channel.
#[derive(Clone)]
pub(super) struct WaiterNotifications {
    client: RedisClient,
    subscriptions: Subscriptions,
    channels: Arc<Mutex<HashMap<String, SubscribedChannel>>>,
    next_number: Arc<AtomicU64>,
}

struct SubscribedChannel {
    channel: ChannelName,
    /// Whether the server confirmed the subscription. From then on nothing is missed without a gap event.
    is_confirmed: bool,
    requests: HashMap<RequestKey, WaitingRequest>,
    /// The same requests by agent, in the order in which they are woken.
    by_agent: BTreeMap<(SharedStr, u64), RequestKey>,
}

struct WaitingRequest {
    agent: SharedStr,
    /// Requests are woken in ascending order.
    number: u64,
    /// Whether the request certainly waits, as opposed to being about to acquire.
    is_waiting: bool,
}

impl SubscribedChannel {
    fn new(channel: ChannelName) -> Self {
        Self { channel, is_confirmed: false, requests: HashMap::new(), by_agent: BTreeMap::new() }
    }

    fn is_waiting(&self, request: RequestKey) -> bool {
        self.requests.get(&request).is_some_and(|waiting| waiting.is_waiting)
    }

    /// Adds a request unless it is there. Returns whether it is new.
    fn add(&mut self, request: RequestKey, agent: &str, number: u64, is_waiting: bool) -> bool {
        match self.requests.entry(request) {
            Entry::Occupied(mut known) => {
                known.get_mut().is_waiting |= is_waiting;
                false
            }
            Entry::Vacant(vacant) => {
                let agent: SharedStr = agent.into();
                self.by_agent.insert((agent.clone(), number), request);
                vacant.insert(WaitingRequest { agent, number, is_waiting });
                true
            }
        }
    }

    /// Removes the requests that nobody watches. Returns whether any is left.
    fn prune(&mut self, subscriptions: &Subscriptions) -> bool {
        self.requests.retain(|request, waiting| {
            let is_watched = subscriptions.has_subscribers(*request);
            if !is_watched {
                self.by_agent.remove(&(waiting.agent.clone(), waiting.number));
            }
            is_watched
        });
        !self.requests.is_empty()
    }

    /// The oldest requests of an agent.
    fn oldest_of(&self, agent: &str) -> impl Iterator<Item = RequestKey> {
        let agent: SharedStr = agent.into();
        let of_agent = self.by_agent.range((agent.clone(), 0)..=(agent, u64::MAX));
        of_agent.take(MAX_WOKEN).map(|(_, request)| *request)
    }
}

impl WaiterNotifications {
    pub(super) fn new(client: RedisClient, subscriptions: Subscriptions) -> Self {
        Self { client, subscriptions, channels: Arc::default(), next_number: Arc::default() }
    }

    fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a request is known to wait for this lock, so its wait was announced before.
    pub(super) fn is_waiting(&self, channel: &ChannelName, request: RequestKey) -> bool {
        let channels = locked(&self.channels);
        channels.get(channel.as_str()).is_some_and(|subscribed| subscribed.is_waiting(request))
    }

    /// Adds a request to a channel whose subscription is already confirmed, before anything can happen to the
    /// request. Returns whether that is so. Only for requests that somebody on this server watches.
    pub(super) fn join(&self, channel: &ChannelName, agent: &str, request: RequestKey) -> bool {
        if !self.subscriptions.has_subscribers(request) {
            return false;
        }
        let mut channels = locked(&self.channels);
        match channels.get_mut(channel.as_str()) {
            Some(subscribed) if subscribed.is_confirmed => {
                subscribed.add(request, agent, self.next_number(), false);
                true
            }
            _ => false,
        }
    }

    pub(super) fn set_waiting(&self, channel: &ChannelName, request: RequestKey) {
        let mut channels = locked(&self.channels);
        let subscribed = channels.get_mut(channel.as_str());
        if let Some(waiting) = subscribed.and_then(|subscribed| subscribed.requests.get_mut(&request)) {
            waiting.is_waiting = true;
        }
    }

    /// Subscribes to a lock's channel for a request that somebody on this server watches. Returns whether the request
    /// is new on it: then the caller must ask again, because it may have missed a message.
    pub(super) async fn subscribe(&self, channel: &ChannelName, agent: &str, request: RequestKey) -> bool {
        if !self.subscriptions.has_subscribers(request) {
            return false;
        }
        let is_new = {
            let mut channels = locked(&self.channels);
            let subscribed = channels.entry(channel.as_str().to_owned()).or_insert_with(|| {
                self.client.subscribe(channel);
                SubscribedChannel::new(channel.clone())
            });
            subscribed.add(request, agent, self.next_number(), true)
        };
        if is_new {
            match self.client.confirm_subscription(channel).await {
                Ok(()) => {
                    if let Some(subscribed) = locked(&self.channels).get_mut(channel.as_str()) {
                        subscribed.is_confirmed = true;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot subscribe to a lock channel; its waiters poll");
                }
            }
        }
        is_new
    }

    /// Unsubscribes from channels that no watched request needs.
    pub(super) fn prune(&self) {
        locked(&self.channels).retain(|_, subscribed| {
            let is_needed = subscribed.prune(&self.subscriptions);
            if !is_needed {
                self.client.unsubscribe(&subscribed.channel);
            }
            is_needed
        });
    }

    /// Wakes requests on messages and gaps. Runs until it is aborted.
    pub(super) async fn run(self) {
        let mut events = self.client.channel_events();
        while let Some(event) = events.next().await {
            match event {
                ChannelEvent::Message { channel, text } => {
                    let Some((kind, agent)) = text.split_once(':') else { continue };
                    if !matches!(kind, "promoted" | "left") {
                        continue;
                    }
                    let channels = locked(&self.channels);
                    let woken =
                        channels.get(&*channel).into_iter().flat_map(|channel| channel.oldest_of(agent));
                    woken.for_each(|request| self.subscriptions.notify(request));
                }
                ChannelEvent::Gap => {
                    let channels = locked(&self.channels);
                    let requests = channels.values().flat_map(|subscribed| subscribed.requests.keys());
                    requests.for_each(|request| self.subscriptions.notify(*request));
                }
            }
        }
    }
}
