//! A guard holds locks for its owner: it waits for them, heartbeats, and says at once when they are lost.
//!
//! The trust window: a lease that was asked for at a moment of our own clock is believed in until that moment plus its
//! length minus a margin. If no heartbeat gets through until then, the locks count as lost, although the server may not
//! know yet; so two owners never believe at the same time.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;

use crate::http::Acquired;
use crate::wire::{AcquireRequest, Grant, HeartbeatRequest, HeldLock, HoldRequest, LockAsk, Mode};
use crate::{Backoff, Client, Error, Kind};

/// The longest single wait that is held open; a longer one asks again.
const OPEN_AT_MOST: Duration = Duration::from_secs(3_600);

/// The shortest time that a heartbeat may take.
const FIRST_TRY: Duration = Duration::from_millis(250);

/// What a guard should hold.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// Locks and modes.
    pub locks: Vec<(String, Mode)>,
    /// Who holds them; the caller itself if not said.
    pub agent_id: Option<String>,
    /// Which activity of the agent; one of its own if not said, so that guards exclude each other.
    pub holder_id: Option<String>,
    /// Length of the leases.
    pub ttl: Duration,
    /// How long to wait for the locks.
    pub wait: Duration,
    /// How long the owner needs to stop once the locks are lost: it is told so long before the lease ends, and at least a
    /// tenth of the lease.
    pub stop_within: Duration,
    /// Shown to others.
    pub purpose: String,
    /// Shown to others.
    pub priority: i64,
}

impl LockRequest {
    /// Exclusive locks, with leases of 30 s, waited for a minute.
    #[must_use]
    pub fn new<S: Into<String>>(locks: impl IntoIterator<Item = S>) -> Self {
        Self {
            locks: locks.into_iter().map(|lock| (lock.into(), Mode::Exclusive)).collect(),
            agent_id: None,
            holder_id: None,
            ttl: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            stop_within: Duration::ZERO,
            purpose: String::new(),
            priority: 0,
        }
    }
}

/// Why locks are not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The server says so.
    #[error("it expired, was taken away by an administrator, fell to a deadlock, or its store forgot it")]
    Taken,
    /// The server could not be reached for so long that they may have expired.
    #[error("the server could not be reached in time, and the lease runs out")]
    Unreachable,
}

/// Locks that are held as long as this lives.
#[derive(Debug)]
pub struct LockGuard {
    client: Client,
    agent_id: Option<String>,
    holder_id: String,
    grants: Vec<Grant>,
    state: watch::Receiver<State>,
    heart: JoinHandle<()>,
    released: bool,
}

/// An ear for the heartbeats of a guard.
#[derive(Debug)]
pub struct Trust {
    state: watch::Receiver<State>,
}

impl Trust {
    /// Waits until the locks may be believed in for longer than when this was asked last, and says for how long from now
    /// on; never, once they are lost.
    pub async fn renewed(&mut self) -> Duration {
        loop {
            let told = self.state.changed().await.is_ok();
            if told && let State::Trusted(until) = *self.state.borrow_and_update() {
                return until.saturating_duration_since(Instant::now());
            }
            if !told {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Trusted(Instant),
    Lost(Lost),
}

impl LockGuard {
    /// Takes the locks of a request, waiting as long as it says. Deadlocks, full queues and servers that are away are
    /// tried again with full jitter; a broken connection comes back with the same request and keeps its place.
    ///
    /// # Errors
    /// They could not be had in time, or never can.
    pub async fn acquire(client: &Client, request: &LockRequest) -> Result<Self, Error> {
        let holder_id = request.holder_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let give_up = Instant::now() + request.wait;
        let mut backoff = Backoff::default();
        let mut next = body(request, &holder_id, request.wait);
        // A lease may have begun with the first try of a request, although only a repetition was answered.
        let mut asked_at = Instant::now();
        loop {
            let error = match client.acquire(&next).await {
                Ok(Acquired::Granted(grants)) => {
                    let keeper = Keeper {
                        client: client.clone(),
                        agent_id: request.agent_id.clone(),
                        holder_id: holder_id.clone(),
                        locks: held(&grants.grants),
                        ttl: request.ttl,
                        margin: request.stop_within.max(request.ttl / 10).min(request.ttl / 2),
                    };
                    match Self::keep(keeper, grants.grants, asked_at).await {
                        Ok(guard) => return Ok(guard),
                        Err(error) => error,
                    }
                }
                Ok(Acquired::Ticket(ticket)) => {
                    let cause = format!("a ticket, {}, was not asked for", ticket.ticket);
                    return Err(Error::Foreign { url: client.url().to_owned(), status: None, cause });
                }
                Err(error) => error,
            };
            let over = matches!(error.code(), Some("LOCK_LOST" | "SUPERSEDED" | "CANCELLED"));
            if (error.kind() == Kind::Permanent && !over) || Instant::now() >= give_up {
                return Err(error);
            }
            let asked_for = error.retry_after_seconds().map(Duration::from_secs);
            let pause = backoff.pause(asked_for).min(give_up.saturating_duration_since(Instant::now()));
            // A request whose answer did not arrive may still stand in its queue: it is repeated as it was. Any other is
            // over, and the next one is new.
            let open = matches!(error, Error::Unreachable { .. } | Error::Foreign { .. })
                || matches!(error.code(), Some("STOPPING" | "UNAVAILABLE"));
            if !open {
                next = body(request, &holder_id, give_up.saturating_duration_since(Instant::now() + pause));
                asked_at = Instant::now() + pause;
            }
            sleep(pause).await;
        }
    }

    async fn keep(keeper: Keeper, grants: Vec<Grant>, asked_at: Instant) -> Result<Self, Error> {
        let mut trusted = asked_at + keeper.trust();
        // The lease began when the wait ended, which we cannot know: ask for one whose beginning we do know.
        if asked_at.elapsed() > keeper.margin / 2 {
            let again = Instant::now();
            let late = |_| {
                let cause = "the first heartbeat was not answered in time".to_owned();
                Error::Unreachable { url: keeper.client.url().to_owned(), cause }
            };
            timeout(keeper.pace().max(FIRST_TRY), keeper.beat()).await.map_err(late)??;
            trusted = again + keeper.trust();
        }
        let (tell, state) = watch::channel(State::Trusted(trusted));
        let (client, agent_id, holder_id) =
            (keeper.client.clone(), keeper.agent_id.clone(), keeper.holder_id.clone());
        let heart = tokio::spawn(keeper.run(tell, trusted));
        Ok(Self { client, agent_id, holder_id, grants, state, heart, released: false })
    }

    /// What is held, with the tokens to show to resources.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Which activity of the agent holds it.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        &self.holder_id
    }

    /// Whether the locks may be believed in at this moment.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        matches!(*self.state.borrow(), State::Trusted(until) if Instant::now() < until)
    }

    /// Tells whenever the locks may be believed in for longer.
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust { state: self.state.clone() }
    }

