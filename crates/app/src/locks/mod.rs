//! Locks: acquire, wait, hold and release for agents; views for people.

mod acquire;
mod drain;
mod holders;
mod local_admission;
mod maintenance;
mod open_request;
mod open_requests;
mod outage;
mod shared_limits;
mod stored_requests;
mod tickets;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::lock::saga::AcquireFailure;
use ade_domain::lock::{
    Grant, LockCommand, LockLimits, LockName, LockOutcome, LockReply, RequestKey, RequestedLock, SharedStr,
};
use ade_domain::{Clock, Moment};
use ade_store::coordination::LockView;
use ade_store::{Coordination, CoordinationError, Database, DatabaseError};
use tokio::sync::watch;
use uuid::Uuid;

pub use holders::{HeldLockResult, HeldToken, ReleaseOutcome};
pub use maintenance::LockMaintenance;
pub use outage::LockAvailability;
pub use tickets::TicketState;

use crate::{Error, LockEventSink, LockNotice};

use maintenance::SweepCounts;
use open_request::ClosedRequest;
use open_requests::OpenRequests;
use outage::Outages;

type Result<T, E = LockError> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub struct LockService {
    coordination: Arc<dyn Coordination>,
    event_sink: Arc<dyn LockEventSink>,
    /// Identifies this process as the server of its waiters.
    server: SharedStr,
    awaited_locks: OpenRequests<LockName>,
    open_requests: OpenRequests<RequestKey>,
    /// What the sweeps of this process give back.
    closed_requests: Arc<Mutex<Vec<ClosedRequest>>>,
    is_stopping: Arc<AtomicBool>,
    sweep_counts: Arc<SweepCounts>,
    /// The limits in force, with the settings that all processes share.
    limits: Arc<watch::Sender<LockLimits>>,
    /// Where requests are stored while coordination is unavailable; `None` if it is part of this process.
    outages: Option<Outages>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GrantedLock {
    pub requested: RequestedLock,
    pub grant: Grant,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Acquisition {
    /// All locks are held.
    Granted(Vec<GrantedLock>),
    /// The request waits with a ticket.
    Waiting(WaitingTicket),
    /// The request is stored until coordination is available again.
    Stored(StoredTicket),
}

/// A ticket of a request that coordination does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredTicket {
    pub ticket: RequestKey,
    pub deadline: Moment,
}

/// A ticket that waits in the queue of a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingTicket {
    pub ticket: RequestKey,
    pub waiting_for: LockName,
    /// The head of the queue has position 1.
    pub position: usize,
    pub deadline: Moment,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("the lock request failed")]
    Failed {
        failure: AcquireFailure,
        /// The lock that was waited for, as it is now.
        now: Option<Box<LockView>>,
    },
    #[error("the agent requests locks too often; try again later")]
    RateLimited { retry_at: Moment },
    #[error("this request_id was used with another body; use a new one for a new request")]
    RequestReused,
    #[error("ticket not found; it may have ended more than ten minutes ago")]
    TicketNotFound,
    #[error("too many unregistered agents; register this one first")]
    TooManyAgents,
    #[error("{pending} lock requests of {of} already wait until Redis is back; try again later")]
    TooManyStored { pending: u64, of: String },
    #[error(transparent)]
    Unavailable(#[from] CoordinationError),
    /// A request could not be stored while coordination was unavailable.
    #[error(transparent)]
    NotStored(#[from] DatabaseError),
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Unavailable(error) => Self::Coordination(error),
            LockError::NotStored(error) => Self::Database(error),
            refused => Self::Coordination(CoordinationError(refused.to_string())),
        }
    }
}

impl LockService {
    #[must_use]
    pub fn new(coordination: Arc<dyn Coordination>, event_sink: Arc<dyn LockEventSink>) -> Self {
        let limits = Arc::new(watch::Sender::new(coordination.limits().clone()));
        Self {
            coordination,
            event_sink,
            limits,
            server: Uuid::new_v4().simple().to_string().into(),
            awaited_locks: OpenRequests::default(),
            open_requests: OpenRequests::default(),
            closed_requests: Arc::default(),
            is_stopping: Arc::default(),
            sweep_counts: Arc::default(),
            outages: None,
        }
    }

    /// Stores requests in the database while coordination is unavailable, and lets this process execute them afterwards. `instance`
    /// is the name of the process.
    #[must_use]
    pub fn with_stored_requests(self, database: &Database, clock: &Arc<dyn Clock>, instance: &str) -> Self {
        let outages = Outages::new(database.clone(), clock.clone(), instance);
        Self { outages: Some(outages), ..self }
    }

    #[must_use]
    pub fn coordination(&self) -> &Arc<dyn Coordination> {
        &self.coordination
    }

    /// The process is about to stop: from now on, a dropped request does not mean that the caller disconnected. A repeatable request
    /// keeps its place until another process serves it, or until the heartbeat of this one has expired.
    pub fn begin_shutdown(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn sweep_counts(&self) -> &SweepCounts {
        &self.sweep_counts
    }

    /// Runs commands, and publishes the deadlocks that they resolved.
    async fn run(
        &self,
        commands: Vec<(LockName, LockCommand)>,
    ) -> Result<Vec<LockOutcome>, CoordinationError> {
        Ok(self.outcomes(self.coordination.execute_commands(commands).await?).collect())
    }

    /// The outcomes of commands, whose deadlocks it publishes.
    fn outcomes(&self, replies: Vec<LockReply>) -> impl Iterator<Item = LockOutcome> {
        replies.into_iter().map(|LockReply { outcome, deadlocks }| {
            deadlocks.iter().for_each(|deadlock| self.event_sink.publish(LockNotice::Deadlock(deadlock)));
            outcome
        })
    }

    async fn run_one(&self, lock: LockName, command: LockCommand) -> Result<LockOutcome, CoordinationError> {
        let outcomes = self.run(vec![(lock, command)]).await?;
        let missing = || CoordinationError("a lock command got no reply".to_owned());
        outcomes.into_iter().next().ok_or_else(missing)
    }
}
