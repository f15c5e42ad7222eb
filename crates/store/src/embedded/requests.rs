//! Requests that may be repeated, in this process.

use ade_domain::Moment;
use ade_domain::lock::RequestKey;

use super::EmbeddedCoordination;
use super::state::{Other, Remembered, State};
use crate::coordination::{Registration, Reply, Requests, Ticket};

/// Requests that are remembered at most; beyond, those that would be forgotten first are forgotten early.
const MAX_REMEMBERED: usize = 200_000;

impl Requests for EmbeddedCoordination {
    fn remember(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> Reply<'_, Registration> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let digest = format!("{digest:032x}");
            if let Some(known) = state.requests.get(&key).filter(|known| known.until > now) {
                return Ok(if known.digest == digest { Registration::Same } else { Registration::Other });
            }
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            state.make(Other::Remembered(key, Remembered { digest, until, ticket }));
            self.commit(&mut state, now)?;
            Ok(Registration::New)
        })
    }

    fn forget(&self, key: RequestKey) -> Reply<'_, ()> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            if state.requests.contains_key(&key) {
                state.make(Other::Forgotten(key));
                self.commit(&mut state, now)?;
            }
            Ok(())
        })
    }

    fn recall(&self, key: RequestKey) -> Reply<'_, Option<Ticket>> {
        Box::pin(async move {
            let (state, now) = self.enter()?;
            Ok(state.requests.get(&key).filter(|known| known.until > now).and_then(Remembered::ticket))
        })
    }
}

impl State {
    /// Forgets requests whose time is over.
    pub(super) fn forget_requests(&mut self, now: Moment) {
        let over = |(until, _): &(Moment, RequestKey)| *until <= now;
        while let Some((_, key)) = self.forgetting.first().copied().filter(over) {
            self.make(Other::Forgotten(key));
        }
        // Whoever makes up request ids faster than they are forgotten must not fill the memory.
        let excess = self.requests.len().saturating_sub(MAX_REMEMBERED);
        let has_no_ticket = |(_, key): &&(Moment, RequestKey)| {
            self.requests.get(key).is_some_and(|known| known.ticket.is_none())
        };
        let early: Vec<RequestKey> =
            self.forgetting.iter().filter(has_no_ticket).take(excess).map(|(_, key)| *key).collect();
        for key in early {
            self.make(Other::Forgotten(key));
        }
    }
}
