//! One run of one attempt: what is carried out, until when, what it says, and the signal that ends it early.

use std::time::Duration;

use tokio::sync::watch;

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

/// The signal that ends a run early.
#[derive(Debug, Clone)]
pub struct Halted(watch::Receiver<Option<Halt>>);

impl Halted {
    /// A signal, and who gives it.
    #[must_use]
    pub fn new() -> (watch::Sender<Option<Halt>>, Self) {
        let (give, halted) = watch::channel(None);
        (give, Self(halted))
    }

    /// Whether the run is to end.
    #[must_use]
    pub fn now(&self) -> Option<Halt> {
        *self.0.borrow()
    }

    /// Waits until the run is to end. If nobody is left who could say so, its worker is gone.
    pub async fn wait(&self) -> Halt {
        let mut halted = self.0.clone();
        let halt = halted.wait_for(Option::is_some).await.map(|halt| *halt);
        halt.ok().flatten().unwrap_or(Halt::Lost)
    }

    /// Waits until the run is to end for this reason, or nobody is left who could say so.
    pub async fn until(&self, halt: Halt) {
        // An error says that nobody is left.
        let _ = self.0.clone().wait_for(|now| *now == Some(halt)).await;
    }

    /// Does something unless the run is to end before that.
    ///
    /// # Errors
    /// The run is to end.
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
