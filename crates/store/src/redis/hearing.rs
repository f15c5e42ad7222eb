//! Hints from other servers: which channels are followed for which requests, and who is woken by what is heard there.
//!
//! A hint says that it is worth asking, never what the answer is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ade_domain::lock::RequestKey;
use ade_keyspace::ChannelName;

use super::link::{Hint, Link};
use super::locked;
use crate::coordination::Watchers;

/// Requests that wait, by channel and agent.
#[derive(Clone)]
pub(super) struct Hearing {
    link: Link,
    watchers: Watchers,
    followed: Arc<Mutex<HashMap<String, Followed>>>,
}

struct Followed {
    channel: ChannelName,
    requests: Vec<(String, RequestKey)>,
}

impl Hearing {
    pub(super) fn new(link: Link, watchers: Watchers) -> Self {
        Self { link, watchers, followed: Arc::default() }
    }

    /// Follows a lock's channel for a request that somebody here watches. Whether that is new: then the caller must look
    /// again, because it may have missed something.
    pub(super) async fn follow(&self, channel: &ChannelName, agent: &str, request: RequestKey) -> bool {
        if !self.watchers.is_watched(request) {
            return false;
        }
        let is_new = {
            let mut followed = locked(&self.followed);
            match followed.get_mut(channel.as_str()) {
                Some(of_channel) => {
                    let known = of_channel.requests.iter().any(|(_, other)| *other == request);
                    if !known {
                        of_channel.requests.push((agent.to_owned(), request));
                    }
                    !known
                }
                None => {
                    self.link.subscribe(channel);
                    let requests = vec![(agent.to_owned(), request)];
                    followed
                        .insert(channel.as_str().to_owned(), Followed { channel: channel.clone(), requests });
                    true
                }
            }
        };
        if is_new && let Err(error) = self.link.subscribed(channel).await {
            tracing::debug!(%error, "a channel cannot be followed; its waiters ask by themselves");
        }
        is_new
    }

    /// Stops following for requests that nobody watches any more.
    pub(super) fn tidy(&self) {
        locked(&self.followed).retain(|_, of_channel| {
            of_channel.requests.retain(|(_, request)| self.watchers.is_watched(*request));
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
                    let meant = |agent: &str| {
                        let (word, of) = text.split_once(':').unwrap_or((&text, ""));
                        matches!(word, "promoted" | "left") && of == agent
                    };
                    let followed = locked(&self.followed);
                    let requests =
                        followed.get(&*channel).into_iter().flat_map(|of_channel| &of_channel.requests);
                    requests
                        .filter(|(agent, _)| meant(agent))
                        .for_each(|(_, request)| self.watchers.wake(*request));
                }
                Hint::Again => {
                    let followed = locked(&self.followed);
                    let requests = followed.values().flat_map(|of_channel| &of_channel.requests);
                    requests.for_each(|(_, request)| self.watchers.wake(*request));
                }
            }
        }
    }
}
