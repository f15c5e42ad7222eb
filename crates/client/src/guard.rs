//! A guard acquires locks, sends heartbeats for them, and reports at once when they are lost.
//!
//! A lease is valid from the local time at which it was requested, for its length minus a margin. If no heartbeat succeeds
//! within that time, the guard reports the locks as lost, possibly before the server does. So two guards never consider the
//! same lock theirs at the same time.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use uuid::Uuid;

use crate::http::AcquireOutcome;
use crate::wire::{AcquireRequest, Grant, HeartbeatRequest, HeldLocksRequest, LockMode, LockSpec, LockToken};
use crate::{Backoff, Client, Error, ErrorKind};

/// Of one request; a longer wait takes several.
const MAX_REQUEST_WAIT: Duration = Duration::from_secs(3_600);

/// Lower bound, for very short leases.
const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(250);
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The locks of a guard, and how to acquire them.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// Names and modes of the locks.
    pub locks: Vec<(String, LockMode)>,
    /// Agent that holds the locks; `None` for the caller.
    pub agent_id: Option<String>,
    /// Activity of the agent; `None` for a new one, so that guards exclude each other.
    pub holder_id: Option<String>,
    /// Lease of each lock.
    pub ttl: Duration,
    /// Maximum time to wait for the locks.
    pub wait: Duration,
    /// Time that the owner needs to stop its work. The guard reports a loss so long before the lease ends, and at least a
    /// tenth of the lease before.
    pub stop_grace: Duration,
    /// Purpose, shown to others.
    pub purpose: String,
    /// Priority; see [`AcquireRequest::priority`].
    pub priority: i64,
}

impl LockRequest {
    /// Exclusive locks with leases of 30 s, waiting up to a minute.
    #[must_use]
    pub fn new<S: Into<String>>(locks: impl IntoIterator<Item = S>) -> Self {
        Self {
            locks: locks.into_iter().map(|lock| (lock.into(), LockMode::Exclusive)).collect(),
            agent_id: None,
            holder_id: None,
            ttl: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            stop_grace: Duration::ZERO,
            purpose: String::new(),
            priority: 0,
        }
    }
}

/// Why the locks of a guard are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The server reported it.
    #[error(
        "the lease expired, an administrator broke the lock, a deadlock was resolved, or the lock store lost its data"
    )]
    ReportedByServer,
    /// No heartbeat succeeded for so long that the leases may have expired.
    #[error("the server could not be reached before the lease expired")]
    Unreachable,
}

/// Held locks. Dropping the guard releases them.
#[derive(Debug)]
pub struct LockGuard {
    client: Client,
    agent_id: Option<String>,
    holder_id: String,
    grants: Vec<Grant>,
    state: watch::Receiver<State>,
    heartbeats: JoinHandle<()>,
    is_released: bool,
}

/// Waits for lease renewals of a guard.
#[derive(Debug)]
pub struct LeaseRenewals {
    state: watch::Receiver<State>,
}

