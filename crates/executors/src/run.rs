//! One run of one attempt: its parameters, its output, and the signal that stops it early.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::{Output, Parameters};

/// Why a run must stop early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// The timeout of the task has passed.
    TimedOut,
    /// An administrator stopped the task.
    Stopped,
    /// The lease or the locks are lost. Another worker may already hold them.
    Lost,
}

#[derive(Debug, Clone)]
pub struct Run {
    pub task_id: String,
    /// The attempt whose effects are meant.
    pub attempt: u64,
    pub parameters: Parameters,
    /// The fingerprint of the approved preview.
    pub approved: Option<String>,
    /// The locks that are held for this run, each with its fencing token.
    pub tokens: Vec<(String, u64)>,
    pub output: Output,
    pub halted: Halted,
}

/// The signal that stops a run early. It also knows how long the lease and the locks are valid, so that a process that was
/// suspended for longer notices this itself as soon as it continues.
#[derive(Debug, Clone)]
pub struct Halted {
    reason: watch::Receiver<Option<Halt>>,
    lease_valid_until: Option<watch::Receiver<Instant>>,
}

impl Halted {
    /// A signal that is not bound to a lease, and its sender.
    #[must_use]
    pub fn new() -> (watch::Sender<Option<Halt>>, Self) {
        Self::with_lease(None)
    }

    /// A signal for a run whose lease and locks are valid until a time that moves on with each renewal.
    #[must_use]
    pub fn within(lease_valid_until: watch::Receiver<Instant>) -> (watch::Sender<Option<Halt>>, Self) {
        Self::with_lease(Some(lease_valid_until))
    }

    /// Another signal for another operation under the same lease and locks.
    #[must_use]
    pub fn another(&self) -> (watch::Sender<Option<Halt>>, Self) {
        Self::with_lease(self.lease_valid_until.clone())
    }

    fn with_lease(
        lease_valid_until: Option<watch::Receiver<Instant>>,
    ) -> (watch::Sender<Option<Halt>>, Self) {
        let (sender, reason) = watch::channel(None);
        (sender, Self { reason, lease_valid_until })
    }

    /// Why the run must stop, if it must.
    #[must_use]
    pub fn now(&self) -> Option<Halt> {
        let is_expired =
            self.lease_valid_until.as_ref().is_some_and(|until| *until.borrow() <= Instant::now());
        if is_expired { Some(Halt::Lost) } else { *self.reason.borrow() }
    }

    /// Waits until the run must stop. A dropped sender counts as a lost lease, because its worker is gone.
    pub async fn wait(&self) -> Halt {
        let mut reason = self.reason.clone();
        tokio::select! {
            biased;
            () = self.lease_expired() => Halt::Lost,
            received = reason.wait_for(Option::is_some) => {
                received.ok().and_then(|received| *received).unwrap_or(Halt::Lost)
            }
        }
    }

    /// Waits until the lease or the locks are lost, or the sender is dropped.
    pub async fn lost(&self) {
        let mut reason = self.reason.clone();
        tokio::select! {
            biased;
            () = self.lease_expired() => {}
            // An error means that the sender was dropped.
            _ = reason.wait_for(|reason| *reason == Some(Halt::Lost)) => {}
        }
    }

    /// Waits until the lease or the locks have expired by the local clock.
    async fn lease_expired(&self) {
        let Some(mut valid_until) = self.lease_valid_until.clone() else {
            return std::future::pending().await;
        };
        loop {
            let until = *valid_until.borrow_and_update();
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                changed = valid_until.changed() => {
                    if changed.is_err() {
                        // Nobody renews them any more.
                        return sleep_until(until).await;
                    }
                }
            }
        }
    }

    /// When the lease and the locks expire, if they do at all.
    pub(crate) fn lease_valid_until(&self) -> Option<watch::Receiver<Instant>> {
        self.lease_valid_until.clone()
    }

    /// Completes `work` unless the run must stop before that.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::select! {
            biased;
            reason = self.wait() => Err(reason),
            result = work => Ok(result),
        }
    }
}

impl Halt {
    /// A message for people. `timeout` is named if the run has exceeded it.
    #[must_use]
    pub fn message(self, timeout: Option<Duration>) -> String {
        match (self, timeout) {
            (Self::TimedOut, Some(timeout)) => format!("exceeded the timeout of {} s", timeout.as_secs()),
            (Self::TimedOut, None) => "exceeded its timeout".to_owned(),
            (Self::Stopped, _) => "stopped by an administrator".to_owned(),
            (Self::Lost, _) => "the lease or a lock was lost".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stops_when_lease_expires_without_notification() {
        let (later, now) = (Instant::now() + Duration::from_secs(3_600), Instant::now());
        let (renew, valid_until) = watch::channel(later);
        let (sender, applying) = Halted::within(valid_until);
        assert_eq!(applying.now(), None);
        sender.send_replace(Some(Halt::Stopped));
        assert_eq!((applying.now(), applying.wait().await), (Some(Halt::Stopped), Halt::Stopped));
        let (_other_sender, rolling_back) = applying.another();
        assert_eq!(rolling_back.now(), None, "other operations are not stopped");
        let waiting = tokio::spawn({
            let rolling_back = rolling_back.clone();
            async move { rolling_back.wait().await }
        });
        renew.send_replace(now);
        assert_eq!(waiting.await.expect("joined"), Halt::Lost, "but they stop when the lease expires");
        assert_eq!((applying.now(), rolling_back.now()), (Some(Halt::Lost), Some(Halt::Lost)));
        applying.lost().await;
        assert_eq!(rolling_back.or(async { "done" }).await, Err(Halt::Lost), "no new work is started");
        renew.send_replace(later);
        assert_eq!(rolling_back.now(), None);
        drop((renew, sender));
        assert_eq!(applying.wait().await, Halt::Stopped);
        applying.lost().await;
    }
}
