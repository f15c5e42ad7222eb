//! Tickets: lock requests that wait without an open connection. Polling keeps the locks acquired so far; a claim starts the
//! leases.

use ade_domain::Moment;
use ade_domain::lock::saga::{AcquireFailure, AcquireSaga, SagaAction};
use ade_domain::lock::{AcquireStatus, Grant, Holder, LockCommand, LockOutcome, RequestKey};
use ade_store::coordination::Ticket;

use super::acquire::granted;
use super::outage::Outages;
use super::{GrantedLock, LockError, LockService, Result, StoredTicket, WaitingTicket};

#[derive(Debug, Clone, PartialEq)]
pub enum TicketState {
    Waiting(WaitingTicket),
    /// All locks are held, and must be claimed in time.
    Ready {
        ticket: RequestKey,
        claim_by: Moment,
    },
    /// The locks were claimed.
    Granted(Vec<GrantedLock>),
    /// The request is stored until coordination is available again.
    Stored(StoredTicket),
}

impl LockService {
    /// The state of a ticket. Polling keeps its locks while it waits for further ones.
    pub async fn ticket(&self, key: RequestKey) -> Result<TicketState> {
        self.poll_or_read(key, false).await
    }

    /// The holder that a ticket is for; `None` if the ticket is not known.
    pub async fn ticket_holder(&self, key: RequestKey) -> Result<Option<Holder>> {
        if self.outages.as_ref().is_some_and(Outages::is_closed) {
            // Coordination may know it.
            return self.stored_ticket_holder(key).await?.map(Some).ok_or_else(Outages::unavailable);
        }
        match self.coordination.ticket(key).await {
            Ok(Some(ticket)) => Ok(Some(ticket.request.holder)),
            Ok(None) => self.stored_ticket_holder(key).await,
            Err(error) => match self.stored_ticket_holder(key).await {
                Ok(Some(holder)) => Ok(Some(holder)),
                _ => Err(error.into()),
            },
        }
    }

    /// Starts the leases of a ticket whose locks are all held.
    pub async fn claim(&self, key: RequestKey) -> Result<TicketState> {
        self.poll_or_read(key, true).await
    }