impl LeaseRenewals {
    /// Waits for the next renewal and returns the remaining validity. Never returns once the locks are lost.
    pub async fn renewed(&mut self) -> Duration {
        loop {
            let is_open = self.state.changed().await.is_ok();
            if is_open && let State::Valid(until) = *self.state.borrow_and_update() {
                return until.saturating_duration_since(Instant::now());
            }
            if !is_open {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Valid(Instant),
    Lost(LostReason),
}

impl LockGuard {
    /// Acquires the locks of a request. Deadlocks, full queues and unavailable servers are retried with backoff. After a
    /// broken connection the same request is repeated, which keeps its place in the queue.
    ///
    /// # Errors
    /// The locks were not granted in time, or the request is invalid.
    pub async fn acquire(client: &Client, request: &LockRequest) -> Result<Self, Error> {
        let holder_id = request.holder_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let deadline = Instant::now() + request.wait;
        let mut backoff = Backoff::default();
        let mut next = acquire_request(request, &holder_id, request.wait);
        // The lease may have started with the first attempt of a request, even if only a repeated one got a response.
        let mut requested_at = Instant::now();
        loop {
            let error = match client.acquire_locks(&next).await {
                Ok(AcquireOutcome::Granted(grants)) => {
                    let heartbeat = Heartbeat {
                        client: client.clone(),
                        agent_id: request.agent_id.clone(),
                        holder_id: holder_id.clone(),
                        locks: lock_tokens(&grants.grants),
                        ttl: request.ttl,
                        requested_interval: requested_interval(&grants.grants),
                        margin: request.stop_grace.max(request.ttl / 10).min(request.ttl / 2),
                    };
                    match Self::start(heartbeat, grants.grants, requested_at).await {
                        Ok(guard) => return Ok(guard),
                        Err(error) => error,
                    }
                }
                Ok(AcquireOutcome::Queued(ticket)) => {
                    let cause = format!("ticket {} without a queued request", ticket.ticket);
                    return Err(Error::UnexpectedResponse {
                        url: client.url().to_owned(),
                        status: None,
                        cause,
                    });
                }
                Err(error) => error,
            };
            let has_ended = matches!(error.code(), Some("LOCK_LOST" | "SUPERSEDED" | "CANCELLED"));
            if (error.kind() == ErrorKind::Permanent && !has_ended) || Instant::now() >= deadline {
                return Err(error);
            }
            let retry_after = error.retry_after_seconds().map(Duration::from_secs);
            let delay =
                backoff.next_delay(retry_after).min(deadline.saturating_duration_since(Instant::now()));
            // Without a response the request may still be queued, so the same one is repeated. Otherwise it has ended, and
            // a new one is sent.
            let may_be_queued = matches!(error, Error::Unreachable { .. } | Error::UnexpectedResponse { .. })
                || matches!(error.code(), Some("STOPPING" | "UNAVAILABLE"));
            if !may_be_queued {
                next = acquire_request(
                    request,
                    &holder_id,
                    deadline.saturating_duration_since(Instant::now() + delay),
                );
                requested_at = Instant::now() + delay;
            }
            sleep(delay).await;
        }
    }

    async fn start(heartbeat: Heartbeat, grants: Vec<Grant>, requested_at: Instant) -> Result<Self, Error> {
        let mut valid_until = requested_at + heartbeat.validity();
        // The lease started at the end of the wait, a time that is not known here. A heartbeat starts one at a known time.
        if requested_at.elapsed() > heartbeat.margin / 2 {
            let sent_at = Instant::now();
            let timed_out = |_| {
                let cause = "the first heartbeat timed out".to_owned();
                Error::Unreachable { url: heartbeat.client.url().to_owned(), cause }
            };
            timeout(heartbeat.timeout(), heartbeat.send()).await.map_err(timed_out)??;
            valid_until = sent_at + heartbeat.validity();
        }
        let (sender, state) = watch::channel(State::Valid(valid_until));
        let (client, agent_id, holder_id) =
            (heartbeat.client.clone(), heartbeat.agent_id.clone(), heartbeat.holder_id.clone());
        let heartbeats = tokio::spawn(heartbeat.run(sender, valid_until));
        Ok(Self { client, agent_id, holder_id, grants, state, heartbeats, is_released: false })
    }

    /// The grants, with the fencing tokens to pass to resources.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Activity of the agent that holds the locks.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        &self.holder_id
    }

    /// Whether the leases are certainly still valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        matches!(*self.state.borrow(), State::Valid(until) if Instant::now() < until)
    }

    /// Subscribes to lease renewals.
    #[must_use]
    pub fn renewals(&self) -> LeaseRenewals {
        LeaseRenewals { state: self.state.clone() }
    }

    /// Remaining validity without another renewal.
    #[must_use]
    pub fn remaining_validity(&self) -> Duration {
        match *self.state.borrow() {
            State::Valid(until) => until.saturating_duration_since(Instant::now()),
            State::Lost(_) => Duration::ZERO,
        }
    }

    /// Waits until the locks are lost.
    pub async fn lost(&self) -> LostReason {
        let mut state = self.state.clone();
        let lost = state.wait_for(|state| matches!(state, State::Lost(_))).await;
        match lost.map(|state| *state) {
            Ok(State::Lost(lost)) => lost,
            _ => LostReason::Unreachable,
        }
    }

    /// Releases the locks.
    ///
    /// # Errors
    /// They were already lost, or the server cannot be reached.
    pub async fn release(mut self) -> Result<(), Error> {
        self.is_released = true;
        self.heartbeats.abort();
        self.client.release_locks(&self.release_request()).await.map(|_| ())
    }

    fn release_request(&self) -> HeldLocksRequest {
        let (agent_id, holder_id) = (self.agent_id.clone(), Some(self.holder_id.clone()));
        HeldLocksRequest { agent_id, holder_id, locks: lock_tokens(&self.grants) }
    }
}

/// Releases the locks in the background, if there is a runtime.
impl Drop for LockGuard {
    fn drop(&mut self) {
        self.heartbeats.abort();
        if !self.is_released
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (client, request) = (self.client.clone(), self.release_request());
            // If this fails, the leases expire.
            runtime.spawn(async move { drop(client.release_locks(&request).await) });
        }
    }
}

