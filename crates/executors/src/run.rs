//! One run of one attempt: its parameters, its output, and the signal that stops it early.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Failure, Parameters, Result, RunOutput, SideEffects};

/// Why a run must stop early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    #[error("exceeded its timeout")]
    TimedOut,
    #[error("stopped by an administrator")]
    Stopped,
    /// Another worker may already hold them.
    #[error("the lease or a lock was lost")]
    LeaseLost,
}

pub type StopSender = watch::Sender<Option<StopReason>>;

#[derive(Debug, Clone)]
pub struct Run {
    pub task_id: String,
    /// The attempt whose effects are meant.
    pub attempt: u64,
    pub parameters: Parameters,
    /// The fingerprint of the approved preview.
    pub approved_fingerprint: Option<String>,
    /// The locks that are held for this run, each with its fencing token.
    pub fencing_tokens: Vec<(String, u64)>,
    pub output: RunOutput,
    pub stop: StopSignal,
}

/// The signal that stops a run early. It also knows how long the lease and the locks are valid, so that a process that was
/// suspended for longer notices this itself as soon as it continues.
#[derive(Debug, Clone)]
pub struct StopSignal {
    reason: watch::Receiver<Option<StopReason>>,
    lease_valid_until: Option<watch::Receiver<Instant>>,
}

impl StopSignal {
    /// A signal that is not bound to a lease, and its sender.
    #[must_use]
    pub fn new() -> (StopSender, Self) {
        Self::with_lease(None)
    }

    /// A signal for a run whose lease and locks are valid until a time that moves on with each renewal.
    #[must_use]
    pub fn bound_to_lease(lease_valid_until: watch::Receiver<Instant>) -> (StopSender, Self) {
        Self::with_lease(Some(lease_valid_until))
    }

    /// Another signal for another operation under the same lease and locks.
    #[must_use]
    pub fn with_same_lease(&self) -> (StopSender, Self) {
        Self::with_lease(self.lease_valid_until.clone())
    }

    fn with_lease(lease_valid_until: Option<watch::Receiver<Instant>>) -> (StopSender, Self) {
        let (sender, reason) = watch::channel(None);
        (sender, Self { reason, lease_valid_until })
    }

    /// Why the run must stop, if it must.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        let is_expired =
            self.lease_valid_until.as_ref().is_some_and(|until| *until.borrow() <= Instant::now());
        if is_expired { Some(StopReason::LeaseLost) } else { *self.reason.borrow() }
    }

    /// Waits until the run must stop. A dropped sender counts as a lost lease, because its worker is gone.
    pub async fn wait(&self) -> StopReason {
        self.wait_for(Option::is_some).await
    }

    /// Waits until the lease or the locks are lost, or the sender is dropped.
    pub async fn wait_lease_lost(&self) {
        self.wait_for(|reason| *reason == Some(StopReason::LeaseLost)).await;
    }

    async fn wait_for(&self, is_awaited: impl FnMut(&Option<StopReason>) -> bool) -> StopReason {
        let mut reason = self.reason.clone();
        tokio::select! {
            biased;
            () = self.lease_expired() => StopReason::LeaseLost,
            received = reason.wait_for(is_awaited) => {
                received.ok().and_then(|received| *received).unwrap_or(StopReason::LeaseLost)
            }
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
            if let Ok(Err(_)) = timeout_at(until, valid_until.changed()).await {
                // Nobody renews them any more.
                return sleep_until(until).await;
            }
        }
    }

    /// When the lease and the locks expire, if they do at all.
    pub(crate) fn lease_valid_until(&self) -> Option<watch::Receiver<Instant>> {
        self.lease_valid_until.clone()
    }

    /// Fails if the run must stop. `side_effects` is what it has changed so far.
    pub(crate) fn check(&self, side_effects: SideEffects) -> Result<()> {
        self.reason().map_or(Ok(()), |reason| Err(Failure::stopped(reason, side_effects)))
    }

    /// Completes `work` unless the run must stop before that. `side_effects` is what it may have changed by then.
    pub(crate) async fn run_until_stopped<T>(
        &self,
        side_effects: SideEffects,
        work: impl Future<Output = T>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            reason = self.wait() => Err(Failure::stopped(reason, side_effects)),
            result = work => Ok(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn stops_when_lease_expires_without_notification() {
        let (later, now) = (Instant::now() + Duration::from_secs(3_600), Instant::now());
        let (renew, valid_until) = watch::channel(later);
        let (sender, applying) = StopSignal::bound_to_lease(valid_until);
        assert_eq!(applying.reason(), None);
        sender.send_replace(Some(StopReason::Stopped));
        assert_eq!(
            (applying.reason(), applying.wait().await),
            (Some(StopReason::Stopped), StopReason::Stopped)
        );
        let (_other_sender, rolling_back) = applying.with_same_lease();
        assert_eq!(rolling_back.reason(), None, "other operations are not stopped");
        let waiting = tokio::spawn({
            let rolling_back = rolling_back.clone();
            async move { rolling_back.wait().await }
        });
        renew.send_replace(now);
        assert_eq!(
            waiting.await.expect("joined"),
            StopReason::LeaseLost,
            "but they stop when the lease expires"
        );
        assert_eq!(
            (applying.reason(), rolling_back.reason()),
            (Some(StopReason::LeaseLost), Some(StopReason::LeaseLost))
        );
        applying.wait_lease_lost().await;
        let failure = Failure::stopped(StopReason::LeaseLost, SideEffects::None);
        let result = rolling_back.run_until_stopped(SideEffects::None, async { "done" }).await;
        assert_eq!(result, Err(failure), "no new work is started");
        renew.send_replace(later);
        assert_eq!(rolling_back.reason(), None);
        drop((renew, sender));
        assert_eq!(applying.wait().await, StopReason::Stopped);
        applying.wait_lease_lost().await;
    }
}
