//! Which primary of a cluster owns which slot, as far as is known.
//!
//! A view that is older than what is known is never taken. A primary that takes over slots, or comes back to them with
//! another epoch, has its gate closed before anybody is sent to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::{Connector, nobody, plain};
use super::node::Node;
use super::view::{self, SLOTS, Seen};
use crate::redis::url::Address;

/// How long one node may take to say what it knows.
const VIEW_TIMEOUT: Duration = Duration::from_millis(500);

/// Between two refreshes, if nothing gives a reason: finds primaries that changed unnoticed.
const CALM: Duration = Duration::from_secs(2);

/// The same while a primary is out of reach.
const UNEASY: Duration = Duration::from_millis(200);

/// Least time between two refreshes, whatever happens.
const BREATH: Duration = Duration::from_millis(50);

/// Most nodes with a connection that are asked before all the others are.
const ASKED_FIRST: usize = 2;

/// Owners of slots at one moment.
pub(super) struct Map {
    pub(super) number: u64,
    /// Index into `primaries` by slot.
    owners: Vec<Option<u16>>,
    pub(super) primaries: Vec<Arc<Node>>,
    /// Primaries without slots: one may be about to receive its first.
    spares: Vec<Arc<Node>>,
    epochs: HashMap<String, u64>,
    /// Every node that was seen, replicas too: they know who took over.
    places: Vec<Address>,
}

impl Map {
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = self.owners.get(usize::from(slot)).copied().flatten()?;
        self.primaries.get(usize::from(index))
    }

    /// The primary at an address.
    pub(super) fn at(&self, address: &Address) -> Option<&Arc<Node>> {
        self.primaries.iter().chain(&self.spares).find(|node| node.fixed.as_ref() == Some(address))
    }

    fn is_older(&self, view: &[Seen]) -> bool {
        view.iter().any(|seen| self.epochs.get(&seen.id).is_some_and(|known| seen.epoch < *known))
    }
}

/// A cluster.
pub(super) struct Cluster {
    connector: Arc<Connector>,
    map: watch::Sender<Arc<Map>>,
    /// When the next refresh may begin.
    refreshing: Mutex<Instant>,
    doubt: Notify,
}

