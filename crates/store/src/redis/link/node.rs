//! One server: its shared connection, kept or made anew when needed, and the gate before it.
//!
//! At most one attempt to connect runs at a time, and not more often than the backoff allows. A server that is another one
//! than before lets no script in until the greatest difference of clocks has passed. Never repeats anything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::connect::{Connector, Identity, Reached, end_flag, plain};
use crate::redis::url::Address;

/// First pause after a failed attempt; doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between attempts: a server that came back is found within it.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How long a call waits for an attempt to reach a server that is known to be down.
const PATIENCE_WHEN_DOWN: Duration = Duration::from_millis(200);

/// Connections for calls that wait for replicas.
const MOST_ACKED: usize = 64;

/// A connection in use.
pub(super) struct Up {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Address,
    identity: Identity,
    generation: u64,
    /// Connections of the same server that nobody uses now, each with the flag of its end.
    idle: Mutex<Vec<Own>>,
}

/// A connection that one call has for itself.
pub(super) struct Own {
    pub(super) connection: MultiplexedConnection,
    ended: Arc<AtomicBool>,
}

/// Why there is no connection, and when to try again.
#[derive(Clone)]
struct Fault {
    reason: Arc<str>,
    /// Since when nothing else is heard of it.
    since: Instant,
    again_at: Instant,
    pause: Duration,
}

#[derive(Clone)]
enum State {
    /// Nobody asked yet, or the connection ended and nothing is known about the server; or it is known to be down.
    Away(Option<Fault>),
    Connecting(Option<Fault>),
    Up(Arc<Up>),
}

/// One server, or the server that sentinels call the primary.
pub(super) struct Node {
    connector: Arc<Connector>,
    /// `None`: ask the sentinels.
    pub(super) fixed: Option<Address>,
    /// Id within a cluster, otherwise empty.
    pub(super) id: String,
    state: watch::Sender<State>,
    generations: AtomicU64,
    known: Mutex<Option<Identity>>,
    born: Instant,
    /// Scripts wait until then: microseconds after `born`.
    open_from: AtomicU64,
    acked: Semaphore,
    attempt: Mutex<Option<AbortHandle>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        let attempt = self.attempt.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(attempt) = attempt.take() {
            attempt.abort();
        }
    }
}

impl Node {
    pub(super) fn new(connector: Arc<Connector>, fixed: Option<Address>, id: String) -> Arc<Self> {
        Arc::new(Self {
            connector,
            fixed,
            id,
            state: watch::Sender::new(State::Away(None)),
            generations: AtomicU64::new(0),
            known: Mutex::new(None),
            born: Instant::now(),
            open_from: AtomicU64::new(0),
            acked: Semaphore::new(MOST_ACKED),
            attempt: Mutex::new(None),
        })
    }

