//! Idempotent lock requests, in this process.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::lock::RequestKey;

use super::EmbeddedCoordination;
use super::state::{RegisteredRequest, State, StateChange};
use crate::coordination::{AsyncResult, LockRequests, Registration, Ticket};

/// Above that, the requests without a ticket that expire first are forgotten early.
const MAX_REGISTERED: usize = 200_000;

/// The registered requests by their expiry. Those without a ticket are apart: finding the first of them takes no longer if many have
/// tickets.
#[derive(Debug, Default)]
pub(super) struct RequestExpiries {
    without_ticket: BTreeSet<(Moment, RequestKey)>,
    with_ticket: BTreeSet<(Moment, RequestKey)>,
}

impl RequestExpiries {
    /// The part that a request belongs to.
    pub(super) const fn of(&mut self, request: &RegisteredRequest) -> &mut BTreeSet<(Moment, RequestKey)> {
        if request.ticket.is_some() { &mut self.with_ticket } else { &mut self.without_ticket }
    }

    fn expired(&self, now: Moment) -> impl Iterator<Item = RequestKey> {
        let is_expired = move |(until, _): &&(Moment, RequestKey)| *until <= now;
        let without_ticket = self.without_ticket.iter().take_while(is_expired);
        without_ticket.chain(self.with_ticket.iter().take_while(is_expired)).map(|(_, key)| *key)
    }
}

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
        let mut forgotten: Vec<RequestKey> = self.request_expiries.expired(now).take(limit).collect();
        // A client that invents request ids faster than they expire must not fill the memory.
        let excess = self.requests.len().saturating_sub(MAX_REGISTERED);
        if forgotten.is_empty() && excess > 0 {
            let early = self.request_expiries.without_ticket.iter().take(excess.min(limit));
            forgotten = early.map(|(_, key)| *key).collect();
        }
        for key in &forgotten {
            self.change(StateChange::RequestForgotten(*key));
        }
        forgotten.len()
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::lock::{Holder, LockLimits, LockRequest, LockRequestDraft};

    use super::*;

    #[test]
    fn forgets_requests_without_a_ticket_early_and_expired_ones_in_any_case() {
        const BATCH: usize = 100;
        let (mut state, limits) = (State::new(LockLimits::default()), LockLimits::default());
        let draft =
            LockRequestDraft { locks: vec![("task:1", None)], queue: true, ..LockRequestDraft::default() };
        let holder = Holder::new("ann", None).expect("valid");
        let request = LockRequest::new(holder, &draft, &limits, 1).expect("valid");
        let mut register = |number: usize, until: u64, has_ticket: bool| {
            let (key, until) = (RequestKey::from_nonce(number as u128), Moment::from_micros(until));
            let ticket = has_ticket.then(|| (request.clone(), until));
            let registered = RegisteredRequest { digest: String::new(), until, ticket };
            state.change(StateChange::RequestRegistered(key, registered));
        };
        // The tickets expire first, and most of the requests have one.
        let (tickets, others) = (MAX_REGISTERED - 10 * BATCH, 20 * BATCH);
        (0..tickets).for_each(|number| register(number, 10, true));
        (tickets..tickets + others).for_each(|number| register(number, 20 + number as u64, false));
        // Registered again without a ticket, so that it is the first to be forgotten.
        register(0, 15, false);
        for _ in 0..10 {
            assert_eq!(state.evict_requests(Moment::from_micros(5), BATCH), BATCH);
        }
        assert_eq!(state.evict_requests(Moment::from_micros(5), BATCH), 0, "there are few enough");
        assert!(!state.requests.contains_key(&RequestKey::from_nonce(0)));
        let kept = |number: usize| state.requests.contains_key(&RequestKey::from_nonce(number as u128));
        assert!((1..tickets).all(kept), "tickets stay");
        let first_kept = tickets + 10 * BATCH - 1;
        assert!((tickets..first_kept).all(|number| !kept(number)), "in the order of their expiry");
        assert!((first_kept..tickets + others).all(kept));
        assert_eq!(state.evict_requests(Moment::from_micros(10), BATCH), BATCH, "expired ones");
    }
}
