//! What clients may use before they are authenticated: connections, turns to be served and buffered bytes, per address and in
//! total. An authenticated connection only counts against the total number of connections.
//!
//! A connection that sent nothing yet needs no turn, because it has no buffers. Turns are waited for: a burst of clients from one
//! address is served one after the other, and nobody else waits for it. Nobody keeps a turn or a connection that others need: after
//! [`MIN_TURN`], a connection that waits for its client is closed to make room, the oldest one of the address that has the most.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

/// Open connections. Further ones wait in the accept queue of the operating system.
pub(super) const MAX_CONNECTIONS: usize = 16_384;
/// Connections that are not authenticated. The rest is kept free for authenticated ones.
const MAX_ANONYMOUS: usize = MAX_CONNECTIONS / 2;
const MAX_ANONYMOUS_PER_ADDRESS: usize = MAX_CONNECTIONS / 4;
/// Connections that are served at the same time before they are authenticated.
const MAX_TURNS: usize = 1_024;
const MAX_TURNS_PER_ADDRESS: usize = 256;
/// How long a connection keeps its place or its turn while others need it, unless the server works on a request of it.
const MIN_TURN: Duration = Duration::from_secs(1);
/// A connection that waits for a turn looks this often for another one to close.
const MAKE_ROOM_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of bodies that are buffered at the same time for callers that are not authenticated.
const MAX_BUFFERED: usize = 16 << 20;
const MAX_BUFFERED_PER_ADDRESS: usize = 2 << 20;

/// What all connections use; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    usage: Mutex<Usage>,
    turns: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Usage {
    anonymous: usize,
    buffered: usize,
    next_id: u64,
    /// Only addresses that use something.
    by_address: HashMap<IpAddr, AddressUsage>,
}

#[derive(Debug)]
struct AddressUsage {
    anonymous: usize,
    buffered: usize,
    turns: Arc<Semaphore>,
    without_turn: Closable,
    with_turn: Closable,
}

/// Connections that wait for their client, by the time from which they may be closed, and their ids.
type Closable = BTreeMap<(Instant, u64), Arc<Notify>>;

impl Default for AddressUsage {
    fn default() -> Self {
        Self {
            anonymous: 0,
            buffered: 0,
            turns: Arc::new(Semaphore::new(MAX_TURNS_PER_ADDRESS)),
            without_turn: Closable::new(),
            with_turn: Closable::new(),
        }
    }
}

impl AddressUsage {
    const fn closable(&self, has_turn: bool) -> &Closable {
        if has_turn { &self.with_turn } else { &self.without_turn }
    }

    const fn closable_mut(&mut self, has_turn: bool) -> &mut Closable {
        if has_turn { &mut self.with_turn } else { &mut self.without_turn }
    }
}