impl Cluster {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        let nothing = Map {
            number: 0,
            owners: vec![None; SLOTS],
            primaries: Vec::new(),
            spares: Vec::new(),
            epochs: HashMap::new(),
            places: Vec::new(),
        };
        Self {
            connector,
            map: watch::Sender::new(Arc::new(nothing)),
            refreshing: Mutex::new(Instant::now()),
            doubt: Notify::new(),
        }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.borrow())
    }

    pub(super) fn changes(&self) -> watch::Receiver<Arc<Map>> {
        self.map.subscribe()
    }

    /// The map may be wrong: have it looked at soon.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Keeps the map fresh for as long as it is polled.
    pub(super) async fn keep_fresh(&self) {
        loop {
            let map = self.map();
            let pause = if map.primaries.iter().any(|node| node.is_down()) { UNEASY } else { CALM };
            let _ = timeout(pause, self.doubt.notified()).await;
            if let Err(reason) = self.refresh(map.number, None).await {
                tracing::debug!(reason, "no view of the redis cluster");
            }
        }
    }

    /// Gets a map that is newer than number `seen`; `first` is asked first.
    pub(super) async fn refresh(&self, seen: u64, first: Option<&Address>) -> Result<(), String> {
        let mut not_before = self.refreshing.lock().await;
        let before = self.map();
        if before.number > seen {
            return Ok(());
        }
        sleep_until(*not_before).await;
        let view = self.view(&before, first).await;
        *not_before = Instant::now() + BREATH;
        self.take(&before, &view?);
        Ok(())
    }

    /// What some node says, and is not older than what is known.
    async fn view(&self, before: &Map, first: Option<&Address>) -> Result<Vec<Seen>, String> {
        let mut reasons = Vec::new();
        if let Some(address) = first {
            match self.ask_at(address.clone(), before).await {
                Ok(view) => return Ok(view),
                Err(reason) => reasons.push(reason),
            }
        }
        let rotated = before.primaries.iter().cycle().skip(usize::try_from(before.number).unwrap_or(0));
        let connected = rotated.take(before.primaries.len()).filter_map(|node| node.now_up());
        for up in connected.take(ASKED_FIRST) {
            match self.ask(up.connection.clone(), &up.address, before).await {
                Ok(view) => return Ok(view),
                Err(reason) => reasons.push(reason),
            }
        }
        let mut others: Vec<Address> = Vec::new();
        for place in before.places.iter().chain(&self.connector.url.hosts) {
            if !others.contains(place) {
                others.push(place.clone());
            }
        }
        let mut asked = JoinSet::new();
        for address in others {
            let connector = Arc::clone(&self.connector);
            asked.spawn(async move {
                let view = look(&connector, &address).await;
                view.map_err(|reason| format!("{address}: {reason}"))
            });
        }
        // If nobody knows better, what looked old is how it is: epochs of a node shrink when it changes sides.
        let mut old = None;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(view)) if !before.is_older(&view) => return Ok(view),
                Ok(Ok(view)) => old = Some(view),
                Ok(Err(reason)) => reasons.push(reason),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        old.ok_or_else(|| reasons.join("; "))
    }

    async fn ask_at(&self, address: Address, before: &Map) -> Result<Vec<Seen>, String> {
        let up = before.primaries.iter().filter_map(|node| node.now_up()).find(|up| up.address == address);
        if let Some(up) = up {
            return self.ask(up.connection.clone(), &address, before).await;
        }
        let view = look(&self.connector, &address).await.map_err(|reason| format!("{address}: {reason}"))?;
        if before.is_older(&view) { Err(format!("{address}: an old view")) } else { Ok(view) }
    }

    async fn ask(
        &self,
        connection: MultiplexedConnection,
        address: &Address,
        before: &Map,
    ) -> Result<Vec<Seen>, String> {
        let tls = self.connector.url.tls;
        let answer = timeout(VIEW_TIMEOUT, nodes(connection, address, tls)).await;
        let view = answer.unwrap_or_else(|_| Err(format!("no answer within {VIEW_TIMEOUT:?}")));
        match view {
            Ok(view) if before.is_older(&view) => Err(format!("{address}: an old view")),
            other => other.map_err(|reason| format!("{address}: {reason}")),
        }
    }

    /// Makes a view the map.
    fn take(&self, before: &Map, view: &[Seen]) {
        let mut owners: Vec<Option<u16>> = vec![None; SLOTS];
        let (mut primaries, mut spares): (Vec<Arc<Node>>, Vec<Arc<Node>>) = (Vec::new(), Vec::new());
        let mut epochs = HashMap::new();
        for seen in view.iter().filter(|seen| seen.is_primary) {
            let known = before.at(&seen.address).filter(|node| node.id == seen.id);
            let node = known.cloned().unwrap_or_else(|| {
                Node::new(Arc::clone(&self.connector), Some(seen.address.clone()), seen.id.clone())
            });
            if seen.slots.is_empty() {
                spares.push(node);
                continue;
            }
            let Ok(index) = u16::try_from(primaries.len()) else { break };
            let mut is_new_there = before.epochs.get(&seen.id) != Some(&seen.epoch);
            for slot in seen.slots.iter().flat_map(|(first, last)| *first..=*last) {
                let owner = u16::try_from(slot).ok().and_then(|slot| before.owner(slot));
                is_new_there |= owner.is_none_or(|owner| owner.id != seen.id);
                if let Some(entry) = owners.get_mut(slot) {
                    *entry = Some(index);
                }
            }
            if is_new_there && before.number > 0 {
                node.hold();
            }
            epochs.insert(seen.id.clone(), seen.epoch);
            primaries.push(node);
        }
        let places = view.iter().map(|seen| seen.address.clone()).collect();
        let map = Map { number: before.number + 1, owners, primaries, spares, epochs, places };
        let is_same = map.owners == before.owners && same(&map.primaries, &before.primaries);
        self.map.send_if_modified(|current| {
            *current = Arc::new(map);
            // Those who follow the owners need not look at a map that only has another number.
            !is_same
        });
    }
}

fn same(left: &[Arc<Node>], right: &[Arc<Node>]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| Arc::ptr_eq(left, right))
}

/// The view of a node to which there is no connection.
async fn look(connector: &Connector, address: &Address) -> Result<Vec<Seen>, String> {
    let looking = async {
        let connection = connector.open(address, nobody).await.map_err(|error| plain(&error))?;
        nodes(connection, address, connector.url.tls).await
    };
    timeout(VIEW_TIMEOUT, looking).await.unwrap_or_else(|_| Err(format!("no answer within {VIEW_TIMEOUT:?}")))
}

async fn nodes(
    mut connection: MultiplexedConnection,
    address: &Address,
    tls: bool,
) -> Result<Vec<Seen>, String> {
    let mut question = redis::cmd("CLUSTER");
    let answer: Result<String, _> = question.arg("NODES").query_async(&mut connection).await;
    let answer = answer.map_err(|error| match plain(&error) {
        said if said.contains("cluster support disabled") => {
            "is no node of a cluster; say redis://".to_owned()
        }
        said => said,
    });
    let view = view::read(&answer?, address, tls);
    if view.iter().all(|seen| seen.slots.is_empty()) {
        return Err("knows no owner of any slot".to_owned());
    }
    Ok(view)
}
