//! Rate limits on Redis: one counter per endpoint and caller, or per agent, with a TTL.
//!
//! A process counts requests there in blocks and spends them in memory, within the minute in which they were counted. So the limits
//! of all processes together are never exceeded; what a process did not use by the end of the minute, or by its own end, it gives
//! back. Whatever must be exact is counted one by one. Each process counts its own requests as well, so that the limits hold per process while Redis
//! is unavailable.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ade_domain::Moment;
use ade_domain::rate::{RateBlock, UnusedRequests, WINDOW_MS};
use ade_keyspace::RedisKey;
use ade_keyspace::ade::ids;
use futures_util::future::join_all;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::query::UnixMicros;
use super::{Inner, RedisCoordination, keys, locked};
use crate::coordination::{AsyncResult, CoordinationError, Counting, RateCount, RateLimits, Result};

/// Above that, requests are counted one by one.
const MAX_COUNTERS: usize = 100_000;
/// Counters that are checked at once for unused requests and for removal.
const CHECKED_AT_ONCE: usize = 1_000;

/// The counters in which this process has reserved requests.
pub(super) struct RateCounters {
    /// The start of a clock that never runs backwards, whatever Redis says.
    origin: Instant,
    counters: Mutex<CounterTable>,
}

#[derive(Default)]
struct CounterTable {
    by_key: HashMap<RedisKey, Arc<Counter>>,
    /// The same keys, in the order in which they are checked.
    in_order: VecDeque<RedisKey>,
}

#[derive(Default)]
struct Counter {
    block: Mutex<RateBlock>,
    /// How many reservations have ended.
    attempts: AtomicU64,
    /// Locked while one is under way; requests that wait for it use its result.
    reserving: Arc<tokio::sync::Mutex<LastAttempt>>,
}

#[derive(Default)]
struct LastAttempt {
    number: u64,
    /// The result for requests of at least this weight; none if some were granted.
    failed: Option<(u32, Result<RateCount>)>,
}

impl Default for RateCounters {
    fn default() -> Self {
        Self { origin: Instant::now(), counters: Mutex::default() }
    }
}

