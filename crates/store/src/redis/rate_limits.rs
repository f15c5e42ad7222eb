//! Rate limits on Redis: one counter per endpoint and caller, with a TTL.

use ade_domain::Moment;

use super::encoding::CorruptValue;
use super::{RedisCoordination, keys, reply};
use crate::coordination::{CoordinationFuture, RateCount, RateLimits};

impl RateLimits for RedisCoordination {
    fn count_request(
        &self,
        endpoint: String,
        caller: String,
        limit: u32,
    ) -> CoordinationFuture<'_, RateCount> {
        Box::pin(async move {
            let inner = &self.inner;
            let rate = keys::endpoint_rate(&endpoint, &caller, inner.layout())?;
            let limit_text = limit.to_string();
            let value =
                inner.client.call(&inner.scripts.count_request, &[rate], &[limit_text.as_bytes()]).await?;
            let [now, allowed, remaining, reset_ms] = reply::array(&value)? else {
                return Err(CorruptValue::new("a rate limit", format!("{value:?}")).into());
            };
            inner.clock.observe(reply::moment(now)?);
            let allowed = reply::number(allowed)? == 1;
            let remaining = u32::try_from(reply::number(remaining)?).unwrap_or(u32::MAX);
            let reset_ms = reply::number(reset_ms)? as u64;
            Ok(RateCount { allowed, limit, remaining, reset_at: Moment::default().plus_ms(reset_ms) })
        })
    }
}
