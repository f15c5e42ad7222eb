//! What the channels say: subscriptions that are kept whatever happens to the connections.
//!
//! A hint is never the truth: messages are lost while a connection is down, which is told as [`Hint::Again`]. Never blocks
//! a publisher, never holds more messages for a slow listener than the buffer: the listener is told `Again` too.

mod ear;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_keyspace::ChannelName;
use tokio::sync::{Notify, broadcast, oneshot};

pub(super) use ear::listen;

/// Hints that are kept for a listener that is busy.
const BUFFER: usize = 4096;

/// Something that was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::redis) enum Hint {
    /// A message.
    Message {
        /// On that channel, as the server spells it.
        channel: Arc<str>,
        /// What it says.
        text: Arc<str>,
    },
    /// Subscriptions were interrupted and are back: anything may have been missed.
    Again,
}

/// Listens to hints.
pub(in crate::redis) struct Hints(broadcast::Receiver<Hint>);

impl Hints {
    /// The next hint; `None` once the link is gone.
    pub(in crate::redis) async fn next(&mut self) -> Option<Hint> {
        match self.0.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Hint::Again),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A channel that is wanted.
struct Wish {
    times: usize,
    /// The batch in which it was last asked for.
    batch: Option<u64>,
    is_confirmed: bool,
    /// It was confirmed before and then interrupted.
    is_interrupted: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Table {
    wishes: HashMap<Arc<str>, Wish>,
    /// Channels that became wanted or were interrupted; some may not be wanted any more.
    unasked: Vec<Arc<str>>,
    /// Channels that are not wanted any more but may be subscribed.
    unwanted: Vec<Arc<str>>,
}

/// The channels that are wanted.
pub(super) struct Wishes {
    table: Mutex<Table>,
    changed: Notify,
    hints: broadcast::Sender<Hint>,
}

impl Wishes {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(Table::default()),
            changed: Notify::new(),
            hints: broadcast::Sender::new(BUFFER),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hints(&self) -> Hints {
        Hints(self.hints.subscribe())
    }

    pub(super) fn add(&self, channel: &ChannelName) {
        let mut table = self.table();
        if let Some(wish) = table.wishes.get_mut(channel.as_str()) {
            wish.times += 1;
            return;
        }
        let name: Arc<str> = channel.as_str().into();
        let wish =
            Wish { times: 1, batch: None, is_confirmed: false, is_interrupted: false, waiting: Vec::new() };
        table.wishes.insert(Arc::clone(&name), wish);
        table.unasked.push(name);
        self.changed.notify_one();
    }

    pub(super) fn remove(&self, channel: &ChannelName) {
        let mut table = self.table();
        let Some(wish) = table.wishes.get_mut(channel.as_str()) else { return };
        wish.times -= 1;
        if wish.times > 0 {
            return;
        }
        if let Some((name, _)) = table.wishes.remove_entry(channel.as_str()) {
            table.unwanted.push(name);
            self.changed.notify_one();
        }
    }

    /// Waits until the channel is confirmed; `false` if it is not wanted.
    pub(super) async fn confirmed(&self, channel: &ChannelName) -> bool {
        let told = {
            let mut table = self.table();
            let Some(wish) = table.wishes.get_mut(channel.as_str()) else { return false };
            if wish.is_confirmed {
                return true;
            }
            // Those who gave up are forgotten here, so that an outage does not gather them.
            wish.waiting.retain(|waiting| !waiting.is_closed());
            let (tell, told) = oneshot::channel();
            wish.waiting.push(tell);
            told
        };
        told.await.is_ok()
    }

    /// The server has confirmed a batch. Whether any of it had been interrupted.
    fn confirm(&self, batch: u64, channels: &[Arc<str>]) -> bool {
        let mut table = self.table();
        let mut was_interrupted = false;
        for channel in channels {
            let Some(wish) = table.wishes.get_mut(channel) else { continue };
            // Asked for again since: that later batch counts.
            if wish.batch != Some(batch) {
                continue;
            }
            wish.is_confirmed = true;
            was_interrupted |= std::mem::take(&mut wish.is_interrupted);
            for waiting in wish.waiting.drain(..) {
                let _ = waiting.send(());
            }
        }
        was_interrupted
    }

    /// The subscription of a channel is gone: ask for it again.
    fn interrupt<'a>(&self, channels: impl Iterator<Item = &'a Arc<str>>) {
        let mut table = self.table();
        for channel in channels {
            let Some(wish) = table.wishes.get_mut(channel) else { continue };
            wish.is_interrupted |= wish.is_confirmed;
            wish.is_confirmed = false;
            wish.batch = None;
            table.unasked.push(Arc::clone(channel));
        }
        drop(table);
        self.changed.notify_one();
    }

    /// What is to be done: channels to ask for, and channels to leave.
    fn take_changes(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let mut table = self.table();
        let table = &mut *table;
        let unwanted = std::mem::take(&mut table.unwanted);
        let mut unasked = std::mem::take(&mut table.unasked);
        unasked.retain(|channel| table.wishes.get(channel).is_some_and(|wish| wish.batch.is_none()));
        (unasked, unwanted)
    }

    /// Notes in which batch channels are asked for; returns those that are still wanted and were not asked for yet.
    fn ask(&self, batch: u64, channels: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let mut table = self.table();
        let mut asked = Vec::with_capacity(channels.len());
        for channel in channels {
            if let Some(wish) = table.wishes.get_mut(&channel)
                && wish.batch.is_none()
            {
                wish.batch = Some(batch);
                asked.push(channel);
            }
        }
        asked
    }

    /// Puts channels back that cannot be asked for now.
    fn put_back(&self, channels: Vec<Arc<str>>) {
        self.table().unasked.extend(channels);
    }

    fn tell(&self, hint: Hint) {
        // Nobody listens: nothing is missed.
        let _ = self.hints.send(hint);
    }
}
