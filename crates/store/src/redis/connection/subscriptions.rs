//! Channel subscriptions that survive the loss of connections.
//!
//! Messages are lost while a connection is down; [`ChannelEvent::Gap`] reports that. A publisher is never blocked,
//! and a slow receiver that exceeds its buffer gets a gap too.

mod send;
mod subscriber;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ade_keyspace::ChannelName;
use tokio::sync::{Notify, broadcast, watch};

pub(super) use subscriber::run_subscriber;

use crate::redis::locked;

/// Events buffered for a slow receiver.
const EVENT_BUFFER: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChannelEvent {
    Message {
        /// As spelled by the server.
        channel: Arc<str>,
        text: Arc<str>,
    },
    /// Messages may have been lost: subscriptions were interrupted and restored, or the receiver was too slow.
    Gap,
}

pub(crate) struct ChannelEvents(broadcast::Receiver<ChannelEvent>);

impl ChannelEvents {
    /// Returns `None` once the client is dropped.
    pub(crate) async fn next(&mut self) -> Option<ChannelEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(ChannelEvent::Gap),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A subscribed channel.
#[derive(Default)]
struct ChannelState {
    /// The batch of the last SUBSCRIBE.
    batch: Option<u64>,
    is_confirmed: watch::Sender<bool>,
    /// It was confirmed before and then interrupted.
    is_interrupted: bool,
}

#[derive(Default)]
struct SubscriptionTable {
    channels: HashMap<Arc<str>, ChannelState>,
    /// Channels to subscribe, because they are new or were interrupted; some may be unsubscribed meanwhile.
    added: Vec<Arc<str>>,
    /// Channels to unsubscribe.
    removed: Vec<Arc<str>>,
}

pub(super) struct ChannelSubscriptions {
    table: Mutex<SubscriptionTable>,
    changed: Notify,
    events: broadcast::Sender<ChannelEvent>,
}

impl ChannelSubscriptions {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(SubscriptionTable::default()),
            changed: Notify::new(),
            events: broadcast::Sender::new(EVENT_BUFFER),
        }
    }

    fn table(&self) -> MutexGuard<'_, SubscriptionTable> {
        locked(&self.table)
    }

    pub(super) fn events(&self) -> ChannelEvents {
        ChannelEvents(self.events.subscribe())
    }

    pub(super) fn add(&self, channel: &ChannelName) {
        let mut table = self.table();
        if !table.channels.contains_key(channel.as_str()) {
            let name: Arc<str> = channel.as_str().into();
            table.channels.insert(Arc::clone(&name), ChannelState::default());
            table.added.push(name);
            self.changed.notify_one();
        }
    }

    pub(super) fn remove(&self, channel: &ChannelName) {
        let mut table = self.table();
        if let Some((name, _)) = table.channels.remove_entry(channel.as_str()) {
            table.removed.push(name);
            self.changed.notify_one();
        }
    }

    /// Returns `false` if the channel is not subscribed.
    pub(super) async fn wait_confirmed(&self, channel: &ChannelName) -> bool {
        let confirmed =
            self.table().channels.get(channel.as_str()).map(|state| state.is_confirmed.subscribe());
        let Some(mut confirmed) = confirmed else { return false };
        confirmed.wait_for(|is_confirmed| *is_confirmed).await.is_ok()
    }

    /// Marks the channels of a batch as confirmed. Returns whether any of them had been interrupted.
    fn confirm(&self, batch: u64, channels: &[Arc<str>]) -> bool {
        let mut table = self.table();
        let mut was_interrupted = false;
        for channel in channels {
            let Some(state) = table.channels.get_mut(channel) else { continue };
            // A later batch subscribes it again.
            if state.batch != Some(batch) {
                continue;
            }
            state.is_confirmed.send_replace(true);
            was_interrupted |= std::mem::take(&mut state.is_interrupted);
        }
        was_interrupted
    }

    /// Marks channels as lost, to be subscribed again.
    fn interrupt<'a>(&self, channels: impl Iterator<Item = &'a Arc<str>>) {
        let mut table = self.table();
        for channel in channels {
            let Some(state) = table.channels.get_mut(channel) else { continue };
            state.is_interrupted |= state.is_confirmed.send_replace(false);
            state.batch = None;
            table.added.push(Arc::clone(channel));
        }
        drop(table);
        self.changed.notify_one();
    }

    /// Returns the channels to subscribe and the channels to unsubscribe.
    fn take_changes(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let mut table = self.table();
        let table = &mut *table;
        let removed = std::mem::take(&mut table.removed);
        let mut added = std::mem::take(&mut table.added);
        added.retain(|channel| table.channels.get(channel).is_some_and(|state| state.batch.is_none()));
        (added, removed)
    }

    /// Assigns channels to a batch. Returns those that still need a SUBSCRIBE.
    fn assign_batch(&self, batch: u64, channels: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let mut table = self.table();
        let mut assigned = Vec::with_capacity(channels.len());
        for channel in channels {
            if let Some(state) = table.channels.get_mut(&channel)
                && state.batch.is_none()
            {
                state.batch = Some(batch);
                assigned.push(channel);
            }
        }
        assigned
    }

    fn requeue(&self, channels: Vec<Arc<str>>) {
        self.table().added.extend(channels);
    }

    fn send_event(&self, event: ChannelEvent) {
        // Fails only without receivers.
        let _ = self.events.send(event);
    }
}
