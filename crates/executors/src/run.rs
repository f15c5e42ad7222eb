//! One run of one attempt: what is carried out, until when, what it says, and the signal that ends it early.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::{Output, Parameters};

/// Why a run is to end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// It takes longer than it may.
    TimedOut,
    /// An administrator wants it to end.
    Stopped,
    /// Its lease or its locks are gone: somebody else may be at it.
    Lost,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Which task.
    pub task_id: String,
    /// Which attempt of it: the one whose effects are meant.
    pub attempt: u64,
    /// What is to be done.
    pub parameters: Parameters,
    /// The fingerprint of the preview that was approved.
    pub approved: Option<String>,
    /// The locks that are held for it, with their tokens.
    pub tokens: Vec<(String, u64)>,
    /// What it says.
    pub output: Output,
    /// When it is to end.
    pub halted: Halted,
}

/// The signal that ends a run early. It knows until when the run holds what it needs: whoever was stopped for longer than that
/// finds out as soon as it goes on, before anybody could tell it.
#[derive(Debug, Clone)]
pub struct Halted {
    told: watch::Receiver<Option<Halt>>,
    good_until: Option<watch::Receiver<Instant>>,
}

impl Halted {
    /// A signal, and who gives it.
    #[must_use]
    pub fn new() -> (watch::Sender<Option<Halt>>, Self) {
        let (give, told) = watch::channel(None);
        (give, Self { told, good_until: None })
    }

    /// The same for a run whose lease and locks are good until a moment, which moves on while they are renewed.
    #[must_use]
    pub fn within(good_until: watch::Receiver<Instant>) -> (watch::Sender<Option<Halt>>, Self) {
        let (give, told) = watch::channel(None);
        (give, Self { told, good_until: Some(good_until) })
    }

    /// Another signal for something else that is done under the same lease and locks.
    #[must_use]
    pub fn another(&self) -> (watch::Sender<Option<Halt>>, Self) {
        let (give, told) = watch::channel(None);
        (give, Self { told, good_until: self.good_until.clone() })
    }

    /// Whether the run is to end.
    #[must_use]
    pub fn now(&self) -> Option<Halt> {
        let is_over = self.good_until.as_ref().is_some_and(|until| *until.borrow() <= Instant::now());
        if is_over { Some(Halt::Lost) } else { *self.told.borrow() }
    }

    /// Waits until the run is to end. If nobody is left who could say so, its worker is gone.
    pub async fn wait(&self) -> Halt {
        let mut told = self.told.clone();
        tokio::select! {
            biased;
            () = self.is_over() => Halt::Lost,
            halt = told.wait_for(Option::is_some) => halt.ok().and_then(|halt| *halt).unwrap_or(Halt::Lost),
        }
    }

    /// Waits until lease or locks are lost, or nobody is left who could say so.
    pub async fn lost(&self) {
        let mut told = self.told.clone();
        tokio::select! {
            biased;
            () = self.is_over() => {}
            // An error says that nobody is left.
            _ = told.wait_for(|now| *now == Some(Halt::Lost)) => {}
        }
    }

    /// Waits until lease or locks are not good any more by our own clock.
    async fn is_over(&self) {
        let Some(mut good_until) = self.good_until.clone() else { return std::future::pending().await };
        loop {
            let until = *good_until.borrow_and_update();
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                changed = good_until.changed() => {
                    if changed.is_err() {
                        // Nobody renews them any more.
                        return sleep_until(until).await;
                    }
                }
            }
        }
    }

    /// Until when lease and locks are good, if they end at all.
    pub(crate) fn good_until(&self) -> Option<watch::Receiver<Instant>> {
        self.good_until.clone()
    }

    /// Does something unless the run is to end before that.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, Halt> {
        tokio::select! {
            biased;
            halt = self.wait() => Err(halt),
            done = work => Ok(done),
        }
    }
}

impl Halt {
    /// For people.
    #[must_use]
    pub fn message(self, after: Option<Duration>) -> String {
        match (self, after) {
            (Self::TimedOut, Some(after)) => format!("it took longer than {} s", after.as_secs()),
            (Self::TimedOut, None) => "it took longer than it may".to_owned(),
            (Self::Stopped, _) => "an administrator stopped it".to_owned(),
            (Self::Lost, _) => "its lease or its locks were lost".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_run_ends_with_what_it_holds_whether_it_is_told_or_not() {
        let (far, over) = (Instant::now() + Duration::from_secs(3_600), Instant::now());
        let (renew, good_until) = watch::channel(far);
        let (halt, halted) = Halted::within(good_until);
        assert_eq!(halted.now(), None);
        halt.send_replace(Some(Halt::Stopped));
        assert_eq!((halted.now(), halted.wait().await), (Some(Halt::Stopped), Halt::Stopped));
        let (_other, undoing) = halted.another();
        assert_eq!(undoing.now(), None, "what else is done is not stopped by that");
        let waiting = tokio::spawn({
            let undoing = undoing.clone();
            async move { undoing.wait().await }
        });
        renew.send_replace(over);
        assert_eq!(waiting.await.expect("ends"), Halt::Lost, "but ends with the lease");
        assert_eq!((halted.now(), undoing.now()), (Some(Halt::Lost), Some(Halt::Lost)));
        halted.lost().await;
        assert_eq!(undoing.or(async { "done" }).await, Err(Halt::Lost), "nothing is begun any more");
        renew.send_replace(far);
        assert_eq!(undoing.now(), None);
        drop((renew, halt));
        assert_eq!(halted.wait().await, Halt::Stopped);
        halted.lost().await;
    }
}
