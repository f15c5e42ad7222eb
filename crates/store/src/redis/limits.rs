//! How often somebody may ask, on Redis: one key for each endpoint and asker, which ends by itself.

use ade_domain::Moment;

use super::encoding::Foreign;
use super::{RedisCoordination, foreign, keys, step};
use crate::coordination::{Limits, RateCount, Reply};

impl Limits for RedisCoordination {
    fn count(&self, endpoint: String, who: String, most: u32) -> Reply<'_, RateCount> {
        Box::pin(async move {
            let inner = &self.inner;
            let rate = keys::endpoint_rate(&endpoint, &who, inner.layout())?;
            let may_pass = most.to_string();
            let answer = inner.link.call(&inner.scripts.count, &[rate], &[may_pass.as_bytes()]).await?;
            let [now, allowed, remaining, ends] = step::list(&answer).map_err(foreign)? else {
                return Err(foreign(Foreign::new("no answer", format!("{answer:?}"))));
            };
            inner.clock.heard(step::moment(now).map_err(foreign)?);
            let allowed = step::number(allowed).map_err(foreign)? == 1;
            let remaining = u32::try_from(step::number(remaining).map_err(foreign)?).unwrap_or(u32::MAX);
            let ends = step::number(ends).map_err(foreign)? as u64;
            Ok(RateCount { allowed, most, remaining, reset_at: Moment::default().plus_ms(ends) })
        })
    }
}
