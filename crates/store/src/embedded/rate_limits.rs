//! Rate limits, in this process.

use std::sync::PoisonError;

use ade_keyspace::ade::ids;

use super::EmbeddedCoordination;
use crate::coordination::{AsyncResult, Counting, RateCount, RateLimits};

impl RateLimits for EmbeddedCoordination {
    fn count_request(
        &self,
        endpoint: String,
        user: String,
        limit: u32,
        _counting: Counting,
    ) -> AsyncResult<'_, RateCount> {
        Box::pin(async move {
            let endpoint = ids::Endpoint::new(&endpoint)?;
            ids::UserId::new(&user)?;
            // A mutex of its own: counting neither waits for lock commands nor delays them.
            let mut windows = self.inner.rate_windows.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(windows.count((endpoint, user), limit, self.inner.now()))
        })
    }

    fn return_reserved_requests(&self) -> AsyncResult<'_, ()> {
        // Every request is counted when it comes.
        Box::pin(async { Ok(()) })
    }
}