    /// For how long the locks may be believed in from now on, if nothing more is heard.
    #[must_use]
    pub fn trusted_left(&self) -> Duration {
        match *self.state.borrow() {
            State::Trusted(until) => until.saturating_duration_since(Instant::now()),
            State::Lost(_) => Duration::ZERO,
        }
    }

    /// Waits until the locks are lost.
    pub async fn lost(&self) -> Lost {
        let mut state = self.state.clone();
        let lost = state.wait_for(|state| matches!(state, State::Lost(_))).await;
        match lost.map(|state| *state) {
            Ok(State::Lost(lost)) => lost,
            _ => Lost::Unreachable,
        }
    }

    /// Gives the locks up, and says whether they were held until now.
    ///
    /// # Errors
    /// They were lost before, or the server cannot be reached.
    pub async fn release(mut self) -> Result<(), Error> {
        self.released = true;
        self.heart.abort();
        self.client.release(&self.release_request()).await.map(|_| ())
    }

    fn release_request(&self) -> HoldRequest {
        let (agent_id, holder_id) = (self.agent_id.clone(), Some(self.holder_id.clone()));
        HoldRequest { agent_id, holder_id, locks: held(&self.grants) }
    }
}

/// A guard that is forgotten gives its locks up, as well as it can.
impl Drop for LockGuard {
    fn drop(&mut self) {
        self.heart.abort();
        if !self.released
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (client, request) = (self.client.clone(), self.release_request());
            // If this does not get through, the lease ends by itself.
            runtime.spawn(async move { drop(client.release(&request).await) });
        }
    }
}

/// What heartbeats.
#[derive(Debug)]
struct Keeper {
    client: Client,
    agent_id: Option<String>,
    holder_id: String,
    locks: Vec<HeldLock>,
    ttl: Duration,
    /// Time to stop before the lease ends.
    margin: Duration,
}

impl Keeper {
    fn trust(&self) -> Duration {
        self.ttl - self.margin
    }

    /// Six tries fit into a lease.
    fn pace(&self) -> Duration {
        (self.ttl / 6).min(Duration::from_secs(10))
    }

    async fn beat(&self) -> Result<(), Error> {
        let request = HeartbeatRequest {
            agent_id: self.agent_id.clone(),
            holder_id: Some(self.holder_id.clone()),
            locks: self.locks.clone(),
            ttl_extension: Some(self.ttl.as_secs_f64()),
            timestamp: None,
        };
        self.client.heartbeat(&request).await.map(|_| ())
    }

    async fn run(self, tell: watch::Sender<State>, mut trusted: Instant) {
        let mut backoff = Backoff::default();
        let mut pause = self.pace();
        let lost = loop {
            tokio::select! {
                () = sleep_until(trusted) => break Lost::Unreachable,
                () = sleep(pause) => {}
            }
            let asked_at = Instant::now();
            // One answer that does not come must not cost all the tries that fit into a lease.
            match timeout(self.pace().max(FIRST_TRY), self.beat()).await {
                Ok(Ok(())) => {
                    trusted = asked_at + self.trust();
                    tell.send_replace(State::Trusted(trusted));
                    backoff = Backoff::default();
                    pause = self.pace();
                }
                Ok(Err(error)) if error.code() == Some("LOCK_LOST") => break Lost::Taken,
                Ok(Err(error)) => pause = backoff.pause(error.retry_after_seconds().map(Duration::from_secs)),
                Err(_) => pause = backoff.pause(None),
            }
            if Instant::now() >= trusted {
                break Lost::Unreachable;
            }
        };
        tell.send_replace(State::Lost(lost));
    }
}

fn held(grants: &[Grant]) -> Vec<HeldLock> {
    let held = |grant: &Grant| HeldLock { lock: grant.lock.clone(), fencing_token: grant.fencing_token };
    grants.iter().map(held).collect()
}

fn body(request: &LockRequest, holder_id: &str, wait: Duration) -> AcquireRequest {
    let ask = |(lock, mode): &(String, Mode)| LockAsk { lock: lock.clone(), mode: Some(*mode) };
    AcquireRequest {
        locks: request.locks.iter().map(ask).collect(),
        agent_id: request.agent_id.clone(),
        holder_id: Some(holder_id.to_owned()),
        ttl_seconds: Some(request.ttl.as_secs_f64()),
        wait_seconds: Some(wait.min(OPEN_AT_MOST).as_secs_f64()),
        queue: false,
        priority: Some(request.priority),
        purpose: Some(request.purpose.clone()),
        request_id: Some(Uuid::new_v4().to_string()),
    }
}
