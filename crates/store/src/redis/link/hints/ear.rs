//! The task that keeps subscriptions: one connection of its own to each server that has any.
//!
//! All of its state is its own; it ends when it is aborted, and its connections with it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ade_catalog::slot::slot_of;
use ade_keyspace::Layout;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::wire::{poll_once, send, text};
use super::{Hint, Wishes};
use crate::redis::link::connect::Connector;
use crate::redis::link::node::Node;
use crate::redis::link::{Servers, Shared};
use crate::redis::url::Address;

/// Subscriptions that go out together.
const BATCH: usize = 500;

/// Between two looks at whether connections live and are at the right server.
const LOOK: Duration = Duration::from_millis(500);

/// Looks between two questions to a silent server.
const LOOKS_PER_PING: u32 = 4;

/// Pause after a failed attempt to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// Something the task learns.
enum News {
    Opened { node: Arc<Node>, number: u64, result: Result<(MultiplexedConnection, Address), String> },
    Pushed { number: u64, info: PushInfo },
    Batch { ear: u64, batch: u64, channels: Vec<Arc<str>>, is_confirmed: bool },
    Silent { number: u64 },
}

/// A connection that listens.
struct Ear {
    node: Arc<Node>,
    number: u64,
    /// None while it connects.
    open: Option<(MultiplexedConnection, Address)>,
    channels: HashSet<Arc<str>>,
    /// Channels that we left and whose confirmation is under way.
    leaving: HashMap<Arc<str>, usize>,
    batches: usize,
    owes_again: bool,
}

struct Listener {
    shared: Arc<Shared>,
    ears: Vec<Ear>,
    news: mpsc::UnboundedSender<News>,
    tasks: JoinSet<()>,
    /// By node id: not before.
    paused: HashMap<String, Instant>,
    numbers: u64,
    is_sharded: bool,
}