impl RateCounters {
    fn now(&self) -> Moment {
        Moment::from_micros(u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// None if there are too many.
    fn counter(&self, key: &RedisKey) -> Option<Arc<Counter>> {
        let mut table = locked(&self.counters);
        if let Some(counter) = table.by_key.get(key) {
            return Some(Arc::clone(counter));
        }
        if table.by_key.len() >= MAX_COUNTERS {
            return None;
        }
        let counter = Arc::new(Counter::default());
        table.by_key.insert(key.clone(), Arc::clone(&counter));
        table.in_order.push_back(key.clone());
        Some(counter)
    }

    /// Takes what is left of minutes that are over, and removes counters that are not in use.
    fn take_unused(&self) -> Vec<(RedisKey, UnusedRequests)> {
        let now = self.now();
        let mut table = locked(&self.counters);
        let mut unused = Vec::new();
        for _ in 0..table.in_order.len().min(CHECKED_AT_ONCE) {
            let Some(key) = table.in_order.pop_front() else { break };
            let Some(counter) = table.by_key.get(&key) else { continue };
            let mut block = locked(&counter.block);
            unused.extend(block.take_unused(now).map(|unused| (key.clone(), unused)));
            // A request that is about to reserve has a clone.
            let is_idle = block.is_over(now) && Arc::strong_count(counter) == 1;
            drop(block);
            if is_idle {
                table.by_key.remove(&key);
            } else {
                table.in_order.push_back(key);
            }
        }
        unused
    }
}

impl RateCounters {
    /// Takes everything that was reserved and did not come, also in this minute.
    fn take_all(&self) -> Vec<(RedisKey, UnusedRequests)> {
        let table = locked(&self.counters);
        let left = |(key, counter): (&RedisKey, &Arc<Counter>)| {
            locked(&counter.block).take_all().map(|unused| unused.map(|unused| (key.clone(), unused)))
        };
        table.by_key.iter().flat_map(left).flatten().collect()
    }
}

impl Counter {
    fn spend(&self, weight: u32, limit: u32, now: Moment) -> Option<RateCount> {
        let mut block = locked(&self.block);
        let remaining = block.spend(weight, now)?;
        Some(RateCount { allowed: true, limit, remaining, reset_at: block.ends_at() })
    }
}

/// The reply of Redis.
struct Counted {
    count: RateCount,
    granted: u32,
    /// The start of the minute in which it was counted, and how long it lasts.
    minute: Moment,
    left_ms: u64,
}

impl Inner {
    /// Counts a request of this weight, or of the limit if that is less.
    pub(super) async fn count_rate(
        self: &Arc<Self>,
        key: &RedisKey,
        weight: u32,
        limit: u32,
        counting: Counting,
    ) -> Result<RateCount> {
        let weight = weight.min(limit).max(1);
        let size = match counting {
            Counting::Exact => 1,
            Counting::InBlocks => RateBlock::size(limit),
        };
        let counter = if size > weight { self.rate_counters.counter(key) } else { None };
        let Some(counter) = counter else {
            return Ok(self.count_on_redis(key, weight, weight, limit, None).await?.count);
        };
        if let Some(count) = counter.spend(weight, limit, self.rate_counters.now()) {
            return Ok(count);
        }
        let seen = counter.attempts.load(Ordering::Acquire);
        let last = Arc::clone(&counter.reserving).lock_owned().await;
        let sent_at = self.rate_counters.now();
        if let Some(count) = counter.spend(weight, limit, sent_at) {
            return Ok(count);
        }
        if let Some((failed_weight, failed)) = &last.failed
            && last.number != seen
            && weight >= *failed_weight
        {
            return failed.clone();
        }
        // A task of its own: the rest of the block stays usable, also if the caller gives up.
        let (inner, key) = (Arc::clone(self), key.clone());
        let reserving =
            async move { inner.reserve(&key, &counter, last, sent_at, [weight, size, limit]).await };
        let stopped = |_| Err(CoordinationError("the reservation was stopped".to_owned()));
        tokio::spawn(reserving).await.unwrap_or_else(stopped)
    }

    /// Counts a request of this weight together with others that may follow, up to the size of a block.
    async fn reserve(
        &self,
        key: &RedisKey,
        counter: &Counter,
        mut last: OwnedMutexGuard<LastAttempt>,
        sent_at: Moment,
        [weight, size, limit]: [u32; 3],
    ) -> Result<RateCount> {
        let unused = locked(&counter.block).take_unused(sent_at);
        let counted = self.count_on_redis(key, weight, size, limit, unused).await;
        last.number = counter.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let result = counted.map(|Counted { count, granted, minute, left_ms }| {
            let reserved = granted.saturating_sub(weight);
            // From when the call was sent, the minute lasts at least so long on Redis too.
            locked(&counter.block).add(reserved, minute, sent_at.plus_ms(left_ms));
            RateCount { remaining: count.remaining.saturating_add(reserved), ..count }
        });
        let is_granted = result.as_ref().is_ok_and(|count| count.allowed);
        last.failed = (!is_granted).then(|| (weight, result.clone()));
        result
    }

    async fn count_on_redis(
        &self,
        key: &RedisKey,
        needed: u32,
        wanted: u32,
        limit: u32,
        unused: Option<UnusedRequests>,
    ) -> Result<Counted> {
        let unused_ms = unused.map_or(0, |unused| unused.minute.micros() / 1_000);
        let args = [
            u64::from(needed),
            u64::from(wanted),
            u64::from(limit),
            unused.map_or(0, |unused| u64::from(unused.count)),
            unused_ms,
        ];
        let args = args.map(|arg| arg.to_string());
        let args = args.each_ref().map(String::as_str);
        let (UnixMicros(now), granted, remaining, reset_ms, minute_ms): (_, u32, _, _, u64) =
            self.call(&self.scripts.count_requests, &[key], &args).await?;
        self.clock.observe(now);
        let moment = |ms| Moment::default().plus_ms(ms);
        let count = RateCount { allowed: granted > 0, limit, remaining, reset_at: moment(reset_ms) };
        let minute = moment(minute_ms);
        let left_ms = minute.plus_ms(WINDOW_MS).micros().saturating_sub(now.micros()) / 1_000;
        Ok(Counted { count, granted, minute, left_ms })
    }

    /// Gives back what was reserved in minutes that are over and did not come.
    pub(super) async fn return_unused_requests(&self) {
        self.return_requests(&self.rate_counters.take_unused()).await;
    }

    /// Never repeated: nothing may be given back twice.
    async fn return_requests(&self, unused: &[(RedisKey, UnusedRequests)]) {
        let returns = unused.iter().map(|(key, unused)| self.count_on_redis(key, 0, 0, 0, Some(*unused)));
        if let Some(error) = join_all(returns).await.into_iter().find_map(Result::err) {
            tracing::debug!(%error, "cannot return unused requests to Redis; they count until their minute has passed");
        }
    }
}

impl RateLimits for RedisCoordination {
    fn count_request(
        &self,
        endpoint: String,
        caller: String,
        limit: u32,
        counting: Counting,
    ) -> AsyncResult<'_, RateCount> {
        Box::pin(async move {
            let rate = keys::endpoint_rate(&endpoint, &caller, self.inner.layout())?;
            let key = (ids::Endpoint::new(&endpoint)?, caller);
            let windows = &self.inner.rate_windows;
            let local = locked(windows).count(key.clone(), limit, self.inner.clock.now());
            if !local.allowed {
                return Ok(local);
            }
            match self.inner.count_rate(&rate, 1, limit, counting).await {
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

    fn return_reserved_requests(&self) -> AsyncResult<'_, ()> {
        Box::pin(async move {
            for reserved in self.inner.rate_counters.take_all().chunks(CHECKED_AT_ONCE) {
                self.inner.return_requests(reserved).await;
            }
            Ok(())
        })
    }
}
