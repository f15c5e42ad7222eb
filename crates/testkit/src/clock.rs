//! A clock that stands still until a test moves it.
//!
//! Code under test takes the time as an argument or a closure ([`ManualClock::reader`]); a thread that waits for a time
//! is woken when the test gets there, so that no test ever sleeps.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::{Clock, Moment};
use jiff::{SignedDuration, Timestamp};

/// A clock in the test's hands; clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    shared: Arc<(Mutex<Timestamp>, Condvar)>,
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self { shared: Arc::new((Mutex::new(start), Condvar::new())) }
    }

    /// The time it shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        *self.lock()
    }

    /// The same as a closure, to be injected.
    pub fn reader(&self) -> impl Fn() -> Timestamp + Clone + Send + Sync + 'static {
        let clock = self.clone();
        move || clock.now()
    }

    /// Moves it forward and wakes whoever waited for that; stops at the end of time.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        let mut now = self.lock();
        *now = now.saturating_add(by).unwrap_or(Timestamp::MAX);
        drop(now);
        self.shared.1.notify_all();
    }

    /// Sets it to any time, also backwards: clocks do step.
    pub fn set(&self, to: Timestamp) {
        *self.lock() = to;
        self.shared.1.notify_all();
    }

    /// Blocks until it shows `time` or later.
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
    fn it_moves_only_when_told_and_wakes_who_waited() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let read = clock.reader();
        let (told, heard) = mpsc::channel();
        let waiter = clock.clone();
        let thread = thread::spawn(move || {
            waiter.wait_until(Timestamp::from_second(30).expect("valid"));
            told.send(waiter.now()).expect("the test listens");
        });
        clock.advance(Duration::from_secs(29));
        assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty));
        clock.advance(Duration::from_secs(1));
        assert_eq!(heard.recv(), Ok(read()));
        thread.join().expect("no panic");
        clock.set(Timestamp::UNIX_EPOCH);
        assert_eq!(read(), Timestamp::UNIX_EPOCH);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
