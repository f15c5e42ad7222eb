//! What clients may use before they are authenticated: connections, turns to be served and buffered bytes, per address and in
//! total. An authenticated connection only counts against the total number of connections.
//!
//! A connection that sent nothing yet needs no turn, because it has no buffers. Turns are waited for: a burst of clients from one
//! address is served one after the other, and nobody else waits for it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Open connections. Further ones wait in the accept queue of the operating system.
pub(super) const MAX_CONNECTIONS: usize = 16_384;
/// Connections that are not authenticated; further ones are closed. The rest is kept free for authenticated ones.
const MAX_ANONYMOUS: usize = MAX_CONNECTIONS / 2;
const MAX_ANONYMOUS_PER_ADDRESS: usize = MAX_CONNECTIONS / 4;
/// Connections that are served at the same time before they are authenticated.
const MAX_TURNS: usize = 1_024;
const MAX_TURNS_PER_ADDRESS: usize = 256;
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
    /// Only addresses that use something.
    by_address: HashMap<IpAddr, AddressUsage>,
}

#[derive(Debug)]
struct AddressUsage {
    anonymous: usize,
    buffered: usize,
    turns: Arc<Semaphore>,
}

impl Default for AddressUsage {
    fn default() -> Self {
        Self { anonymous: 0, buffered: 0, turns: Arc::new(Semaphore::new(MAX_TURNS_PER_ADDRESS)) }
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

    /// Admits a connection; `None` if there are too many that are not authenticated. With `is_proxy` its address has no limit of
    /// its own: many clients share it.
    pub(super) fn admit(&self, peer: SocketAddr, is_proxy: bool) -> Option<Connection> {
        let address = counted_address(peer.ip());
        let mut usage = self.usage();
        if usage.anonymous >= MAX_ANONYMOUS {
            return None;
        }
        let turns = if is_proxy {
            None
        } else {
            let of_address = usage.by_address.entry(address).or_default();
            if of_address.anonymous >= MAX_ANONYMOUS_PER_ADDRESS {
                return None;
            }
            of_address.anonymous += 1;
            Some(of_address.turns.clone())
        };
        usage.anonymous += 1;
        drop(usage);
        let address = (!is_proxy).then_some(address);
        let anonymous = Anonymous { connections: self.clone(), address, turns, _permits: Vec::new() };
        Some(Connection { peer, anonymous: Arc::new(Mutex::new(Some(anonymous))), requests: Arc::default() })
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
}

/// A connection, added to each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(super) peer: SocketAddr,
    /// `None` once it is authenticated.
    anonymous: Arc<Mutex<Option<Anonymous>>>,
    requests: Arc<AtomicUsize>,
}

/// A request of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct RunningRequest(Arc<AtomicUsize>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The share of a connection that is not authenticated. Given back when dropped.
#[derive(Debug)]
struct Anonymous {
    connections: Connections,
    address: Option<IpAddr>,
    turns: Option<Arc<Semaphore>>,
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        let mut usage = self.connections.usage();
        usage.anonymous = usage.anonymous.saturating_sub(1);
        if let Some(address) = self.address {
            usage.change(address, |usage| usage.anonymous = usage.anonymous.saturating_sub(1));
        }
    }
}

impl Connection {
    fn anonymous(&self) -> MutexGuard<'_, Option<Anonymous>> {
        self.anonymous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the connection may be served.
    pub(super) async fn wait_for_turn(&self) {
        let semaphores =
            self.anonymous().as_ref().map(|held| (held.turns.clone(), held.connections.0.turns.clone()));
        let Some((of_address, of_all)) = semaphores else { return };
        let mut permits = Vec::new();
        // The turn of the address first: a connection that waits for it takes nothing from others. Semaphores are never closed.
        for turns in of_address.into_iter().chain([of_all]) {
            permits.extend(turns.acquire_owned().await);
        }
        if let Some(held) = &mut *self.anonymous() {
            held._permits = permits;
        }
    }

    pub(super) fn start_request(&self) -> RunningRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self.requests.clone())
    }

    /// Whether it runs no request, and never ran one of an authenticated caller.
    pub(super) fn is_idle_and_anonymous(&self) -> bool {
        self.anonymous().is_some() && self.requests.load(Ordering::Relaxed) == 0
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 9))
    }

    #[tokio::test]
    async fn one_address_waits_for_itself_only() {
        let connections = Connections::default();
        let admit = |last| connections.admit(peer(last), false).expect("admitted");
        let served: Vec<Connection> = (0..MAX_TURNS_PER_ADDRESS).map(|_| admit(1)).collect();
        for connection in &served {
            connection.wait_for_turn().await;
        }
        let next = admit(1);
        let waiting = tokio::time::timeout(Duration::ZERO, next.wait_for_turn()).await;
        assert!(waiting.is_err(), "all turns of the address are taken");
        admit(2).wait_for_turn().await;
        served.first().expect("some").mark_authenticated();
        next.wait_for_turn().await;
        drop((served, next));
        let usage = connections.usage();
        assert!(usage.by_address.is_empty() && usage.anonymous == 0);
    }

    #[test]
    fn bounds_connections_per_address_and_in_total() {
        let connections = Connections::default();
        let mut admitted = Vec::new();
        for last in 1..=2 {
            admitted.extend(
                (0..MAX_ANONYMOUS_PER_ADDRESS).map(|_| connections.admit(peer(last), false).expect("room")),
            );
            assert!(connections.admit(peer(last), false).is_none());
        }
        assert!(
            connections.admit(peer(3), false).is_none() && connections.admit(peer(3), true).is_none(),
            "in total"
        );
        admitted.pop().expect("some").mark_authenticated();
        let through_proxy = connections.admit(peer(2), true).expect("room");
        assert!(through_proxy.anonymous().as_ref().is_some_and(|held| held.turns.is_none()));
        admitted.clear();
        drop(through_proxy);
        let usage = connections.usage();
        assert_eq!((usage.anonymous, usage.by_address.len()), (0, 0));
    }

    #[test]
    fn bounds_buffered_bytes_per_address_and_in_total() {
        let connections = Connections::default();
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut first = connections.reserve(ip("2001:db8::1"), MAX_BUFFERED_PER_ADDRESS - 10).expect("room");
        assert!(first.grow(10) && !first.grow(1));
        assert!(connections.reserve(ip("2001:db8::ffff:1"), 1).is_none(), "the same network");
        let others: Vec<_> =
            (1..8).map(|n| connections.reserve(ip(&format!("192.0.2.{n}")), 2 << 20)).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(connections.reserve(ip("198.51.100.1"), 1).is_none(), "in total");
        drop((first, others));
        let usage = connections.usage();
        assert!(usage.by_address.is_empty() && usage.buffered == 0);
    }
}
