//! Requests that may be repeated, in this process.

use ade_domain::Moment;
use ade_domain::lock::RequestKey;

use super::Embedded;
use super::state::{Other, Remembered, State};
use crate::coordination::{Memory, Reply, Requests, Ticket};

impl Requests for Embedded {
    fn remember(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> Reply<'_, Memory> {
        Box::pin(async move {
            let (mut state, now) = self.enter()?;
            let digest = format!("{digest:032x}");
            if let Some(known) = state.requests.get(&key).filter(|known| known.until > now) {
                return Ok(if known.digest == digest { Memory::Same } else { Memory::Other });
            }
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            state.make(Other::Remembered(key, Remembered { digest, until, ticket }));
            self.commit(&mut state, now)?;
            Ok(Memory::New)
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
        while let Some((_, key)) = self.forgetting.pop_front_if(|(until, _)| *until <= now) {
            // A request that was remembered anew has a later line in the queue.
            if self.requests.get(&key).is_some_and(|known| known.until <= now) {
                self.make(Other::Forgotten(key));
            }
        }
    }
}
