//! Which primary has which key: the only one, or on a cluster the owner of its slot.
//!
//! A topology older than the known one is never used. The gate of a primary that takes over slots, or returns with
//! another epoch, is closed before anything is routed to it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ade_catalog::slot::slot_of;
use ade_keyspace::Layout;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::connector::{Connector, on_disconnect, one_line};
use super::node::Node;
use super::topology::{self, ClusterNode, SLOTS};
use crate::redis::url::{Address, Kind};

/// Per node.
const TOPOLOGY_TIMEOUT: Duration = Duration::from_millis(500);

/// Finds topology changes that no error revealed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Used while a primary is unreachable.
const OUTAGE_REFRESH_INTERVAL: Duration = Duration::from_millis(200);

/// Applies to every refresh.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Connected nodes that are asked before all others.
const MAX_CONNECTED_QUERIED: usize = 2;

/// Slot owners as of one topology.
#[derive(Default)]
pub(super) struct SlotMap {
    pub(super) version: u64,
    /// Index into `primaries` by slot. Empty outside a cluster, and before the first topology.
    owners: Vec<Option<u16>>,
    pub(super) primaries: Vec<Arc<Node>>,
    /// Primaries without slots: one may be about to receive its first.
    spares: Vec<Arc<Node>>,
    epochs: HashMap<String, u64>,
    /// All nodes, including replicas: they know who took over.
    addresses: Vec<Address>,
}

impl SlotMap {
    /// The primary that has a key. Outside a cluster there are no slots, and one primary has every key.
    pub(super) fn owner_of(&self, key: &str) -> Option<&Arc<Node>> {
        if self.owners.is_empty() { self.primaries.first() } else { self.owner(slot_of(key.as_bytes())) }
    }

    fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = self.owners.get(usize::from(slot)).copied().flatten()?;
        self.primaries.get(usize::from(index))
    }

    pub(super) fn node_at(&self, address: &Address) -> Option<&Arc<Node>> {
        self.primaries.iter().chain(&self.spares).find(|node| node.address.as_ref() == Some(address))
    }

    fn is_newer_than(&self, nodes: &[ClusterNode]) -> bool {
        nodes.iter().any(|node| self.epochs.get(&node.id).is_some_and(|known| node.epoch < *known))
    }
}

pub(super) struct Servers {
    connector: Arc<Connector>,
    slot_map: watch::Sender<Arc<SlotMap>>,
    /// When the next refresh may start.
    next_refresh: Mutex<Instant>,
    refresh_requested: Notify,
}

