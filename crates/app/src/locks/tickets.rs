//! Tickets: requests that wait without an open answer. Polls keep what was won so far, and the last step is a claim.

use ade_domain::Moment;
use ade_domain::lock::saga::{Failure, Next, Saga};
use ade_domain::lock::{Grant, LockCommand, Outcome, RequestKey, Standing};
use ade_store::coordination::Ticket;

use super::acquire::granted;
use super::{Granted, LockError, LockService, Waiting};

/// How a ticket stands.
#[derive(Debug, Clone, PartialEq)]
pub enum TicketState {
    /// It waits.
    Waiting(Waiting),
    /// Everything is held and must be claimed.
    Ready {
        /// The ticket.
        ticket: RequestKey,
        /// Until when it must be claimed.
        claim_by: Moment,
    },
    /// It was claimed.
    Granted(Vec<Granted>),
}

impl LockService {
    /// How a ticket stands. Asking is what keeps its locks while it waits for further ones.
    pub async fn ticket(&self, key: RequestKey) -> Result<TicketState, LockError> {
        self.poll(key, false).await
    }

    /// Starts the leases of a ticket whose locks are all held.
    pub async fn claim(&self, key: RequestKey) -> Result<TicketState, LockError> {
        self.poll(key, true).await
    }

    /// Gives a ticket up, and what it won.
    pub async fn cancel(&self, key: RequestKey) -> Result<(), LockError> {
        let Ticket { request, deadline } = self.recall(key).await?;
        let mut saga = Saga::new(request, self.server.clone());
        saga.cancel();
        self.advance(&mut saga, deadline).await?;
        Ok(())
    }

    /// Whose ticket it is.
    pub async fn ticket_agent(&self, key: RequestKey) -> Result<String, LockError> {
        Ok(self.recall(key).await?.request.holder.agent_id().to_owned())
    }

    async fn recall(&self, key: RequestKey) -> Result<Ticket, LockError> {
        self.coordination.recall(key).await?.ok_or(LockError::NoTicket)
    }

    async fn poll(&self, key: RequestKey, claim: bool) -> Result<TicketState, LockError> {
        let ticket = self.recall(key).await?;
        self.coordination.heard(ticket.request.holder.agent_id().to_owned()).await?;
        let standings = self.standings(&ticket).await?;
        let held = grants(&standings);
        if held.len() == ticket.request.asks.len() {
            return self.complete(&ticket, held, claim).await;
        }
        let Ticket { request, deadline } = ticket;
        let mut saga = Saga::new(request.clone(), self.server.clone());
        if self.coordination.now() >= deadline {
            saga.time_out();
        } else if standings.iter().all(Option::is_none) {
            // A ticket that is alive stands in a queue or holds something. Its end may have been forgotten by its locks
            // already; it must not begin anew.
            saga.lost(0);
        }
        loop {
            match self.advance(&mut saga, deadline).await? {
                Next::Ready if claim => saga.begin_leases(),
                Next::Ready => {
                    let standings = self.standings(&Ticket { request, deadline }).await?;
                    return Ok(TicketState::Ready { ticket: key, claim_by: claim_by(&grants(&standings)) });
                }
                Next::Granted(grants) => return Ok(TicketState::Granted(granted(&request, grants))),
                Next::Failed(failure) => return Err(self.failed(failure).await?),
                Next::Wait { lock, position } => {
                    let keeps = saga.keep(self.coordination.rules());
                    self.keep(&mut saga, keeps).await?;
                    if matches!(saga.next(0), Next::Wait { .. }) {
                        let waiting = Waiting { ticket: key, waiting_for: lock, position, deadline };
                        return Ok(TicketState::Waiting(waiting));
                    }
                }
                Next::Step(..) => {}
            }
        }
    }

    /// How a ticket stands at each of its locks; `None` where it is not known.
    async fn standings(&self, ticket: &Ticket) -> Result<Vec<Option<Standing>>, LockError> {
        let request = &ticket.request;
        let inquire = || LockCommand::Inquire { holder: request.holder.clone(), request: request.key };
        let outcomes =
            self.run(request.asks.iter().map(|ask| (ask.lock.clone(), inquire())).collect()).await?;
        let standing = |outcome| match outcome {
            Outcome::Standing(standing) => Some(standing),
            _ => None,
        };
        Ok(outcomes.into_iter().map(standing).collect())
    }

    /// Everything is held: claimed before, claimed now, or waiting to be claimed.
    async fn complete(
        &self,
        ticket: &Ticket,
        held: Vec<Grant>,
        claim: bool,
    ) -> Result<TicketState, LockError> {
        let Ticket { request, deadline } = ticket;
        if held.iter().all(|grant| grant.claimed) {
            return Ok(TicketState::Granted(granted(request, held)));
        }
        if !claim {
            return Ok(TicketState::Ready { ticket: request.key, claim_by: claim_by(&held) });
        }
        let mut saga = Saga::held(request.clone(), self.server.clone(), held);
        match self.advance(&mut saga, *deadline).await? {
            Next::Granted(grants) => Ok(TicketState::Granted(granted(request, grants))),
            Next::Failed(failure) => Err(self.failed(failure).await?),
            _ => Err(self.failed(Failure::Cancelled).await?),
        }
    }
}

/// The grants that a ticket has, in its order, as far as they reach.
fn grants(standings: &[Option<Standing>]) -> Vec<Grant> {
    let grant = |standing: &Option<Standing>| match standing {
        Some(Standing::Held(grant)) => Some(grant.clone()),
        _ => None,
    };
    standings.iter().map_while(grant).collect()
}

fn claim_by(held: &[Grant]) -> Moment {
    let unclaimed = held.iter().filter(|grant| !grant.claimed);
    unclaimed.map(|grant| grant.expires_at).min().unwrap_or_default()
}
