//! Optimistic concurrency: changes are loaded, decided about and committed again after a conflict. Also the log of failures of
//! loops, which try again.

use std::fmt::Display;

use crate::{Error, Result};

pub(crate) const MAX_ATTEMPTS: usize = 10;

/// Runs a change until its commit succeeds. An attempt that returns `None` was in conflict with another change.
pub(crate) async fn retry_on_conflict<T, F>(mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    for _ in 0..MAX_ATTEMPTS {
        // Boxed: these futures are large, and callers nest them.
        if let Some(committed) = Box::pin(attempt()).await? {
            return Ok(committed);
        }
    }
    Err(Error::Conflict)
}

/// Logs the first of several failures of something that is repeated.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    is_failing: bool,
}

impl FailureLog {
    /// The value; `None` after a failure.
    pub(crate) fn check<T, E: Display>(&mut self, result: Result<T, E>, failure: &str) -> Option<T> {
        match result {
            Ok(value) => {
                self.is_failing = false;
                Some(value)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, "{failure}; retrying");
                }
                None
            }
        }
    }
}