impl Servers {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        let node = |address| Node::new(Arc::clone(&connector), address, String::new());
        let primaries = match &connector.url.kind {
            Kind::Standalone { .. } => vec![node(connector.url.hosts.first().cloned())],
            Kind::Sentinel { .. } => vec![node(None)],
            Kind::Cluster => Vec::new(),
        };
        let map = SlotMap { primaries, ..SlotMap::default() };
        Self {
            connector,
            slot_map: watch::Sender::new(Arc::new(map)),
            next_refresh: Mutex::new(Instant::now()),
            refresh_requested: Notify::new(),
        }
    }

    pub(super) fn slot_map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.slot_map.borrow())
    }

    pub(super) fn primaries(&self) -> Vec<Arc<Node>> {
        self.slot_map.borrow().primaries.clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<Arc<SlotMap>> {
        self.slot_map.subscribe()
    }

    /// The slot map may be outdated: refresh it soon.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Refreshes the slot map for as long as it is polled.
    pub(super) async fn refresh_periodically(&self) {
        loop {
            let map = self.slot_map();
            let is_any_down = map.primaries.iter().any(|node| node.is_down());
            let interval = if is_any_down { OUTAGE_REFRESH_INTERVAL } else { REFRESH_INTERVAL };
            let _ = timeout(interval, self.refresh_requested.notified()).await;
            if let Err(reason) = self.refresh(map.version, None).await {
                tracing::debug!(reason, "cannot refresh the topology of the Redis cluster");
            }
        }
    }

    /// Gets a slot map newer than `version`; `first` is asked first. Only a cluster has others.
    pub(super) async fn refresh(&self, version: u64, first: Option<&Address>) -> Result<(), String> {
        if self.connector.url.layout() != Layout::Cluster {
            return Ok(());
        }
        let mut next_refresh = self.next_refresh.lock().await;
        let before = self.slot_map();
        if before.version > version {
            return Ok(());
        }
        sleep_until(*next_refresh).await;
        let nodes = self.fetch_topology(&before, first).await;
        *next_refresh = Instant::now() + MIN_REFRESH_INTERVAL;
        self.install(&before, &nodes?);
        Ok(())
    }

    /// A topology that is not older than the known one.
    async fn fetch_topology(
        &self,
        before: &SlotMap,
        first: Option<&Address>,
    ) -> Result<Vec<ClusterNode>, String> {
        let mut reasons = Vec::new();
        let rotated = before.primaries.iter().cycle().skip(usize::try_from(before.version).unwrap_or(0));
        let rotated = rotated.take(before.primaries.len());
        let connected: Vec<_> = rotated.filter_map(|node| node.current_connection()).collect();
        let first = first.map(|address| {
            let active = connected.iter().find(|active| active.address == *address);
            (address, active.map(|active| active.connection.clone()))
        });
        let next = connected.iter().take(MAX_CONNECTED_QUERIED);
        let next = next.map(|active| (&active.address, Some(active.connection.clone())));
        for (address, connection) in first.into_iter().chain(next) {
            match query_nodes(&self.connector, address, connection).await {
                Ok(nodes) if !before.is_newer_than(&nodes) => return Ok(nodes),
                Ok(_) => reasons.push(format!("{address}: reports an outdated topology")),
                Err(reason) => reasons.push(reason),
            }
        }
        let others = before.addresses.iter().chain(&self.connector.url.hosts).cloned();
        let mut queries = JoinSet::new();
        for address in others.collect::<HashSet<Address>>() {
            let connector = Arc::clone(&self.connector);
            queries.spawn(async move { query_nodes(&connector, &address, None).await });
        }
        // If all nodes report an older topology it is the current one: the epoch of a node can decrease when it
        // changes its primary.
        let mut older = None;
        while let Some(result) = queries.join_next().await {
            match result {
                Ok(Ok(nodes)) if !before.is_newer_than(&nodes) => return Ok(nodes),
                Ok(Ok(nodes)) => older = Some(nodes),
                Ok(Err(reason)) => reasons.push(reason),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        older.ok_or_else(|| reasons.join("; "))
    }

    /// Makes a topology the current slot map.
    fn install(&self, before: &SlotMap, nodes: &[ClusterNode]) {
        let mut owners: Vec<Option<u16>> = vec![None; SLOTS];
        let (mut primaries, mut spares): (Vec<Arc<Node>>, Vec<Arc<Node>>) = (Vec::new(), Vec::new());
        let mut epochs = HashMap::new();
        for reported in nodes.iter().filter(|node| node.is_primary) {
            let known = before.node_at(&reported.address).filter(|node| node.id == reported.id);
            let node = known.cloned().unwrap_or_else(|| {
                Node::new(Arc::clone(&self.connector), Some(reported.address.clone()), reported.id.clone())
            });
            if reported.slots.is_empty() {
                spares.push(node);
                continue;
            }
            let Ok(index) = u16::try_from(primaries.len()) else { break };
            let mut is_new_owner = before.epochs.get(&reported.id) != Some(&reported.epoch);
            for slot in reported.slots.iter().flat_map(|(first, last)| *first..=*last) {
                let owner = u16::try_from(slot).ok().and_then(|slot| before.owner(slot));
                is_new_owner |= owner.is_none_or(|owner| owner.id != reported.id);
                if let Some(entry) = owners.get_mut(slot) {
                    *entry = Some(index);
                }
            }
            if is_new_owner && before.version > 0 {
                node.close_gate();
            }
            epochs.insert(reported.id.clone(), reported.epoch);
            primaries.push(node);
        }
        let addresses = nodes.iter().map(|node| node.address.clone()).collect();
        let map = SlotMap { version: before.version + 1, owners, primaries, spares, epochs, addresses };
        let is_same = map.owners == before.owners
            && map.primaries.len() == before.primaries.len()
            && map.primaries.iter().zip(&before.primaries).all(|(new, old)| Arc::ptr_eq(new, old));
        self.slot_map.send_if_modified(|current| {
            *current = Arc::new(map);
            // Subscribers need not react to a map that differs only in its version.
            !is_same
        });
    }
}

/// The topology that a node reports, over a new connection if there is none.
async fn query_nodes(
    connector: &Connector,
    address: &Address,
    connection: Option<MultiplexedConnection>,
) -> Result<Vec<ClusterNode>, String> {
    let query = async {
        let mut connection = match connection {
            Some(connection) => connection,
            None => connector.open(address, on_disconnect(|| ())).await?,
        };
        redis::cmd("CLUSTER").arg("NODES").query_async::<String>(&mut connection).await
    };
    let reply = match timeout(TOPOLOGY_TIMEOUT, query).await {
        Ok(reply) => reply.map_err(|error| one_line(&error)),
        Err(_) => Err(format!("no reply within {TOPOLOGY_TIMEOUT:?}")),
    };
    match reply.map(|text| topology::parse(&text, address, connector.url.tls)) {
        Ok(nodes) if nodes.iter().all(|node| node.slots.is_empty()) => {
            Err(format!("{address}: reports no slot owners"))
        }
        Ok(nodes) => Ok(nodes),
        Err(message) if message.contains("cluster support disabled") => {
            Err(format!("{address}: is not a cluster node; use redis://"))
        }
        Err(message) => Err(format!("{address}: {message}")),
    }
}
