//! A random lock workload: agents use every lock operation until the server is killed, record every response, and return
//! the request that was left without one.

pub(crate) mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_client::wire::{
    AcquireRequest, Grant, HeartbeatRequest, HeldLocksRequest, LockMode, LockSpec, LockToken, TicketStatus,
    VerifyTokenRequest,
};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::SeededRng;
use history::History;
use jiff::Timestamp;
use tokio::sync::watch;

pub(crate) const LOCKS: [&str; 12] = [
    "task:1",
    "task:2",
    "task:3",
    "resource:db:n",
    "resource:db:o",
    "task:ü {x}",
    "resource:db:p",
    "resource:db:q",
    "resource:db:r",
    "resource:file:/a:b",
    "resource:file:/c%",
    "resource:gpu:0",
];

#[expect(clippy::disallowed_methods, reason = "leases are compared with the wall clock, as the server does")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Shared by all agents.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    history: Arc<Mutex<History>>,
    pub(crate) response_count: watch::Sender<u64>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { history: Arc::default(), response_count: watch::Sender::new(0) }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request of an agent that got no response because the server was killed.
#[derive(Debug)]
pub(crate) enum Unanswered {
    Acquire(AcquireRequest),
    Release(HeldLocksRequest),
    /// Changes no lock, or its effect is checked through the history.
    Other,
}

/// A counter value that was read under a grant and is incremented and written later: lock, fencing token, value.
pub(crate) type PendingUpdate = (String, u64, u64);

struct ServerGone;

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) rng: SeededRng,
    pub(crate) name: String,
    pub(crate) pending_updates: Vec<PendingUpdate>,
}

impl Agent {
    /// Runs until the server is unreachable.
    pub(crate) async fn run(mut self) -> (Unanswered, Vec<PendingUpdate>) {
        for number in 0_u64.. {
            // Writes from before the last restart arrive late, as those of a delayed agent would.
            if number == 8 {
                self.write_pending_updates();
            }
            let request = self.random_request(number);
            if let Err(unanswered) = self.execute(request).await {
                return (unanswered, self.pending_updates);
            }
        }
        (Unanswered::Other, self.pending_updates)
    }

    fn random_request(&mut self, number: u64) -> AcquireRequest {
        let shared = self.rng.below(3) == 0;
        let lock_count = if self.rng.below(4) == 0 { 1 + self.rng.below(3) } else { 1 };
        let kind = self.rng.below(3);
        let mut asks: Vec<LockSpec> = Vec::new();
        for _ in 0..lock_count {
            let lock = *self.rng.pick(&LOCKS).expect("some");
            let mode =
                if shared && !lock.starts_with("task:") { LockMode::Shared } else { LockMode::Exclusive };
            if !asks.iter().any(|ask| ask.lock == lock) {
                asks.push(LockSpec { lock: lock.to_owned(), mode: Some(mode) });
            }
        }
        let queue = kind == 2 && asks.len() == 1;
        AcquireRequest {
            locks: asks,
            agent_id: Some(self.name.clone()),
            holder_id: Some(format!("{}-{number}", self.name)),
            ttl_seconds: Some([1.5, 3.0, 6.0][usize::try_from(self.rng.below(3)).expect("small")]),
            wait_seconds: match kind {
                0 => None,
                1 => Some(0.4),
                _ => queue.then_some(30.0),
            },
            queue,
            purpose: Some("load".to_owned()),
            request_id: Some(format!("request-{number}")),
            priority: None,
        }
    }

    async fn execute(&mut self, request: AcquireRequest) -> Result<(), Unanswered> {
        let holder = request.holder_id.clone().unwrap_or_default();
        if self.rng.below(3) == 0 {
            self.record_queues(&request).await.map_err(|ServerGone| Unanswered::Other)?;
        }
        let response = self.client.acquire_locks(&request).await;
        match self.check_response(response).map_err(|ServerGone| Unanswered::Acquire(request))? {
            Ok(AcquireOutcome::Granted(mut grants)) => {
                self.recorder.history().record_grants(&holder, &grants.grants);
                self.use_grants(&holder, &mut grants.grants).await
            }
            Ok(AcquireOutcome::Queued(ticket)) => {
                let id = ticket.ticket.clone();
                self.recorder.history().tickets.insert(holder.clone(), ticket);
                self.follow_ticket(&holder, &id).await
            }
            Err(error) => {
                assert_eq!(error.code(), Some("LOCK_HELD"), "{error}");
                self.recorder.history().left.insert(holder);
                Ok(())
            }
        }
    }

    /// Counts a response; an unreachable server ends the workload.
    fn check_response<T>(&self, response: Result<T, Error>) -> Result<Result<T, Error>, ServerGone> {
        if let Err(Error::Unreachable { .. }) = response {
            return Err(ServerGone);
        }
        self.recorder.response_count.send_modify(|count| *count += 1);
        Ok(response)
    }

