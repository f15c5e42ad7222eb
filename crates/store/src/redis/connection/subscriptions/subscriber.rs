//! The task that maintains subscriptions, with one connection to each server that has any.
//!
//! Its state is not shared. Aborting it closes its connections.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ade_keyspace::Layout;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::send::{pipeline, poll_once, send, text};
use super::{ChannelEvent, ChannelSubscriptions};
use crate::redis::connection::ClientState;
use crate::redis::connection::node::Node;
use crate::redis::url::Address;

/// Channels per pipeline.
const BATCH: usize = 500;

/// How often connections are checked for being alive and at the right server.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

const CHECKS_PER_PING: u32 = 4;

const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

type OpenConnection = (MultiplexedConnection, Address);

/// What the tasks of a subscriber report to it, about the connection `id`.
enum SubscriberEvent {
    Connected { id: u64, node: Arc<Node>, result: Result<OpenConnection, String> },
    Pushed { id: u64, info: PushInfo },
    BatchDone { id: u64, batch: u64, channels: Vec<Arc<str>>, is_confirmed: bool },
    Unresponsive { id: u64 },
}

/// The connection to one server, with its subscriptions.
struct SubscribedServer {
    node: Arc<Node>,
    /// `None` while it connects.
    connection: Option<OpenConnection>,
    channels: HashSet<Arc<str>>,
    /// UNSUBSCRIBE commands per channel that are not confirmed yet.
    unsubscribing: HashMap<Arc<str>, usize>,
    unconfirmed_batches: usize,
    /// A gap event is due when all batches are confirmed.
    owes_gap: bool,
}

struct Subscriber {
    state: Arc<ClientState>,
    /// By the id of the connection.
    servers: HashMap<u64, SubscribedServer>,
    events: mpsc::UnboundedSender<SubscriberEvent>,
    tasks: JoinSet<()>,
    /// By node id: when to connect again.
    retry_after: HashMap<String, Instant>,
    last_id: u64,
    /// Of the names of commands: a cluster has sharded channels.
    prefix: &'static str,
}

/// Runs until it is aborted.
pub(crate) async fn run_subscriber(state: Arc<ClientState>) {
    let (events, mut received) = mpsc::unbounded_channel();
    let mut slot_maps = state.servers.changes();
    let mut check = interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut checks = 0_u32;
    let mut subscriber = Subscriber {
        state: Arc::clone(&state),
        servers: HashMap::new(),
        events,
        tasks: JoinSet::new(),
        retry_after: HashMap::new(),
        last_id: 0,
        prefix: if state.connector.url.layout() == Layout::Cluster { "S" } else { "" },
    };
    loop {
        tokio::select! {
            () = state.subscriptions.changed.notified() => subscriber.reconcile(),
            Some(event) = received.recv() => subscriber.handle(event),
            _ = slot_maps.changed() => {
                subscriber.drop_where(Subscriber::has_moved_channels);
                subscriber.reconcile();
            }
            _ = check.tick() => {
                checks = checks.wrapping_add(1);
                subscriber.drop_where(Subscriber::has_moved_primary);
                if checks.is_multiple_of(CHECKS_PER_PING) {
                    subscriber.ping();
                }
                subscriber.reconcile();
            }
        }
        while subscriber.tasks.try_join_next().is_some() {}
    }
}

