//! One server: its shared connection, which is opened on demand, and the gate in front of it.
//!
//! At most one attempt to connect runs at a time, with a backoff between attempts. If the server is another one than
//! before, scripts wait at the gate until the maximum clock skew has passed. Nothing is retried here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connector::{Connector, Identity, PrimaryConnection, on_disconnect};
use super::execute::ConnectionUse;
use crate::redis::locked;
use crate::redis::url::Address;

/// Backoff after the first failed attempt; it doubles.
const MIN_RECONNECT_BACKOFF: Duration = Duration::from_millis(50);

/// Bounds how long a server that came back stays unnoticed.
const MAX_RECONNECT_BACKOFF: Duration = Duration::from_millis(500);

/// How long a call waits for a connection to a server that is known to be down.
const WAIT_WHEN_DOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// Connections for calls that wait for replicas.
const MAX_ACKED_CONNECTIONS: usize = 64;

pub(super) struct ActiveConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Address,
    identity: Identity,
    generation: u64,
    /// Dedicated connections to the same server that are not in use.
    idle: Mutex<Vec<DedicatedConnection>>,
}

/// A connection that one call uses exclusively.
pub(super) struct DedicatedConnection {
    pub(super) connection: MultiplexedConnection,
    is_closed: Arc<AtomicBool>,
    /// While a call that waits for replicas uses it.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Why there is no connection, and when to retry.
#[derive(Clone)]
struct Outage {
    reason: Arc<str>,
    since: Instant,
    retry_at: Instant,
    backoff: Duration,
}

#[derive(Clone)]
enum State {
    /// Without an outage: not connected yet, or the connection ended and the state of the server is unknown.
    Disconnected(Option<Outage>),
    Connecting(Option<Outage>),
    Connected(Arc<ActiveConnection>),
}

/// One server, or the server that the sentinels report as primary.
pub(super) struct Node {
    connector: Arc<Connector>,
    /// `None`: ask the sentinels.
    pub(super) address: Option<Address>,
    /// Node id within a cluster, otherwise empty.
    pub(super) id: String,
    state: watch::Sender<State>,
    /// Of the last attempt to connect.
    generation: AtomicU64,
    last_identity: Mutex<Option<Identity>>,
    created: Instant,
    /// Scripts wait until then: microseconds after `created`.
    gate_opens_at: AtomicU64,
    acked_permits: Arc<Semaphore>,
    attempt: Mutex<Option<AbortHandle>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(attempt) = locked(&self.attempt).take() {
            attempt.abort();
        }
    }
}

impl Node {
    pub(super) fn new(connector: Arc<Connector>, address: Option<Address>, id: String) -> Arc<Self> {
        Arc::new(Self {
            connector,
            address,
            id,
            state: watch::Sender::new(State::Disconnected(None)),
            generation: AtomicU64::new(0),
            last_identity: Mutex::new(None),
            created: Instant::now(),
            gate_opens_at: AtomicU64::new(0),
            acked_permits: Arc::new(Semaphore::new(MAX_ACKED_CONNECTIONS)),
            attempt: Mutex::new(None),
        })
    }

    /// The connection, if there is one now.
    pub(super) fn current_connection(&self) -> Option<Arc<ActiveConnection>> {
        match &*self.state.borrow() {
            State::Connected(active) => Some(Arc::clone(active)),
            State::Disconnected(_) | State::Connecting(_) => None,
        }
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(&*self.state.borrow(), State::Disconnected(Some(_)) | State::Connecting(Some(_)))
    }