/// One network of a customer counts as one address.
fn counted_address(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl Default for Connections {
    fn default() -> Self {
        let turns = Arc::new(Semaphore::new(MAX_TURNS));
        Self(Arc::new(Shared { usage: Mutex::default(), turns }))
    }
}

impl Connections {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.0.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection; `None` if there are too many that are not authenticated, and all of them are new. With `is_proxy` its
    /// address has no limit of its own: many clients share it.
    pub(super) fn admit(&self, peer: SocketAddr, is_proxy: bool, now: Instant) -> Option<Connection> {
        let address = counted_address(peer.ip());
        let mut usage = self.usage();
        let of_address = usage.by_address.get(&address).map_or(0, |usage| usage.anonymous);
        if !is_proxy && of_address >= MAX_ANONYMOUS_PER_ADDRESS && !usage.close_one(Some(address), false, now)
        {
            return None;
        }
        if usage.anonymous >= MAX_ANONYMOUS && !usage.close_one(None, false, now) {
            return None;
        }
        usage.anonymous += 1;
        usage.next_id += 1;
        let closable_from = (now + MIN_TURN, usage.next_id);
        let of_address = usage.by_address.entry(address).or_default();
        of_address.anonymous += 1;
        let turns = (!is_proxy).then(|| of_address.turns.clone());
        let close = Arc::new(Notify::new());
        of_address.without_turn.insert(closable_from, close.clone());
        drop(usage);
        let anonymous = Anonymous {
            connections: self.clone(),
            address,
            turns,
            permits: Vec::new(),
            closable_from,
            is_busy: false,
            close: close.clone(),
        };
        Some(Connection { peer, anonymous: Arc::new(Mutex::new(Some(anonymous))), close, _permit: None })
    }

    /// Reserves memory for bytes of a caller that is not authenticated; `None` if there is too little.
    pub(super) fn reserve(&self, ip: IpAddr, bytes: usize) -> Option<BufferedBytes> {
        let mut reserved =
            BufferedBytes { connections: self.clone(), address: counted_address(ip), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }
}

impl Usage {
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut AddressUsage)) {
        if let Some(usage) = self.by_address.get_mut(&address) {
            change(usage);
            if usage.anonymous == 0 && usage.buffered == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Closes the oldest connection of the address, or of the one that has the most. `false` if none may be closed yet.
    fn close_one(&mut self, address: Option<IpAddr>, has_turn: bool, now: Instant) -> bool {
        let can_close = |usage: &&mut AddressUsage| {
            usage.closable(has_turn).first_key_value().is_some_and(|((from, _), _)| *from <= now)
        };
        let found = match address {
            Some(address) => self.by_address.get_mut(&address).filter(can_close),
            None => self.by_address.values_mut().filter(can_close).max_by_key(|usage| usage.anonymous),
        };
        let oldest = found.and_then(|usage| usage.closable_mut(has_turn).pop_first());
        oldest.inspect(|(_, close)| close.notify_one()).is_some()
    }
}

/// A connection, added to each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(super) peer: SocketAddr,
    /// `None` once it is authenticated.
    anonymous: Arc<Mutex<Option<Anonymous>>>,
    close: Arc<Notify>,
    /// Its share of all connections, for as long as anything uses it: also a WebSocket that its HTTP connection became.
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// The share of a connection that is not authenticated. Given back when dropped.
#[derive(Debug)]
struct Anonymous {
    connections: Connections,
    address: IpAddr,
    turns: Option<Arc<Semaphore>>,
    /// Its turn.
    permits: Vec<OwnedSemaphorePermit>,
    closable_from: (Instant, u64),
    /// Whether the server works on a request of it. Otherwise it waits for its client.
    is_busy: bool,
    close: Arc<Notify>,
}

impl Anonymous {
    const fn has_turn(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Adds it to the connections that may be closed, or removes it.
    fn set_closable(&self, is_closable: bool) {
        self.connections.usage().change(self.address, |usage| {
            let closable = usage.closable_mut(self.has_turn());
            if is_closable {
                closable.insert(self.closable_from, self.close.clone());
            } else {
                closable.remove(&self.closable_from);
            }
        });
    }

    /// Whether it was chosen to make room, and still waits for its client.
    fn is_chosen(&self) -> bool {
        let usage = self.connections.usage();
        let is_listed = usage
            .by_address
            .get(&self.address)
            .is_some_and(|usage| usage.closable(self.has_turn()).contains_key(&self.closable_from));
        !self.is_busy && !is_listed
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        self.set_closable(false);
        let mut usage = self.connections.usage();
        usage.anonymous = usage.anonymous.saturating_sub(1);
        usage.change(self.address, |usage| usage.anonymous = usage.anonymous.saturating_sub(1));
    }
}

/// A phase of a request: the server works on it, or waits for its body. When dropped, the other one follows.
#[derive(Debug)]
pub(super) struct RequestPhase {
    connection: Connection,
    is_busy: bool,
}

impl Drop for RequestPhase {
    fn drop(&mut self) {
        self.connection.set_busy(!self.is_busy);
    }
}

impl Connection {
    pub(super) fn with_permit(self, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { _permit: permit.map(Arc::new), ..self }
    }

    fn anonymous(&self) -> MutexGuard<'_, Option<Anonymous>> {
        self.anonymous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_busy(&self, is_busy: bool) {
        if let Some(held) = &mut *self.anonymous() {
            held.is_busy = is_busy;
            held.set_closable(!is_busy);
        }
    }

    /// Waits until the connection may be served.
    pub(super) async fn wait_for_turn(&self) {
        let waits = self.anonymous().as_ref().map(|held| {
            (held.connections.clone(), held.turns.clone().map(|turns| (turns, Some(held.address))))
        });
        let Some((connections, of_address)) = waits else { return };
        let of_all = (connections.0.turns.clone(), None);
        let mut permits = Vec::new();
        // The turn of the address first: a connection that waits for it takes nothing from others. Semaphores are never closed.
        for (turns, address) in of_address.into_iter().chain([of_all]) {
            let mut turn = pin!(turns.acquire_owned());
            loop {
                let make_room = async {
                    connections.usage().close_one(address, true, Instant::now());
                    sleep(MAKE_ROOM_INTERVAL).await;
                };
                tokio::select! {
                    biased;
                    permit = &mut turn => break permits.extend(permit),
                    () = make_room => {}
                }
            }
        }
        self.start_turn(permits, Instant::now());
    }

    fn start_turn(&self, permits: Vec<OwnedSemaphorePermit>, now: Instant) {
        if let Some(held) = &mut *self.anonymous() {
            held.set_closable(false);
            held.permits = permits;
            held.closable_from.0 = now + MIN_TURN;
            held.set_closable(true);
        }
    }

    /// Completes when the connection must be closed to make room for others.
    pub(super) async fn closed_to_make_room(&self) {
        loop {
            self.close.notified().await;
            if self.anonymous().as_ref().is_some_and(Anonymous::is_chosen) {
                return;
            }
        }
    }

    /// The head of a request has arrived.
    pub(super) fn start_request(&self) -> RequestPhase {
        self.set_busy(true);
        RequestPhase { connection: self.clone(), is_busy: true }
    }

    /// The body of the request is needed.
    pub(super) fn start_body(&self) -> RequestPhase {
        self.set_busy(false);
        RequestPhase { connection: self.clone(), is_busy: false }
    }

    /// Gives back what the connection used before a caller was authenticated on it.
    pub(crate) fn mark_authenticated(&self) {
        let held = self.anonymous().take();
        drop(held);
    }
}

/// Reserved memory. Given back when dropped.
#[derive(Debug)]
pub(super) struct BufferedBytes {
    connections: Connections,
    address: IpAddr,
    bytes: usize,
}

impl BufferedBytes {
    /// Reserves more; `false` if there is too little.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let mut usage = self.connections.usage();
        let total = usage.buffered.saturating_add(bytes);
        let of_address = usage.by_address.entry(self.address).or_default();
        let address_total = of_address.buffered.saturating_add(bytes);
        let has_room = total <= MAX_BUFFERED && address_total <= MAX_BUFFERED_PER_ADDRESS;
        if has_room {
            of_address.buffered = address_total;
            usage.buffered = total;
            self.bytes += bytes;
        }
        usage.change(self.address, |_| ());
        has_room
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        let mut usage = self.connections.usage();
        usage.buffered = usage.buffered.saturating_sub(self.bytes);
        usage.change(self.address, |usage| usage.buffered = usage.buffered.saturating_sub(self.bytes));
    }
}
