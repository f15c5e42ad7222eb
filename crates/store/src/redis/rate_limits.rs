//! Rate limits on Redis: one counter per endpoint and caller, with a TTL.

use ade_domain::Moment;

use super::query::UnixMicros;
use super::{RedisCoordination, keys};
use crate::coordination::{AsyncResult, RateCount, RateLimits};

impl RateLimits for RedisCoordination {
    fn count_request(&self, endpoint: String, caller: String, limit: u32) -> AsyncResult<'_, RateCount> {
        Box::pin(async move {
            let inner = &self.inner;
            let rate = keys::endpoint_rate(&endpoint, &caller, inner.layout())?;
            let args = [&*limit.to_string()];
            let (UnixMicros(now), allowed, remaining, reset_ms) =
                inner.call(&inner.scripts.count_request, &[&rate], &args).await?;
            inner.clock.observe(now);
            Ok(RateCount { allowed, limit, remaining, reset_at: Moment::default().plus_ms(reset_ms) })
        })
    }
}