    /// The connection; connects if there is none.
    pub(super) async fn connect(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<Arc<ActiveConnection>, String> {
        if let Some(active) = self.current_connection() {
            return Ok(active);
        }
        let mut states = self.state.subscribe();
        let deadline_when_down = deadline.min(Instant::now() + WAIT_WHEN_DOWN_TIMEOUT);
        loop {
            self.start_connecting();
            let (until, reason) = match &*states.borrow_and_update() {
                State::Connected(active) => return Ok(Arc::clone(active)),
                State::Disconnected(Some(outage)) => return Err(outage.reason.to_string()),
                State::Disconnected(None) | State::Connecting(None) => (deadline, None),
                State::Connecting(Some(outage)) => (deadline_when_down, Some(Arc::clone(&outage.reason))),
            };
            if timeout_at(until, states.changed()).await.is_err() {
                return Err(reason.as_deref().unwrap_or("still connecting").to_owned());
            }
        }
    }

    /// Starts an attempt to connect, unless one runs, none is needed, or the backoff has not passed.
    fn start_connecting(self: &Arc<Self>) {
        let now = Instant::now();
        let mut previous_outage = None;
        let is_started = self.state.send_if_modified(|state| {
            let State::Disconnected(outage) = state else { return false };
            if outage.as_ref().is_some_and(|outage| now < outage.retry_at) {
                return false;
            }
            previous_outage = outage.take();
            *state = State::Connecting(previous_outage.clone());
            true
        });
        if !is_started {
            return;
        }
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let (connector, address, node) =
            (Arc::clone(&self.connector), self.address.clone(), Arc::downgrade(self));
        let attempt = tokio::spawn(async move {
            let is_closed = Arc::new(AtomicBool::new(false));
            // The reference is weak because the node owns the connection.
            let (closed, weak) = (Arc::clone(&is_closed), Weak::clone(&node));
            let push_sender = on_disconnect(move || {
                closed.store(true, Ordering::Release);
                if let Some(node) = weak.upgrade() {
                    node.disconnect(generation, None);
                }
            });
            let result = connector.connect_primary(address.as_ref(), push_sender).await;
            let Some(node) = node.upgrade() else { return };
            match result {
                Ok(connected) => node.connect_succeeded(connected, generation, &is_closed, previous_outage),
                Err(reason) => node.connect_failed(reason, previous_outage),
            }
        });
        *locked(&self.attempt) = Some(attempt.abort_handle());
    }

    fn connect_succeeded(
        &self,
        connected: PrimaryConnection,
        generation: u64,
        is_closed: &AtomicBool,
        previous_outage: Option<Outage>,
    ) {
        let PrimaryConnection { connection, address, identity } = connected;
        {
            let mut last = locked(&self.last_identity);
            let is_other = last.as_ref().is_some_and(|last| *last != identity);
            if is_other || last.is_none() {
                self.close_gate();
                *last = Some(identity.clone());
            }
            let downtime = previous_outage.as_ref().map_or(Duration::ZERO, |outage| outage.since.elapsed());
            match (is_other, previous_outage) {
                (true, _) => {
                    tracing::warn!(%address, ?downtime, "connected to a restarted or new Redis primary");
                }
                (false, Some(_)) => tracing::info!(%address, ?downtime, "reconnected to Redis"),
                (false, None) => tracing::debug!(%address, "connected to Redis"),
            }
        }
        let idle = Mutex::new(Vec::new());
        let active = ActiveConnection { connection, address, identity, generation, idle };
        self.state.send_replace(State::Connected(Arc::new(active)));
        if is_closed.load(Ordering::Acquire) {
            self.disconnect(generation, None);
        }
    }

    fn connect_failed(&self, reason: String, previous_outage: Option<Outage>) {
        let now = Instant::now();
        let (since, backoff) = match previous_outage {
            Some(outage) => {
                // The same reason is logged once.
                if *outage.reason != *reason {
                    tracing::warn!(reason, "Redis is still unreachable");
                }
                (outage.since, (outage.backoff * 2).min(MAX_RECONNECT_BACKOFF))
            }
            None => {
                tracing::warn!(reason, "Redis is unreachable; requests that need it fail until it is back");
                (now, MIN_RECONNECT_BACKOFF)
            }
        };
        let outage = Outage { reason: reason.into(), since, retry_at: now + backoff, backoff };
        self.state.send_replace(State::Disconnected(Some(outage)));
    }

    /// Drops the connection if it is still in use, so that the next call opens another one.
    pub(super) fn drop_connection(&self, active: &ActiveConnection) {
        self.disconnect(active.generation, None);
    }

    /// The same for a server that did not reply: until it is back, calls fail after a short wait.
    pub(super) fn report_timeout(&self, active: &ActiveConnection, reason: &str) {
        let now = Instant::now();
        let outage =
            Outage { reason: reason.into(), since: now, retry_at: now, backoff: MIN_RECONNECT_BACKOFF };
        if self.disconnect(active.generation, Some(outage)) {
            tracing::warn!(address = %active.address, reason, "Redis does not reply; requests that need it fail until it does");
        }
    }

    /// Without an outage the server may well be up, so the next call connects at once.
    fn disconnect(&self, generation: u64, outage: Option<Outage>) -> bool {
        self.state.send_if_modified(|state| {
            let is_current = matches!(state, State::Connected(active) if active.generation == generation);
            if is_current {
                *state = State::Disconnected(outage);
            }
            is_current
        })
    }

    /// Closes the gate for the maximum clock skew.
    pub(super) fn close_gate(&self) {
        let until = Instant::now() + self.connector.options.max_clock_skew - self.created;
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.gate_opens_at.fetch_max(until, Ordering::AcqRel);
    }

    /// Waits at the gate. Returns `false` if it does not open before the deadline.
    pub(super) async fn wait_for_gate(&self, now: Instant, deadline: Instant) -> bool {
        let gate_opens_at = self.created + Duration::from_micros(self.gate_opens_at.load(Ordering::Acquire));
        if gate_opens_at <= now {
            return true;
        }
        sleep_until(gate_opens_at.min(deadline)).await;
        gate_opens_at <= deadline
    }

    /// A dedicated connection to the server of `active`, if the operation needs one. Of those that wait for replicas,
    /// the number is limited. On an error nothing was sent, and the server is looked up again.
    pub(super) async fn dedicated(
        &self,
        active: &ActiveConnection,
        connection_use: ConnectionUse,
        deadline: Instant,
    ) -> Result<Option<DedicatedConnection>, String> {
        let permit = match connection_use {
            ConnectionUse::Shared => return Ok(None),
            ConnectionUse::Blocking(_) => None,
            ConnectionUse::Acked(..) => {
                let permit = timeout_at(deadline, Arc::clone(&self.acked_permits).acquire_owned()).await;
                let permit = permit.ok().and_then(Result::ok);
                Some(permit.ok_or("all connections for acknowledged calls are in use")?)
            }
        };
        while let Some(dedicated) = locked(&active.idle).pop() {
            if !dedicated.is_closed.load(Ordering::Acquire) {
                return Ok(Some(DedicatedConnection { _permit: permit, ..dedicated }));
            }
        }
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let push_sender = on_disconnect(move || closed.store(true, Ordering::Release));
        let opened = timeout_at(deadline, self.connector.open_identified(&active.address, push_sender)).await;
        let reason = match opened {
            Ok(Ok((connection, identity))) if identity.is_same_run(&active.identity) => {
                return Ok(Some(DedicatedConnection { connection, is_closed, _permit: permit }));
            }
            Ok(Ok(_)) => "the server was replaced".to_owned(),
            Ok(Err(reason)) => reason,
            Err(_) => "no connection before the deadline".to_owned(),
        };
        self.drop_connection(active);
        Err(reason)
    }
}

impl ActiveConnection {
    /// Only for a connection without a pending reply.
    pub(super) fn put_back(&self, dedicated: DedicatedConnection) {
        locked(&self.idle).push(DedicatedConnection { _permit: None, ..dedicated });
    }
}
