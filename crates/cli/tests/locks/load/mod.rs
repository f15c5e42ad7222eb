//! Agents that do everything one can do with locks, until the server is gone; they note every answer, and keep what was
//! not answered.

pub(crate) mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_client::wire::{
    AcquireRequest, Grant, HeartbeatRequest, HeldLock, HoldRequest, LockAsk, Mode, TicketStatus,
    VerifyRequest,
};
use ade_client::{Acquired, Client, Error};
use ade_testkit::Dice;
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

#[expect(clippy::disallowed_methods, reason = "leases are compared with the time of day, as the server does")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// What agents share: the history, and how many answers there were.
#[derive(Debug, Clone)]
pub(crate) struct Notes {
    history: Arc<Mutex<History>>,
    pub(crate) answers: watch::Sender<u64>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        Self { history: Arc::default(), answers: watch::Sender::new(0) }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was not answered when the server went away.
#[derive(Debug)]
pub(crate) enum Unanswered {
    Acquire(AcquireRequest),
    Release(HoldRequest),
    /// Anything that changes no lock, or that is looked at in another way.
    Other,
}

/// A counter's value that was read under a grant, and is written back later.
pub(crate) type Update = (String, u64, u64);

/// The server is gone.
struct Gone;

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) notes: Notes,
    pub(crate) dice: Dice,
    pub(crate) name: String,
    /// Updates of counters that were begun.
    pub(crate) begun: Vec<Update>,
}

impl Agent {
    /// Works until the server does not answer any more.
    pub(crate) async fn work(mut self) -> (Unanswered, Vec<Update>) {
        for number in 0_u64.. {
            // Updates that were begun before the last restart come late, as those of an agent that was held up do.
            if number == 8 {
                self.finish_updates();
            }
            let request = self.invent(number);
            if let Err(unanswered) = self.go_through(request).await {
                return (unanswered, self.begun);
            }
        }
        (Unanswered::Other, self.begun)
    }

