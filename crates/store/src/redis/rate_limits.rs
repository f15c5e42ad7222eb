//! Rate limits on Redis: one counter per endpoint and caller, with a TTL. Each process counts its own requests as well, so that
//! the limits hold per process while Redis is unavailable.

use ade_domain::Moment;
use ade_keyspace::ade::ids;

use super::query::UnixMicros;
use super::{RedisCoordination, keys, locked};
use crate::coordination::{AsyncResult, RateCount, RateLimits, Result};

impl RedisCoordination {
    async fn count_on_redis(&self, endpoint: &str, caller: &str, limit: u32) -> Result<RateCount> {
        let inner = &self.inner;
        let rate = keys::endpoint_rate(endpoint, caller, inner.layout())?;
        let args = [&*limit.to_string()];
        let (UnixMicros(now), allowed, remaining, reset_ms) =
            inner.call(&inner.scripts.count_request, &[&rate], &args).await?;
        inner.clock.observe(now);
        Ok(RateCount { allowed, limit, remaining, reset_at: Moment::default().plus_ms(reset_ms) })
    }
}

impl RateLimits for RedisCoordination {
    fn count_request(&self, endpoint: String, caller: String, limit: u32) -> AsyncResult<'_, RateCount> {
        Box::pin(async move {
            let key = (ids::Endpoint::new(&endpoint)?, caller);
            ids::UserId::new(&key.1)?;
            let windows = &self.inner.rate_windows;
            let local = locked(windows).count(key.clone(), limit, self.inner.clock.now());
            if !local.allowed {
                return Ok(local);
            }
            match self.count_on_redis(&endpoint, &key.1, limit).await {
                Ok(shared) => {
                    if !shared.allowed {
                        locked(windows).take_back(&key);
                    }
                    Ok(shared)
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot count a request on Redis; its limit holds for this server only");
                    Ok(local)
                }
            }
        })
    }
}
