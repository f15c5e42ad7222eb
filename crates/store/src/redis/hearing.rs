//! Hints from other servers: which channels are followed for which requests, and who is woken by what is heard there.
//!
//! A hint says that it is worth asking, never what the answer is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::lock::RequestKey;
use ade_keyspace::ChannelName;

use super::link::{Hint, Link};
use super::locked;
use crate::coordination::Subscriptions;

/// Messages name an agent, not a request: of an agent that waits many times for one lock, those who came first are woken. Who
/// came later asks by itself.
const WOKEN_AT_ONCE: usize = 4;

/// Requests that wait, by channel.
#[derive(Clone)]
pub(super) struct Hearing {
    link: Link,
    watchers: Subscriptions,
    followed: Arc<Mutex<HashMap<String, Followed>>>,
    numbers: Arc<AtomicU64>,
}

/// A channel, and for whom it is followed.
struct Followed {
    channel: ChannelName,
    /// Whether the server has confirmed it: nothing is missed from then on, unless we are told.
    heard: bool,
    /// Each with its agent.
    requests: HashMap<RequestKey, Follower>,
}

struct Follower {
    agent: String,
    /// Who came earlier has a smaller one.
    number: u64,
    /// Whether it was told that it waits, not only that it may have to.
    waits: bool,
}

impl Followed {
    fn waits(&self, request: RequestKey) -> bool {
        self.requests.get(&request).is_some_and(|follower| follower.waits)
    }
}

impl Hearing {
    pub(super) fn new(link: Link, watchers: Subscriptions) -> Self {
        Self { link, watchers, followed: Arc::default(), numbers: Arc::default() }
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a request is known to wait there: then it was announced when it began to.
    pub(super) fn knows(&self, channel: &ChannelName, request: RequestKey) -> bool {
        let followed = locked(&self.followed);
        followed.get(channel.as_str()).is_some_and(|of_channel| of_channel.waits(request))
    }

    /// If the channel is followed already, follows it for one more request that somebody here watches, before anything can
    /// happen to it. Whether it is.
    pub(super) fn join(&self, channel: &ChannelName, agent: &str, request: RequestKey) -> bool {
        if !self.watchers.is_watched(request) {
            return false;
        }
        let mut followed = locked(&self.followed);
        match followed.get_mut(channel.as_str()) {
            Some(of_channel) if of_channel.heard => {
                let number = self.next_number();
                let new = || Follower { agent: agent.to_owned(), number, waits: false };
                of_channel.requests.entry(request).or_insert_with(new);
                true
            }
            _ => false,
        }
    }

    /// A request that joined waits by now.
    pub(super) fn stays(&self, channel: &ChannelName, request: RequestKey) {
        let mut followed = locked(&self.followed);
        let follower =
            followed.get_mut(channel.as_str()).and_then(|of_channel| of_channel.requests.get_mut(&request));
        if let Some(follower) = follower {
            follower.waits = true;
        }
    }

    /// Follows a lock's channel for a request that somebody here watches. Whether that is new: then the caller must look
    /// again, because it may have missed something.
    pub(super) async fn follow(&self, channel: &ChannelName, agent: &str, request: RequestKey) -> bool {
        if !self.watchers.is_watched(request) {
            return false;
        }
        let is_new = {
            let mut followed = locked(&self.followed);
            let of_channel = followed.entry(channel.as_str().to_owned()).or_insert_with(|| {
                self.link.subscribe(channel);
                Followed { channel: channel.clone(), heard: false, requests: HashMap::new() }
            });
            let follower = Follower { agent: agent.to_owned(), number: self.next_number(), waits: true };
            of_channel.requests.insert(request, follower).is_none()
        };
        if is_new {
            match self.link.subscribed(channel).await {
                Ok(()) => {
                    if let Some(of_channel) = locked(&self.followed).get_mut(channel.as_str()) {
                        of_channel.heard = true;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a channel cannot be followed; its waiters ask by themselves");
                }
            }
        }
        is_new
    }

    /// Stops following for requests that nobody watches any more.
    pub(super) fn tidy(&self) {
        locked(&self.followed).retain(|_, of_channel| {
            of_channel.requests.retain(|request, _| self.watchers.is_watched(*request));
            let wanted = !of_channel.requests.is_empty();
            if !wanted {
                self.link.unsubscribe(&of_channel.channel);
            }
            wanted
        });
    }

    /// Wakes whoever is meant by what is heard. Runs until it is aborted.
    pub(super) async fn listen(self) {
        let mut hints = self.link.hints();
        while let Some(hint) = hints.next().await {
            match hint {
                Hint::Message { channel, text } => {
                    let Some((word, of)) = text.split_once(':') else { continue };
                    if !matches!(word, "promoted" | "left") {
                        continue;
                    }
                    let followed = locked(&self.followed);
                    let of_channel = followed.get(&*channel);
                    let requests = of_channel.into_iter().flat_map(|of_channel| &of_channel.requests);
                    let mut meant: Vec<(u64, RequestKey)> = requests
                        .filter(|(_, follower)| follower.agent == of)
                        .map(|(request, follower)| (follower.number, *request))
                        .collect();
                    meant.sort_unstable();
                    meant.iter().take(WOKEN_AT_ONCE).for_each(|(_, request)| self.watchers.wake(*request));
                }
                Hint::Again => {
                    let followed = locked(&self.followed);
                    let requests = followed.values().flat_map(|of_channel| of_channel.requests.keys());
                    requests.for_each(|request| self.watchers.wake(*request));
                }
            }
        }
    }
}
