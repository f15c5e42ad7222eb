//! Locks as agents use them: take, wait, hold, give back; and as people see them.

mod acquire;
mod hold;
mod served;
mod tickets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ade_domain::Moment;
use ade_domain::lock::saga::Failure;
use ade_domain::lock::{Answer, Ask, Grant, LockCommand, LockName, Outcome, RequestKey, Text};
use ade_store::coordination::{Filter, LockView, WaitView};
use ade_store::{Coordination, CoordinationError};
use uuid::Uuid;

pub use hold::{Held, HoldResult};
pub use served::Served;
pub use tickets::TicketState;

use crate::notices::{LockEventSink, LockNotice};

/// Use cases around locks.
#[derive(Clone)]
pub struct LockService {
    coordination: Arc<dyn Coordination>,
    notices: Arc<dyn LockEventSink>,
    server: Text,
    served: Served<LockName>,
    open: Served<RequestKey>,
    leaving: Arc<AtomicBool>,
}

/// A lock that was granted.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    /// Which lock, and how it was asked for.
    pub ask: Ask,
    /// The grant.
    pub grant: Grant,
}

/// How an acquisition stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Acquired {
    /// Every lock is held.
    Granted(Vec<Granted>),
    /// The request waits with a ticket.
    Waiting(Waiting),
}

/// A ticket in a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The ticket.
    pub ticket: RequestKey,
    /// The lock that is waited for.
    pub waiting_for: LockName,
    /// The head of its queue is 1.
    pub position: usize,
    /// When it gives up.
    pub deadline: Moment,
}

/// Why locks were not granted.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The request came to its end.
    #[error("the request failed")]
    Failed {
        /// Why.
        failure: Failure,
        /// The lock in question, as it is now.
        now: Option<Box<LockView>>,
    },
    /// The agent asks too often.
    #[error("the agent asks for locks too often")]
    RateLimited {
        /// When it may ask again.
        retry_at: Moment,
    },
    /// The request's id belongs to another request.
    #[error("this request_id was used for another request")]
    RequestReused,
    /// Nobody has such a ticket.
    #[error("there is no such ticket; it may have ended more than ten minutes ago")]
    NoTicket,
    /// Too many agents are known by their name only.
    #[error("too many agents are known by name only; register this one first")]
    TooManyAgents,
    /// Coordination does not answer.
    #[error(transparent)]
    Unavailable(#[from] CoordinationError),
}

impl LockService {
    /// Locks of a backend, served by this process.
    #[must_use]
    pub fn new(coordination: Arc<dyn Coordination>, notices: Arc<dyn LockEventSink>) -> Self {
        let server = Uuid::new_v4().simple().to_string().into();
        let (served, open, leaving) = (Served::default(), Served::default(), Arc::default());
        Self { coordination, notices, server, served, open, leaving }
    }

    /// The backend.
    #[must_use]
    pub fn coordination(&self) -> &Arc<dyn Coordination> {
        &self.coordination
    }

    /// Where notices go.
    #[must_use]
    pub fn notices(&self) -> &Arc<dyn LockEventSink> {
        &self.notices
    }

    /// The process is about to end: from now on, an open answer that is dropped is not a caller who hung up. A request
    /// that can be repeated keeps its place until another process serves it, or until this one was silent for too long.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    pub(crate) const fn served(&self) -> &Served<LockName> {
        &self.served
    }

    pub(crate) const fn server(&self) -> &Text {
        &self.server
    }

    /// One lock.
    pub async fn show(&self, lock: LockName) -> Result<LockView, CoordinationError> {
        self.coordination.look(lock).await
    }

    /// Locks by name.
    pub async fn list(
        &self,
        by: Filter,
        after: Option<LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>, CoordinationError> {
        self.coordination.list(by, after, limit).await
    }

    /// Who waits for whom.
    pub async fn graph(&self, limit: usize) -> Result<Vec<WaitView>, CoordinationError> {
        self.coordination.waits(limit).await
    }

    /// Commands to locks, and notices of the deadlocks that they ended.
    async fn run(&self, commands: Vec<(LockName, LockCommand)>) -> Result<Vec<Outcome>, CoordinationError> {
        let answers = self.coordination.commands(commands).await?;
        let outcome = |Answer { outcome, deadlocks }: Answer| {
            deadlocks.iter().for_each(|deadlock| self.notices.tell(LockNotice::Deadlock(deadlock)));
            outcome
        };
        Ok(answers.into_iter().map(outcome).collect())
    }

    async fn run_one(&self, lock: LockName, command: LockCommand) -> Result<Outcome, CoordinationError> {
        let outcomes = self.run(vec![(lock, command)]).await?;
        outcomes.into_iter().next().ok_or_else(|| CoordinationError("a command was not answered".to_owned()))
    }
}

impl std::fmt::Debug for LockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockService").field("server", &self.server).finish_non_exhaustive()
    }
}