    async fn record_queues(&self, request: &AcquireRequest) -> Result<(), ServerGone> {
        for ask in &request.locks {
            let seen = self.check_response(self.client.lock(&ask.lock).await)?.expect("lock is shown");
            self.recorder.history().queues.insert(seen.lock, seen.queue);
        }
        Ok(())
    }

    /// Cancels the ticket, or polls it a few times and claims it once it is ready.
    async fn follow_ticket(&mut self, holder: &str, id: &str) -> Result<(), Unanswered> {
        let gone = |ServerGone| Unanswered::Other;
        let polls = 4 * self.rng.below(4);
        if polls == 0 {
            // Recorded before it is sent: the cancellation may succeed although its response is lost.
            self.recorder.history().left.insert(holder.to_owned());
            self.recorder.history().tickets.remove(holder);
            return self
                .check_response(self.client.cancel_ticket(id).await)
                .map_err(gone)?
                .map_err(|e| panic!("{e}"));
        }
        for _ in 0..polls {
            let seen =
                self.check_response(self.client.ticket(id).await).map_err(gone)?.expect("ticket is known");
            let status = seen.status;
            self.recorder.history().tickets.insert(holder.to_owned(), seen);
            if status == TicketStatus::Ready {
                let claimed = self.check_response(self.client.claim_ticket(id).await).map_err(gone)?;
                let mut claimed = claimed.expect("claimed within the ten seconds allowed");
                self.recorder.history().tickets.remove(holder);
                self.recorder.history().record_grants(holder, &claimed.grants);
                return self.use_grants(holder, &mut claimed.grants).await;
            }
        }
        Ok(())
    }

    /// Uses the grants, may renew and verify them, then releases them or lets them expire.
    async fn use_grants(&mut self, holder: &str, grants: &mut [Grant]) -> Result<(), Unanswered> {
        let gone = |ServerGone| Unanswered::Other;
        for grant in grants.iter().filter(|grant| grant.mode == LockMode::Exclusive) {
            let mut history = self.recorder.history();
            let counter = history.counters.entry(grant.lock.clone()).or_default();
            if let Some(value) = counter.read(grant.fencing_token) {
                self.pending_updates.push((grant.lock.clone(), grant.fencing_token, value));
            }
        }
        let locks: Vec<LockToken> = grants.iter().map(held_lock).collect();
        let (agent_id, holder_id) = (Some(self.name.clone()), Some(holder.to_owned()));
        if self.rng.below(2) == 0 {
            let (agent_id, holder_id) = (agent_id.clone(), holder_id.clone());
            let ttl_extension = Some(3.0);
            let heartbeat = HeartbeatRequest {
                agent_id,
                holder_id,
                locks: locks.clone(),
                ttl_extension,
                timestamp: None,
            };
            let renewed = self.check_response(self.client.lock_heartbeat(&heartbeat).await).map_err(gone)?;
            let Some(renewed) = unless_expired(renewed, grants) else { return Ok(()) };
            for (grant, renewed) in grants.iter_mut().zip(renewed.results) {
                grant.expires_at = renewed.expires_at.expect("renewed");
            }
            self.recorder.history().record_grants(holder, grants);
        }
        if self.rng.below(3) == 0
            && let Some(LockToken { lock, fencing_token }) = locks.first().cloned()
        {
            let verify = VerifyTokenRequest { lock, fencing_token };
            let seen = self.check_response(self.client.verify_token(&verify).await).map_err(gone)?;
            let Some(verified) = unless_expired(seen, grants) else { return Ok(()) };
            assert_eq!(verified.holder.holder_id, holder);
        }
        if self.rng.below(5) > 0 {
            self.write_pending_updates();
        }
        if self.rng.below(6) > 0 {
            let at = now();
            grants.iter().for_each(|g| self.recorder.history().record_release(&g.lock, g.fencing_token, at));
            let request = HeldLocksRequest { agent_id, holder_id, locks };
            let released = self.client.release_locks(&request).await;
            unless_expired(
                self.check_response(released).map_err(|ServerGone| Unanswered::Release(request))?,
                grants,
            );
        }
        Ok(())
    }

    fn write_pending_updates(&mut self) {
        let mut history = self.recorder.history();
        for (lock, token, value) in self.pending_updates.drain(..) {
            history.counters.entry(lock).or_default().write(token, value + 1);
        }
    }
}

/// On a busy machine a lease may expire before it is used. No other error is accepted.
fn unless_expired<T>(response: Result<T, Error>, grants: &[Grant]) -> Option<T> {
    match response {
        Ok(response) => Some(response),
        Err(error) => {
            let is_expired = grants.iter().any(|grant| grant.expires_at.0 <= now());
            assert!(is_expired && error.code() == Some("LOCK_LOST"), "{grants:?} {error}");
            None
        }
    }
}

pub(crate) fn held_lock(grant: &Grant) -> LockToken {
    LockToken { lock: grant.lock.clone(), fencing_token: grant.fencing_token }
}