impl Subscriber {
    fn subscriptions(&self) -> &ChannelSubscriptions {
        &self.state.subscriptions
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The server that serves a channel.
    fn owner(&self, channel: &str) -> Option<Arc<Node>> {
        self.state.servers.slot_map().owner_of(channel).cloned()
    }

    /// Subscribes and unsubscribes until the server state matches the requested one.
    fn reconcile(&mut self) {
        let (added, removed) = self.subscriptions().take_changes();
        self.unsubscribe(&removed);
        let mut by_owner: HashMap<String, (Arc<Node>, Vec<Arc<str>>)> = HashMap::new();
        let mut without_owner = Vec::new();
        for channel in added {
            match self.owner(&channel) {
                Some(node) => {
                    by_owner.entry(node.id.clone()).or_insert_with(|| (node, Vec::new())).1.push(channel);
                }
                None => without_owner.push(channel),
            }
        }
        self.subscriptions().requeue(without_owner);
        for (node, channels) in by_owner.into_values() {
            match self.servers.iter().find(|(_, server)| Arc::ptr_eq(&server.node, &node)) {
                Some((id, _)) => self.subscribe(*id, channels),
                None => {
                    self.subscriptions().requeue(channels);
                    self.start_connecting(node);
                }
            }
        }
    }

    fn start_connecting(&mut self, node: Arc<Node>) {
        if self.retry_after.get(&node.id).is_some_and(|until| Instant::now() < *until) {
            // The next check retries.
            return;
        }
        let id = self.next_id();
        let server = SubscribedServer {
            node: Arc::clone(&node),
            connection: None,
            channels: HashSet::new(),
            unsubscribing: HashMap::new(),
            unconfirmed_batches: 0,
            owes_gap: false,
        };
        self.servers.insert(id, server);
        let (connector, events) = (Arc::clone(&self.state.connector), self.events.clone());
        let pushes = events.clone();
        let push_sender =
            move |info| pushes.send(SubscriberEvent::Pushed { id, info }).map_err(|_| SendError);
        self.tasks.spawn(async move {
            let result = connector.connect_primary(node.address.as_ref(), push_sender).await;
            let result = result.map(|connected| (connected.connection, connected.address));
            let _ = events.send(SubscriberEvent::Connected { id, node, result });
        });
    }

    /// Subscribes to channels; if the connection is not open yet, later.
    fn subscribe(&mut self, id: u64, channels: Vec<Arc<str>>) {
        let Some((connection, _)) = self.servers.get(&id).and_then(|server| server.connection.clone()) else {
            return self.subscriptions().requeue(channels);
        };
        for channels in channels.chunks(BATCH) {
            let batch = self.next_id();
            let channels = self.subscriptions().assign_batch(batch, channels.to_vec());
            if channels.is_empty() {
                continue;
            }
            let Some(server) = self.servers.get_mut(&id) else { return };
            server.unconfirmed_batches += 1;
            server.channels.extend(channels.iter().cloned());
            let (events, pipeline) = (self.events.clone(), pipeline(self.prefix, "SUBSCRIBE", &channels));
            // Polled here, so that SUBSCRIBE and UNSUBSCRIBE are sent in the order of these calls.
            let within = self.state.connector.options.response_timeout;
            let mut sent = Box::pin(send(connection.clone(), pipeline));
            let first = poll_once(&mut sent);
            self.tasks.spawn(async move {
                let is_confirmed = match first {
                    Some(is_confirmed) => is_confirmed,
                    None => timeout(within, sent).await.unwrap_or(false),
                };
                let _ = events.send(SubscriberEvent::BatchDone { id, batch, channels, is_confirmed });
            });
        }
    }

    fn unsubscribe(&mut self, removed: &[Arc<str>]) {
        for server in self.servers.values_mut() {
            let channels: Vec<Arc<str>> =
                removed.iter().filter(|channel| server.channels.remove(*channel)).cloned().collect();
            let Some((connection, _)) = server.connection.clone() else { continue };
            for channel in &channels {
                *server.unsubscribing.entry(Arc::clone(channel)).or_default() += 1;
            }
            if channels.is_empty() {
                continue;
            }
            let mut sent = Box::pin(send(connection, pipeline(self.prefix, "UNSUBSCRIBE", &channels)));
            if poll_once(&mut sent).is_none() {
                let within = self.state.connector.options.response_timeout;
                self.tasks.spawn(async move {
                    let _ = timeout(within, sent).await;
                });
            }
        }
    }

    fn handle(&mut self, event: SubscriberEvent) {
        match event {
            SubscriberEvent::Connected { id, node, result } => self.handle_connected(id, &node, result),
            SubscriberEvent::Pushed { id, info } => self.handle_push(id, info),
            SubscriberEvent::Unresponsive { id } => self.drop_connection(id),
            SubscriberEvent::BatchDone { id, batch, channels, is_confirmed } => {
                let Some(server) = self.servers.get_mut(&id) else { return };
                if !is_confirmed {
                    // Refused or not answered, for example because the slot moved.
                    self.state.servers.request_refresh();
                    return self.drop_connection(id);
                }
                server.owes_gap |= self.state.subscriptions.confirm(batch, &channels);
                server.unconfirmed_batches -= 1;
                if server.unconfirmed_batches == 0 && std::mem::take(&mut server.owes_gap) {
                    self.subscriptions().send_event(ChannelEvent::Gap);
                }
            }
        }
    }

    fn handle_connected(&mut self, id: u64, node: &Arc<Node>, result: Result<OpenConnection, String>) {
        match result {
            Ok(connection) => {
                self.retry_after.remove(&node.id);
                if let Some(server) = self.servers.get_mut(&id) {
                    server.connection = Some(connection);
                }
                self.reconcile();
            }
            Err(reason) => {
                tracing::debug!(reason, "cannot connect for subscriptions");
                self.drop_connection(id);
            }
        }
    }

    fn handle_push(&mut self, id: u64, info: PushInfo) {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let mut data = info.data.into_iter();
                if let (Some(channel), Some(text)) = (data.next().and_then(text), data.next().and_then(text))
                {
                    self.subscriptions().send_event(ChannelEvent::Message { channel, text });
                }
            }
            PushKind::Disconnection => self.drop_connection(id),
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                let Some(channel) = info.data.into_iter().next().and_then(text) else { return };
                let Some(server) = self.servers.get_mut(&id) else { return };
                if let Some(count) = server.unsubscribing.get_mut(&channel) {
                    *count -= 1;
                    if *count == 0 {
                        server.unsubscribing.remove(&channel);
                    }
                } else {
                    // The server unsubscribed us, as it does when a slot moves; pending confirmations cannot be
                    // matched any more.
                    self.drop_connection(id);
                }
            }
            _ => {}
        }
    }

    /// Drops a connection; its channels are subscribed again.
    fn drop_connection(&mut self, id: u64) {
        let Some(server) = self.servers.remove(&id) else { return };
        self.retry_after.insert(server.node.id.clone(), Instant::now() + RECONNECT_BACKOFF);
        self.subscriptions().interrupt(server.channels.iter());
        if server.owes_gap {
            // Some of its channels were restored already, and the next confirmation will not report them.
            self.subscriptions().send_event(ChannelEvent::Gap);
        }
    }

    /// Whether some channels of a connection belong to another server now.
    fn has_moved_channels(&self, server: &SubscribedServer) -> bool {
        let is_primary = self.state.servers.primaries().iter().any(|node| Arc::ptr_eq(node, &server.node));
        let has_moved =
            |channel: &Arc<str>| self.owner(channel).is_none_or(|owner| !Arc::ptr_eq(&owner, &server.node));
        !is_primary || server.channels.iter().any(has_moved)
    }

    /// Whether the sentinels have moved the primary to another server.
    fn has_moved_primary(&self, server: &SubscribedServer) -> bool {
        match (&server.connection, server.node.current_connection()) {
            (Some((_, address)), Some(active)) => *address != active.address,
            _ => false,
        }
    }

    /// Drops connections to wrong servers and reconnects without backoff.
    fn drop_where(&mut self, is_wrong: impl Fn(&Self, &SubscribedServer) -> bool) {
        let wrong = self.servers.iter().filter(|(_, server)| is_wrong(self, server)).map(|(id, _)| *id);
        for id in wrong.collect::<Vec<u64>>() {
            self.drop_connection(id);
            self.retry_after.clear();
        }
    }

    /// Detects servers that vanished without closing the connection.
    fn ping(&mut self) {
        let within = self.state.connector.options.response_timeout;
        for (&id, server) in &self.servers {
            let Some((mut connection, _)) = server.connection.clone() else { continue };
            let events = self.events.clone();
            self.tasks.spawn(async move {
                let ping = redis::cmd("PING");
                let pong = timeout(within, connection.send_packed_command(&ping)).await;
                if !matches!(pong, Ok(Ok(_))) {
                    let _ = events.send(SubscriberEvent::Unresponsive { id });
                }
            });
        }
    }
}