/// The shortest interval that the server asks for; 10 s if it asks for none.
fn requested_interval(grants: &[Grant]) -> Duration {
    let seconds = grants.iter().filter_map(|grant| grant.heartbeat_seconds);
    let intervals = seconds.filter_map(|seconds| Duration::try_from_secs_f64(seconds).ok());
    intervals.filter(|interval| !interval.is_zero()).min().unwrap_or(DEFAULT_HEARTBEAT_INTERVAL)
}

/// Sends the heartbeats of a guard.
#[derive(Debug)]
struct Heartbeat {
    client: Client,
    agent_id: Option<String>,
    holder_id: String,
    locks: Vec<LockToken>,
    ttl: Duration,
    /// How often the server asks for heartbeats.
    requested_interval: Duration,
    /// Time before the end of the lease at which the locks count as lost.
    margin: Duration,
}

impl Heartbeat {
    fn validity(&self) -> Duration {
        self.ttl - self.margin
    }

    /// Allows six attempts during a lease, and never fewer than the server asks for.
    fn interval(&self) -> Duration {
        (self.ttl / 6).min(self.requested_interval)
    }

    /// A lost response must not use up the time of all attempts.
    fn timeout(&self) -> Duration {
        self.interval().max(MIN_HEARTBEAT_TIMEOUT)
    }

    async fn send(&self) -> Result<(), Error> {
        let request = HeartbeatRequest {
            agent_id: self.agent_id.clone(),
            holder_id: Some(self.holder_id.clone()),
            locks: self.locks.clone(),
            ttl_extension: Some(self.ttl.as_secs_f64()),
            timestamp: None,
        };
        self.client.lock_heartbeat(&request).await.map(|_| ())
    }

    async fn run(self, sender: watch::Sender<State>, mut valid_until: Instant) {
        let mut backoff = Backoff::default();
        let mut delay = self.interval();
        let lost = loop {
            tokio::select! {
                () = sleep_until(valid_until) => break LostReason::Unreachable,
                () = sleep(delay) => {}
            }
            let sent_at = Instant::now();
            // An attempt must not outlast the lease: the loss would be detected too late.
            let attempt_ends_at = (sent_at + self.timeout()).min(valid_until);
            match timeout_at(attempt_ends_at, self.send()).await {
                Ok(Ok(())) => {
                    valid_until = sent_at + self.validity();
                    sender.send_replace(State::Valid(valid_until));
                    backoff = Backoff::default();
                    delay = self.interval();
                }
                Ok(Err(error)) if error.code() == Some("LOCK_LOST") => break LostReason::ReportedByServer,
                Ok(Err(error)) => {
                    delay = backoff.next_delay(error.retry_after_seconds().map(Duration::from_secs));
                }
                Err(_) => delay = backoff.next_delay(None),
            }
            if Instant::now() >= valid_until {
                break LostReason::Unreachable;
            }
        };
        sender.send_replace(State::Lost(lost));
    }
}

fn lock_tokens(grants: &[Grant]) -> Vec<LockToken> {
    let token = |grant: &Grant| LockToken { lock: grant.lock.clone(), fencing_token: grant.fencing_token };
    grants.iter().map(token).collect()
}

fn acquire_request(request: &LockRequest, holder_id: &str, wait: Duration) -> AcquireRequest {
    let spec = |(lock, mode): &(String, LockMode)| LockSpec { lock: lock.clone(), mode: Some(*mode) };
    AcquireRequest {
        locks: request.locks.iter().map(spec).collect(),
        agent_id: request.agent_id.clone(),
        holder_id: Some(holder_id.to_owned()),
        ttl_seconds: Some(request.ttl.as_secs_f64()),
        wait_seconds: Some(wait.min(MAX_REQUEST_WAIT).as_secs_f64()),
        queue: false,
        priority: Some(request.priority),
        purpose: Some(request.purpose.clone()),
        request_id: Some(Uuid::new_v4().to_string()),
    }
}
