//! Signals that a command handles instead of being ended by them.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use crate::failure::{Failure, Result};

pub(crate) struct Signals(Vec<(Signal, Listener)>);

impl Signals {
    /// Handles these signals from now on.
    pub(crate) fn listen(signals: &[Signal]) -> Result<Self> {
        let listen = |number: &Signal| {
            let listener = signal(SignalKind::from_raw(number.as_raw()));
            Ok((*number, listener.map_err(|error| Failure::cannot("handle signals", error))?))
        };
        Ok(Self(signals.iter().map(listen).collect::<Result<_>>()?))
    }

    /// Waits until one of them arrives.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut listeners = self.0.iter_mut();
            let received =
                listeners.find_map(|(signal, it)| it.poll_recv(context).is_ready().then_some(*signal));
            received.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