    /// The connection, if there is one now.
    pub(super) fn now_up(&self) -> Option<Arc<Up>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Arc::clone(up)),
            State::Away(_) | State::Connecting(_) => None,
        }
    }

    /// Whether the last that was heard of it is bad.
    pub(super) fn is_down(&self) -> bool {
        matches!(&*self.state.borrow(), State::Away(Some(_)) | State::Connecting(Some(_)))
    }

    /// The connection; connects if there is none.
    pub(super) async fn up(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Up>, String> {
        if let Some(up) = self.now_up() {
            return Ok(up);
        }
        let mut seen = self.state.subscribe();
        let impatient = Instant::now() + PATIENCE_WHEN_DOWN;
        loop {
            self.begin();
            let until = match &*seen.borrow_and_update() {
                State::Up(up) => return Ok(Arc::clone(up)),
                State::Away(Some(fault)) => return Err(fault.reason.to_string()),
                State::Away(None) | State::Connecting(None) => (deadline, None),
                State::Connecting(Some(fault)) => (deadline.min(impatient), Some(Arc::clone(&fault.reason))),
            };
            if timeout_at(until.0, seen.changed()).await.is_err() {
                let reason = until.1.as_deref().unwrap_or("still connecting");
                return Err(reason.to_owned());
            }
        }
    }

    /// Starts an attempt to connect unless one runs, none is needed, or it is too early for another.
    fn begin(self: &Arc<Self>) {
        let now = Instant::now();
        let mut fault_before = None;
        let begun = self.state.send_if_modified(|state| {
            let State::Away(fault) = state else { return false };
            if fault.as_ref().is_some_and(|fault| now < fault.again_at) {
                return false;
            }
            fault_before = fault.take();
            *state = State::Connecting(fault_before.clone());
            true
        });
        if !begun {
            return;
        }
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        let (connector, fixed, node) =
            (Arc::clone(&self.connector), self.fixed.clone(), Arc::downgrade(self));
        let attempt = tokio::spawn(async move {
            let ended = Arc::new(AtomicBool::new(false));
            let pushed = when_it_ends(Weak::clone(&node), generation, Arc::clone(&ended));
            let within = connector.options.connect_within;
            let result = timeout(within, connector.reach(fixed.as_ref(), pushed))
                .await
                .unwrap_or_else(|_| Err(format!("no connection within {within:?}")));
            let Some(node) = node.upgrade() else { return };
            match result {
                Ok(reached) => node.arrived(reached, generation, &ended, fault_before),
                Err(reason) => node.failed(reason, fault_before),
            }
        });
        *self.attempt.lock().unwrap_or_else(PoisonError::into_inner) = Some(attempt.abort_handle());
    }

    fn arrived(&self, reached: Reached, generation: u64, ended: &AtomicBool, before: Option<Fault>) {
        let Reached { connection, address, identity } = reached;
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let is_other = known.as_ref().is_some_and(|known| *known != identity);
            if is_other || known.is_none() {
                self.hold();
                *known = Some(identity.clone());
            }
            let away = before.as_ref().map_or(Duration::ZERO, |fault| fault.since.elapsed());
            match (is_other, before) {
                (true, _) => tracing::warn!(%address, ?away, "redis was restarted or has another primary"),
                (false, Some(_)) => tracing::info!(%address, ?away, "redis is back"),
                (false, None) => tracing::debug!(%address, "connected to redis"),
            }
        }
        let idle = Mutex::new(Vec::new());
        let up = Up { connection, address, identity, generation, idle };
        self.state.send_replace(State::Up(Arc::new(up)));
        if ended.load(Ordering::Acquire) {
            self.ended(generation);
        }
    }

    fn failed(&self, reason: String, before: Option<Fault>) {
        let now = Instant::now();
        let (since, pause) = match before {
            // Said once, as long as it is the same.
            Some(fault) if *fault.reason == *reason => (fault.since, (fault.pause * 2).min(LONGEST_PAUSE)),
            Some(fault) => {
                tracing::warn!(reason, "redis is still out of reach");
                (fault.since, (fault.pause * 2).min(LONGEST_PAUSE))
            }
            None => {
                tracing::warn!(reason, "redis is out of reach; what needs it fails until it is back");
                (now, FIRST_PAUSE)
            }
        };
        let fault = Fault { reason: reason.into(), since, again_at: now + pause, pause };
        self.state.send_replace(State::Away(Some(fault)));
    }

    /// The connection ended by itself: the server may well be there, so the next call connects at once.
    fn ended(&self, generation: u64) {
        self.leave(generation, None);
    }

    /// Drops the connection `up` if it is still in use, so that the next call makes another one.
    pub(super) fn drop_connection(&self, up: &Up) {
        self.ended(up.generation);
    }

    /// The same for a server that gave no answer: calls do not wait long for it until it is back.
    pub(super) fn gave_no_answer(&self, up: &Up, reason: &str) {
        let now = Instant::now();
        let fault = Fault { reason: reason.into(), since: now, again_at: now, pause: FIRST_PAUSE };
        if self.leave(up.generation, Some(fault)) {
            tracing::warn!(address = %up.address, reason, "redis gives no answer; what needs it fails until it does");
        }
    }

    fn leave(&self, generation: u64, fault: Option<Fault>) -> bool {
        self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Up(up) if up.generation == generation);
            if is_it {
                *state = State::Away(fault);
            }
            is_it
        })
    }

    /// Closes the gate for the greatest difference of clocks.
    pub(super) fn hold(&self) {
        let until = Instant::now() + self.connector.options.max_clock_skew - self.born;
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.open_from.fetch_max(until, Ordering::AcqRel);
    }

    /// Waits before the gate; `false` if it does not open before the deadline.
    pub(super) async fn opened(&self, now: Instant, deadline: Instant) -> bool {
        let open_from = self.born + Duration::from_micros(self.open_from.load(Ordering::Acquire));
        if open_from <= now {
            return true;
        }
        sleep_until(open_from.min(deadline)).await;
        open_from <= deadline
    }

    /// The same as [`Node::own`] for calls that wait for replicas, of which there are only so many at once.
    pub(super) async fn own_acked(&self, up: &Up, deadline: Instant) -> Result<(Own, Permit<'_>), String> {
        let permit = match timeout_at(deadline, self.acked.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => {
                return Err("all connections for acknowledged calls are in use".to_owned());
            }
        };
        Ok((self.own(up, deadline).await?, permit))
    }

    /// A connection of one's own to the server of `up`. If there is none, nothing was sent, and the server is looked for
    /// again.
    pub(super) async fn own(&self, up: &Up, deadline: Instant) -> Result<Own, String> {
        while let Some(own) = up.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            if !own.ended.load(Ordering::Acquire) {
                return Ok(own);
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let opening = async {
            let pushed = end_flag(Arc::clone(&ended));
            let mut connection =
                self.connector.open(&up.address, pushed).await.map_err(|error| plain(&error))?;
            let identity = self.connector.identify(&mut connection).await?;
            Ok::<_, String>((connection, identity))
        };
        match timeout_at(deadline, opening).await {
            Ok(Ok((connection, identity))) if identity.is_same_run(&up.identity) => {
                Ok(Own { connection, ended })
            }
            other => {
                self.drop_connection(up);
                Err(match other {
                    Ok(Ok(_)) => "the server was replaced".to_owned(),
                    Ok(Err(reason)) => reason,
                    Err(_) => "no connection in time".to_owned(),
                })
            }
        }
    }
}

/// The right to one of the connections for acknowledged calls.
pub(super) type Permit<'a> = tokio::sync::SemaphorePermit<'a>;

impl Up {
    /// Keeps a connection on which nothing is under way.
    pub(super) fn keep(&self, own: Own) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    }
}

/// Tells the node, if it is still there, that its connection ended. Holds it weakly: the connection belongs to the node.
fn when_it_ends(
    node: Weak<Node>,
    generation: u64,
    ended: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
    move |info| {
        if info.kind == PushKind::Disconnection {
            ended.store(true, Ordering::Release);
            if let Some(node) = node.upgrade() {
                node.ended(generation);
            }
        }
        Ok(())
    }
}
