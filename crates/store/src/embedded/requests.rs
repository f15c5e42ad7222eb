//! Idempotent lock requests, in this process.

use ade_domain::Moment;
use ade_domain::lock::RequestKey;

use super::EmbeddedCoordination;
use super::state::{RegisteredRequest, State, StateChange};
use crate::coordination::{AsyncResult, LockRequests, Registration, Ticket};

/// Above that, the requests that expire first are forgotten early.
const MAX_REGISTERED: usize = 200_000;

impl LockRequests for EmbeddedCoordination {
    fn register_request(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> AsyncResult<'_, Registration> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let digest = format!("{digest:032x}");
            if let Some(known) = state.requests.get(&key).filter(|known| known.until > now) {
                return Ok(if known.digest == digest {
                    Registration::Repeated
                } else {
                    Registration::KeyReused
                });
            }
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            state.change(StateChange::RequestRegistered(key, RegisteredRequest { digest, until, ticket }));
            self.commit(&mut state, now)?;
            Ok(Registration::New)
        })
    }

    fn forget_request(&self, key: RequestKey) -> AsyncResult<'_, ()> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.requests.contains_key(&key) {
                state.change(StateChange::RequestForgotten(key));
                self.commit(&mut state, now)?;
            }
            Ok(())
        })
    }

    fn ticket(&self, key: RequestKey) -> AsyncResult<'_, Option<Ticket>> {
        Box::pin(async move {
            let (state, now) = self.enter()?;
            let request = state.requests.get(&key).filter(|known| known.until > now);
            Ok(request.and_then(RegisteredRequest::ticket))
        })
    }
}

impl State {
    /// Forgets at most `limit` requests: the expired ones, and the oldest if there are too many. Returns how many.
    pub(super) fn evict_requests(&mut self, now: Moment, limit: usize) -> usize {
        let is_expired = |(until, _): &&(Moment, RequestKey)| *until <= now;
        let expired = self.request_expiries.iter().take_while(is_expired);
        let mut forgotten: Vec<RequestKey> = expired.take(limit).map(|(_, key)| *key).collect();
        // A client that invents request ids faster than they expire must not fill the memory.
        let excess = self.requests.len().saturating_sub(MAX_REGISTERED);
        if forgotten.is_empty() && excess > 0 {
            let has_no_ticket = |(_, key): &&(Moment, RequestKey)| {
                self.requests.get(key).is_some_and(|known| known.ticket.is_none())
            };
            let early = self.request_expiries.iter().filter(has_no_ticket).take(excess.min(limit));
            forgotten = early.map(|(_, key)| *key).collect();
        }
        for key in &forgotten {
            self.change(StateChange::RequestForgotten(*key));
        }
        forgotten.len()
    }
}