    /// Cancels a ticket and releases its locks.
    pub async fn cancel(&self, key: RequestKey) -> Result<()> {
        let is_closed = self.outages.as_ref().is_some_and(Outages::is_closed);
        if is_closed || self.pending_requests() > 0 {
            let is_cancelled = self.cancel_stored(key).await;
            if is_closed {
                return if is_cancelled? { Ok(()) } else { Err(Outages::unavailable()) };
            }
        }
        match self.cancel_executed(key).await {
            Err(LockError::TicketNotFound) => self.cancel_unknown(key).await,
            Err(error @ LockError::Unavailable(_)) => {
                if self.cancel_stored(key).await? {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            cancelled => cancelled,
        }
    }

    /// Cancels a ticket that coordination did not know a moment ago. If it is not stored either, it may have been executed between the
    /// two reads.
    pub(super) async fn cancel_unknown(&self, key: RequestKey) -> Result<()> {
        if self.cancel_stored(key).await? { Ok(()) } else { self.cancel_executed(key).await }
    }

    async fn cancel_executed(&self, key: RequestKey) -> Result<()> {
        let Ticket { request, deadline } = self.find(key).await?;
        let mut saga = AcquireSaga::new(request, self.server.clone());
        saga.cancel();
        self.advance(&mut saga, deadline).await?;
        Ok(())
    }

    async fn find(&self, key: RequestKey) -> Result<Ticket> {
        self.coordination.ticket(key).await?.ok_or(LockError::TicketNotFound)
    }

    /// The state of a ticket, also of one that is only stored.
    async fn poll_or_read(&self, key: RequestKey, claim: bool) -> Result<TicketState> {
        if self.outages.as_ref().is_some_and(Outages::is_closed) {
            return self.stored_ticket(key).await?.ok_or_else(Outages::unavailable);
        }
        match self.poll(key, claim).await {
            Err(LockError::TicketNotFound) => self.poll_unknown(key, claim).await,
            Err(error @ LockError::Unavailable(_)) => self.stored_ticket(key).await?.ok_or(error),
            polled => polled,
        }
    }

    /// The state of a ticket that coordination did not know a moment ago. If it is not stored either, it may have been executed between
    /// the two reads.
    pub(super) async fn poll_unknown(&self, key: RequestKey, claim: bool) -> Result<TicketState> {
        match self.stored_ticket(key).await? {
            Some(stored) => Ok(stored),
            None => self.poll(key, claim).await,
        }
    }

    async fn poll(&self, key: RequestKey, claim: bool) -> Result<TicketState> {
        let ticket = self.find(key).await?;
        self.coordination.record_heartbeat(ticket.request.holder.agent_id().to_owned()).await?;
        let mut standings = self.standings(&ticket).await?;
        if standings.iter().all(Option::is_none) {
            // A stored request is registered before it waits anywhere.
            if let Some(stored) = self.pending_ticket(key).await? {
                return Ok(TicketState::Stored(stored));
            }
            standings = self.standings(&ticket).await?;
        }
        let held = grants(&standings);
        if held.len() == ticket.request.locks.len() {
            return self.complete(&ticket, held, claim).await;
        }
        let Ticket { request, deadline } = ticket;
        let mut saga = AcquireSaga::new(request.clone(), self.server.clone());
        if self.coordination.now() >= deadline {
            saga.time_out();
        } else if standings.iter().all(Option::is_none) {
            // A live ticket waits in a queue or holds a lock. This one has ended, even if its locks no longer know how; it must not
            // start again.
            saga.handle_lost_grant(0);
        }
        loop {
            match self.advance(&mut saga, deadline).await? {
                SagaAction::Ready if claim => saga.claim_all(),
                SagaAction::Ready => {
                    let standings = self.standings(&Ticket { request, deadline }).await?;
                    return Ok(TicketState::Ready { ticket: key, claim_by: claim_by(&grants(&standings)) });
                }
                SagaAction::Granted(grants) => return Ok(TicketState::Granted(granted(&request, grants))),
                SagaAction::Failed(failure) => return self.failed(failure).await,
                SagaAction::Wait { lock, position } => {
                    let keeps = saga.keep_alive_commands(self.coordination.limits());
                    self.keep(&mut saga, keeps).await?;
                    if matches!(saga.next_action(0), SagaAction::Wait { .. }) {
                        let waiting = WaitingTicket { ticket: key, waiting_for: lock, position, deadline };
                        return Ok(TicketState::Waiting(waiting));
                    }
                }
                SagaAction::Execute(..) => {}
            }
        }
    }

    /// The standing of a ticket at each of its locks; `None` where the lock does not know it.
    async fn standings(&self, ticket: &Ticket) -> Result<Vec<Option<AcquireStatus>>> {
        let request = &ticket.request;
        let query = || LockCommand::Query { holder: request.holder.clone(), request: request.key };
        let queries = request.locks.iter().map(|requested| (requested.lock.clone(), query()));
        let outcomes = self.run(queries.collect()).await?;
        let standing = |outcome| match outcome {
            LockOutcome::Status(standing) => Some(standing),
            _ => None,
        };
        Ok(outcomes.into_iter().map(standing).collect())
    }

    /// All locks are held: they are already claimed, claimed now, or ready to be claimed.
    async fn complete(&self, ticket: &Ticket, held: Vec<Grant>, claim: bool) -> Result<TicketState> {
        let Ticket { request, deadline } = ticket;
        if held.iter().all(|grant| grant.claimed) {
            return Ok(TicketState::Granted(granted(request, held)));
        }
        if !claim {
            return Ok(TicketState::Ready { ticket: request.key, claim_by: claim_by(&held) });
        }
        let mut saga = AcquireSaga::with_grants(request.clone(), self.server.clone(), held);
        match self.advance(&mut saga, *deadline).await? {
            SagaAction::Granted(grants) => Ok(TicketState::Granted(granted(request, grants))),
            SagaAction::Failed(failure) => self.failed(failure).await,
            _ => self.failed(AcquireFailure::Cancelled).await,
        }
    }
}

/// The grants up to the first lock that is not held, in the order of the request.
fn grants(standings: &[Option<AcquireStatus>]) -> Vec<Grant> {
    let grant = |standing: &Option<AcquireStatus>| match standing {
        Some(AcquireStatus::Held(grant)) => Some(grant.clone()),
        _ => None,
    };
    standings.iter().map_while(grant).collect()
}

fn claim_by(held: &[Grant]) -> Moment {
    let unclaimed = held.iter().filter(|grant| !grant.claimed);
    unclaimed.map(|grant| grant.expires_at).min().unwrap_or_default()
}
