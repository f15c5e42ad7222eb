//! A clock that only a test moves.
//!
//! Code under test takes the time as an argument or a closure ([`ManualClock::reader`]). A thread that waits for a time
//! wakes when the test advances to it, so that no test sleeps.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::{Clock, Moment};
use jiff::{SignedDuration, Timestamp};

/// Clones share the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    shared: Arc<(Mutex<Timestamp>, Condvar)>,
}

impl ManualClock {
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self { shared: Arc::new((Mutex::new(start), Condvar::new())) }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        *self.lock()
    }

    /// [`Self::now`] as a closure, to be injected.
    pub fn reader(&self) -> impl Fn() -> Timestamp + Clone + Send + Sync + 'static {
        let clock = self.clone();
        move || clock.now()
    }

    /// Moves the clock forward, at most to the end of time, and wakes waiting threads.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        let mut now = self.lock();
        *now = now.saturating_add(by).unwrap_or(Timestamp::MAX);
        drop(now);
        self.shared.1.notify_all();
    }

    /// Sets any time, also an earlier one: real clocks step back.
    pub fn set(&self, to: Timestamp) {
        *self.lock() = to;
        self.shared.1.notify_all();
    }

    /// Blocks until the clock shows `time` or later.
    pub fn wait_until(&self, time: Timestamp) {
        let now = self.lock();
        drop(self.shared.1.wait_while(now, |now| *now < time).unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Timestamp> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Self::now(self).into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn advances_manually_and_wakes_waiters() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let read = clock.reader();
        let (sender, receiver) = mpsc::channel();
        let waiter = clock.clone();
        let thread = thread::spawn(move || {
            waiter.wait_until(Timestamp::from_second(30).expect("valid"));
            sender.send(waiter.now()).expect("the test receives");
        });
        clock.advance(Duration::from_secs(29));
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
        clock.advance(Duration::from_secs(1));
        assert_eq!(receiver.recv(), Ok(read()));
        thread.join().expect("no panic");
        clock.set(Timestamp::UNIX_EPOCH);
        assert_eq!(read(), Timestamp::UNIX_EPOCH);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
