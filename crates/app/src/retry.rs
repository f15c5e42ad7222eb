//! Optimistic concurrency: changes are loaded, decided about and committed again after a conflict.

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