/// Keeps subscriptions for as long as it is polled.
pub(in crate::redis::link) async fn listen(shared: Arc<Shared>) {
    let (news, mut heard) = mpsc::unbounded_channel();
    let is_sharded = shared.connector.url.layout() == Layout::Cluster;
    let mut maps = match &shared.servers {
        Servers::One(_) => None,
        Servers::Many(cluster) => Some(cluster.changes()),
    };
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0_u32;
    let mut listener = Listener {
        shared: Arc::clone(&shared),
        ears: Vec::new(),
        news,
        tasks: JoinSet::new(),
        paused: HashMap::new(),
        numbers: 0,
        is_sharded,
    };
    loop {
        let map_changed = async {
            match &mut maps {
                Some(maps) => maps.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.wishes.changed.notified() => listener.settle(),
            Some(news) = heard.recv() => listener.learn(news),
            _ = map_changed => {
                listener.leave_where(Listener::has_moved);
                listener.settle();
            }
            _ = look.tick() => {
                looks = looks.wrapping_add(1);
                listener.leave_where(Listener::is_at_another_server);
                if looks.is_multiple_of(LOOKS_PER_PING) {
                    listener.ping();
                }
                listener.settle();
            }
        }
        while listener.tasks.try_join_next().is_some() {}
    }
}

impl Listener {
    fn wishes(&self) -> &Wishes {
        &self.shared.wishes
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The server of a channel.
    fn home(&self, channel: &str) -> Option<Arc<Node>> {
        match &self.shared.servers {
            Servers::One(node) => Some(Arc::clone(node)),
            Servers::Many(cluster) => cluster.map().owner(slot_of(channel.as_bytes())).cloned(),
        }
    }

    /// Brings what is subscribed closer to what is wanted.
    fn settle(&mut self) {
        let (unasked, unwanted) = self.wishes().take_changes();
        self.leave(&unwanted);
        let mut homes: HashMap<String, (Arc<Node>, Vec<Arc<str>>)> = HashMap::new();
        let mut homeless = Vec::new();
        for channel in unasked {
            match self.home(&channel) {
                Some(node) => {
                    homes.entry(node.id.clone()).or_insert_with(|| (node, Vec::new())).1.push(channel);
                }
                None => homeless.push(channel),
            }
        }
        self.wishes().put_back(homeless);
        for (node, channels) in homes.into_values() {
            match self.ears.iter().position(|ear| Arc::ptr_eq(&ear.node, &node)) {
                Some(index) => self.ask(index, channels),
                None => {
                    self.wishes().put_back(channels);
                    self.open(node);
                }
            }
        }
    }

    /// Starts to connect to a server.
    fn open(&mut self, node: Arc<Node>) {
        if self.paused.get(&node.id).is_some_and(|until| Instant::now() < *until) {
            // The next look comes back to it.
            return;
        }
        let number = self.next_number();
        let ear = Ear {
            node: Arc::clone(&node),
            number,
            open: None,
            channels: HashSet::new(),
            leaving: HashMap::new(),
            batches: 0,
            owes_again: false,
        };
        self.ears.push(ear);
        let (connector, news) = (Arc::clone(&self.shared.connector), self.news.clone());
        self.tasks.spawn(async move {
            let result = connect(&connector, &node, number, news.clone()).await;
            let _ = news.send(News::Opened { node, number, result });
        });
    }

    /// Asks for channels at a server; if it is not connected yet, later.
    fn ask(&mut self, index: usize, channels: Vec<Arc<str>>) {
        let Some((connection, _)) = self.ears.get(index).and_then(|ear| ear.open.clone()) else {
            self.wishes().put_back(channels);
            return;
        };
        for channels in channels.chunks(BATCH) {
            let batch = self.next_number();
            let channels = self.wishes().ask(batch, channels.to_vec());
            if channels.is_empty() {
                continue;
            }
            let pipeline = self.pipeline("SUBSCRIBE", &channels);
            let Some(ear) = self.ears.get_mut(index) else { return };
            ear.batches += 1;
            ear.channels.extend(channels.iter().cloned());
            let (news, number) = (self.news.clone(), ear.number);
            // Queued here and now, so that the order of asking and leaving is the order on the wire.
            let within = self.shared.connector.options.answer_within;
            let mut sent = Box::pin(send(connection.clone(), pipeline));
            let first = poll_once(&mut sent);
            self.tasks.spawn(async move {
                let is_confirmed = match first {
                    Some(is_confirmed) => is_confirmed,
                    None => timeout(within, sent).await.unwrap_or(false),
                };
                let _ = news.send(News::Batch { ear: number, batch, channels, is_confirmed });
            });
        }
    }

    fn leave(&mut self, unwanted: &[Arc<str>]) {
        for index in 0..self.ears.len() {
            let Some(ear) = self.ears.get_mut(index) else { continue };
            let left: Vec<Arc<str>> =
                unwanted.iter().filter(|channel| ear.channels.remove(*channel)).cloned().collect();
            let Some((connection, _)) = ear.open.clone() else { continue };
            for channel in &left {
                *ear.leaving.entry(Arc::clone(channel)).or_default() += 1;
            }
            if left.is_empty() {
                continue;
            }
            let pipeline = self.pipeline("UNSUBSCRIBE", &left);
            let mut sent = Box::pin(send(connection, pipeline));
            if poll_once(&mut sent).is_none() {
                let within = self.shared.connector.options.answer_within;
                self.tasks.spawn(async move {
                    let _ = timeout(within, sent).await;
                });
            }
        }
    }

    fn pipeline(&self, verb: &str, channels: &[Arc<str>]) -> redis::Pipeline {
        let verb = format!("{}{verb}", if self.is_sharded { "S" } else { "" });
        let mut pipeline = redis::Pipeline::with_capacity(channels.len());
        for channel in channels {
            // One by one: a command may not name shard channels of several slots, and each is confirmed once.
            pipeline.cmd(&verb).arg(&**channel);
        }
        pipeline
    }

    fn learn(&mut self, news: News) {
        match news {
            News::Opened { node, number, result } => self.opened(&node, number, result),
            News::Pushed { number, info } => self.pushed(number, info),
            News::Silent { number } => self.lose(number),
            News::Batch { ear, batch, channels, is_confirmed } => {
                let Some(index) = self.ears.iter().position(|known| known.number == ear) else { return };
                if !is_confirmed {
                    // Refused or unanswered, for instance because the slot moved.
                    if let Servers::Many(cluster) = &self.shared.servers {
                        cluster.doubt();
                    }
                    self.lose(ear);
                    return;
                }
                let was_interrupted = self.wishes().confirm(batch, &channels);
                let Some(ear) = self.ears.get_mut(index) else { return };
                ear.owes_again |= was_interrupted;
                ear.batches -= 1;
                if ear.batches == 0 && std::mem::take(&mut ear.owes_again) {
                    self.wishes().tell(Hint::Again);
                }
            }
        }
    }

    fn opened(
        &mut self,
        node: &Arc<Node>,
        number: u64,
        result: Result<(MultiplexedConnection, Address), String>,
    ) {
        match result {
            Ok(open) => {
                self.paused.remove(&node.id);
                if let Some(ear) = self.ears.iter_mut().find(|ear| ear.number == number) {
                    ear.open = Some(open);
                }
                self.settle();
            }
            Err(reason) => {
                tracing::debug!(reason, "no connection for subscriptions");
                self.lose(number);
            }
        }
    }

    fn pushed(&mut self, number: u64, info: PushInfo) {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let mut data = info.data.into_iter();
                if let (Some(channel), Some(text)) = (data.next().and_then(text), data.next().and_then(text))
                {
                    self.wishes().tell(Hint::Message { channel, text });
                }
            }
            PushKind::Disconnection => self.lose(number),
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                let Some(channel) = info.data.into_iter().next().and_then(text) else { return };
                let Some(ear) = self.ears.iter_mut().find(|ear| ear.number == number) else { return };
                if let Some(times) = ear.leaving.get_mut(&channel) {
                    *times -= 1;
                    if *times == 0 {
                        ear.leaving.remove(&channel);
                    }
                } else {
                    // The server left us, as it does when a slot moves; its confirmations are out of step now.
                    self.lose(number);
                }
            }
            _ => {}
        }
    }

    /// Drops a connection; its channels are asked for again.
    fn lose(&mut self, number: u64) {
        let Some(index) = self.ears.iter().position(|ear| ear.number == number) else { return };
        let ear = self.ears.swap_remove(index);
        self.paused.insert(ear.node.id.clone(), Instant::now() + PAUSE);
        self.wishes().interrupt(ear.channels.iter());
        if ear.owes_again {
            // Some of its channels were back already and will not be reported by the next confirmation.
            self.wishes().tell(Hint::Again);
        }
    }

    /// Whether channels of a connection belong elsewhere by now.
    fn has_moved(&self, ear: &Ear) -> bool {
        let has_left = !self.shared.primaries().iter().any(|node| Arc::ptr_eq(node, &ear.node));
        let is_elsewhere =
            |channel: &Arc<str>| self.home(channel).is_none_or(|home| !Arc::ptr_eq(&home, &ear.node));
        has_left || ear.channels.iter().any(is_elsewhere)
    }

    /// Whether calls go to another server by now, as sentinels decided.
    fn is_at_another_server(&self, ear: &Ear) -> bool {
        match (&ear.open, ear.node.now_up()) {
            (Some((_, address)), Some(up)) => *address != up.address,
            _ => false,
        }
    }

    /// Leaves connections that are in the wrong place, and goes to the right one at once.
    fn leave_where(&mut self, is_wrong: impl Fn(&Self, &Ear) -> bool) {
        let wrong = self.ears.iter().filter(|ear| is_wrong(self, ear)).map(|ear| ear.number);
        for number in wrong.collect::<Vec<u64>>() {
            self.lose(number);
            self.paused.clear();
        }
    }

    /// Asks every server whether it is there: a connection to a vanished one would stay silent for ever.
    fn ping(&mut self) {
        let within = self.shared.connector.options.answer_within;
        for ear in &self.ears {
            let Some((mut connection, _)) = ear.open.clone() else { continue };
            let (news, number) = (self.news.clone(), ear.number);
            self.tasks.spawn(async move {
                let ping = redis::cmd("PING");
                let pong = timeout(within, connection.send_packed_command(&ping)).await;
                if !matches!(pong, Ok(Ok(_))) {
                    let _ = news.send(News::Silent { number });
                }
            });
        }
    }
}

async fn connect(
    connector: &Connector,
    node: &Node,
    number: u64,
    news: mpsc::UnboundedSender<News>,
) -> Result<(MultiplexedConnection, Address), String> {
    let pushed = move |info: PushInfo| news.send(News::Pushed { number, info }).map_err(|_| SendError);
    let within = connector.options.connect_within;
    let reached = timeout(within, connector.reach(node.fixed.as_ref(), pushed))
        .await
        .unwrap_or_else(|_| Err(format!("no connection within {within:?}")))?;
    Ok((reached.connection, reached.address))
}