    fn invent(&mut self, number: u64) -> AcquireRequest {
        let shared = self.dice.below(3) == 0;
        let several = if self.dice.below(4) == 0 { 1 + self.dice.below(3) } else { 1 };
        let kind = self.dice.below(3);
        let mut asks: Vec<LockAsk> = Vec::new();
        for _ in 0..several {
            let lock = *self.dice.pick(&LOCKS).expect("some");
            let mode = if shared && !lock.starts_with("task:") { Mode::Shared } else { Mode::Exclusive };
            if !asks.iter().any(|ask| ask.lock == lock) {
                asks.push(LockAsk { lock: lock.to_owned(), mode: Some(mode) });
            }
        }
        let queue = kind == 2 && asks.len() == 1;
        AcquireRequest {
            locks: asks,
            agent_id: Some(self.name.clone()),
            holder_id: Some(format!("{}-{number}", self.name)),
            ttl_seconds: Some([1.5, 3.0, 6.0][usize::try_from(self.dice.below(3)).expect("small")]),
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

    async fn go_through(&mut self, request: AcquireRequest) -> Result<(), Unanswered> {
        let holder = request.holder_id.clone().unwrap_or_default();
        if self.dice.below(3) == 0 {
            self.look(&request).await.map_err(|Gone| Unanswered::Other)?;
        }
        let answer = self.client.acquire(&request).await;
        match self.answered(answer).map_err(|Gone| Unanswered::Acquire(request))? {
            Ok(Acquired::Granted(mut grants)) => {
                self.notes.history().granted(&holder, &grants.grants);
                self.hold(&holder, &mut grants.grants).await
            }
            Ok(Acquired::Ticket(ticket)) => {
                let id = ticket.ticket.clone();
                self.notes.history().tickets.insert(holder.clone(), ticket);
                self.attend(&holder, &id).await
            }
            Err(error) => {
                assert_eq!(error.code(), Some("LOCK_HELD"), "{error}");
                self.notes.history().left.insert(holder);
                Ok(())
            }
        }
    }

    /// An answer is counted; without one the server is gone.
    fn answered<T>(&self, answer: Result<T, Error>) -> Result<Result<T, Error>, Gone> {
        if let Err(Error::Unreachable { .. }) = answer {
            return Err(Gone);
        }
        self.notes.answers.send_modify(|answers| *answers += 1);
        Ok(answer)
    }

    async fn look(&self, request: &AcquireRequest) -> Result<(), Gone> {
        for ask in &request.locks {
            let seen = self.answered(self.client.lock(&ask.lock).await)?.expect("locks can be seen");
            self.notes.history().queues.insert(seen.lock, seen.queue);
        }
        Ok(())
    }

    /// A ticket is left alone, given up, or claimed once it is ready.
    async fn attend(&mut self, holder: &str, id: &str) -> Result<(), Unanswered> {
        let gone = |Gone| Unanswered::Other;
        let fate = self.dice.below(4);
        if fate == 0 {
            // Before it is sent: who leaves may be gone although nobody was told.
            self.notes.history().left.insert(holder.to_owned());
            self.notes.history().tickets.remove(holder);
            return self.answered(self.client.cancel(id).await).map_err(gone)?.map_err(|e| panic!("{e}"));
        }
        for _ in 0..fate * 4 {
            let seen = self.answered(self.client.ticket(id).await).map_err(gone)?.expect("it is there");
            let status = seen.status;
            self.notes.history().tickets.insert(holder.to_owned(), seen);
            if status == TicketStatus::Ready {
                let claimed = self.answered(self.client.claim(id).await).map_err(gone)?;
                let mut claimed = claimed.expect("there were ten seconds for it");
                self.notes.history().tickets.remove(holder);
                self.notes.history().granted(holder, &claimed.grants);
                return self.hold(holder, &mut claimed.grants).await;
            }
        }
        Ok(())
    }

    /// What is held is used, renewed, and given up or left to expire.
    async fn hold(&mut self, holder: &str, grants: &mut [Grant]) -> Result<(), Unanswered> {
        let gone = |Gone| Unanswered::Other;
        for grant in grants.iter().filter(|grant| grant.mode == Mode::Exclusive) {
            let mut history = self.notes.history();
            let counter = history.counters.entry(grant.lock.clone()).or_default();
            if let Some(value) = counter.read(grant.fencing_token) {
                self.begun.push((grant.lock.clone(), grant.fencing_token, value));
            }
        }
        let locks: Vec<HeldLock> = grants.iter().map(held).collect();
        let (agent_id, holder_id) = (Some(self.name.clone()), Some(holder.to_owned()));
        if self.dice.below(2) == 0 {
            let (agent_id, holder_id) = (agent_id.clone(), holder_id.clone());
            let ttl_extension = Some(3.0);
            let beat = HeartbeatRequest {
                agent_id,
                holder_id,
                locks: locks.clone(),
                ttl_extension,
                timestamp: None,
            };
            let kept = self.answered(self.client.heartbeat(&beat).await).map_err(gone)?;
            let Some(kept) = unless_late(kept, grants) else { return Ok(()) };
            for (grant, kept) in grants.iter_mut().zip(kept.results) {
                grant.expires_at = kept.expires_at.expect("kept");
            }
            self.notes.history().granted(holder, grants);
        }
        if self.dice.below(3) == 0
            && let Some(HeldLock { lock, fencing_token }) = locks.first().cloned()
        {
            let verify = VerifyRequest { lock, fencing_token };
            let seen = self.answered(self.client.verify(&verify).await).map_err(gone)?;
            let Some(seen) = unless_late(seen, grants) else { return Ok(()) };
            assert_eq!(seen.holder.holder_id, holder);
        }
        if self.dice.below(5) > 0 {
            self.finish_updates();
        }
        if self.dice.below(6) > 0 {
            let at = now();
            grants.iter().for_each(|g| self.notes.history().releasing(&g.lock, g.fencing_token, at));
            let request = HoldRequest { agent_id, holder_id, locks };
            let done = self.client.release(&request).await;
            unless_late(self.answered(done).map_err(|Gone| Unanswered::Release(request))?, grants);
        }
        Ok(())
    }

    fn finish_updates(&mut self) {
        let mut history = self.notes.history();
        for (lock, token, value) in self.begun.drain(..) {
            history.counters.entry(lock).or_default().write(token, value + 1);
        }
    }
}

/// On a machine that is too busy a lease may run out before it is used; that is the only excuse.
fn unless_late<T>(answer: Result<T, Error>, grants: &[Grant]) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            let late = grants.iter().any(|grant| grant.expires_at.0 <= now());
            assert!(late && error.code() == Some("LOCK_LOST"), "{grants:?} {error}");
            None
        }
    }
}

pub(crate) fn held(grant: &Grant) -> HeldLock {
    HeldLock { lock: grant.lock.clone(), fencing_token: grant.fencing_token }
}
