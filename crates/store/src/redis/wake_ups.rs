//! Wake-ups for workers and job locks on Redis: lists that workers block on, a sorted set of scheduled wake-ups, and
//! one key per job lock.
//!
//! A blocking command needs a connection of its own. Idle ones are pooled, so waiting again reuses a connection, and
//! the connection is dropped if the waiter goes away. A wait is split into slices to notice a server that hangs and
//! to follow a failover. On a cluster all queues and the schedule share one slot: one command can wait on several
//! queues, and one script moves a wake-up from the schedule to its queue.

use std::time::Duration;

use ade_keyspace::RedisKey;
use ade_keyspace::ade::ids::QueueName;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::encoding::{CorruptValue, to_json};
use super::query::UnixMicros;
use super::{Inner, RedisCoordination, Result, keys};
use crate::coordination::{
    AsyncResult, CoordinationError, MAX_WAIT, MovedWakeUps, ReceivedWakeUp, WakeAt, WakeUp, WakeUpQueue,
    parse_job_id, parse_job_lock, parse_queue, parse_queues,
};

/// Waiters that block at the same time; further ones wait for a free slot.
pub(super) const MAX_BLOCKING_WAITS: usize = 64;
const MAX_WAIT_SLICE: Duration = Duration::from_secs(5);
/// A timeout of zero would block forever.
const MIN_WAIT_SLICE: Duration = Duration::from_millis(1);

/// The JSON of a wake-up in Redis.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    #[serde(rename = "type")]
    queue: String,
    target: String,
}

fn encode_payload(queue: QueueName, about: String) -> Result<String> {
    let payload = Payload { queue: queue.as_written().to_owned(), target: about };
    to_json("a wake-up", &payload)
}

/// A wake-up that was popped from a queue. A payload that ade did not write is passed on unchanged.
fn parse_wake_up(key: &str, text: String, queues: &[(QueueName, RedisKey)]) -> Result<ReceivedWakeUp> {
    let queue = queues.iter().find(|(_, known)| known.as_str() == key);
    let (queue, _) = queue.ok_or_else(|| CorruptValue::new("a known queue", key))?;
    let subject = serde_json::from_str(&text).map_or(text, |payload: Payload| payload.target);
    Ok(ReceivedWakeUp { queue: queue.as_written().to_owned(), subject })
}

/// The time argument of the script: Unix seconds, empty for now, or `cancel`.
fn time_argument(when: WakeAt) -> String {
    match when {
        WakeAt::Now => String::new(),
        WakeAt::At(at) => {
            let ms = at.micros().div_ceil(1000);
            format!("{}.{:03}", ms / 1000, ms % 1000)
        }
        WakeAt::Never => "cancel".to_owned(),
    }
}

impl Inner {
    /// The schedule, then every queue in catalog order: the keys of scripts about wake-ups.
    fn schedule_and_queues(&self) -> Vec<&RedisKey> {
        let queues = self.keys.queues.iter().map(|(_, key)| key);
        std::iter::once(&self.keys.scheduled).chain(queues).collect()
    }

    /// The names of the queues in the same order.
    fn queue_names(&self) -> Vec<&'static str> {
        self.keys.queues.iter().map(|(name, _)| name.as_written()).collect()
    }
}

impl WakeUpQueue for RedisCoordination {
    fn send_wake_ups(&self, wake_ups: Vec<WakeUp>) -> AsyncResult<'_, usize> {
        Box::pin(async move {
            let inner = &self.inner;
            let mut encoded = Vec::with_capacity(wake_ups.len());
            for WakeUp { queue, subject, when } in wake_ups {
                let queue = parse_queue(&queue)?;
                encoded.push((queue.as_written(), time_argument(when), encode_payload(queue, subject)?));
            }
            let mut args = inner.queue_names();
            args.extend(encoded.iter().flat_map(|(queue, when, payload)| [queue, when.as_str(), payload]));
            inner.call(&inner.scripts.enqueue_wake_ups, &inner.schedule_and_queues(), &args).await
        })
    }

    fn receive_wake_up(
        &self,
        queues: Vec<String>,
        max_wait: Duration,
    ) -> AsyncResult<'_, Option<ReceivedWakeUp>> {
        Box::pin(async move {
            let inner = &self.inner;
            let layout = inner.layout();
            let queues: Vec<(QueueName, RedisKey)> =
                parse_queues(&queues)?.into_iter().map(|name| (name, keys::queue(name, layout))).collect();
            let Some((_, first)) = queues.first() else { return Ok(None) };
            let max_wait = max_wait.min(MAX_WAIT);
            let deadline = Instant::now() + max_wait;
            let Ok(slot) = timeout(max_wait, inner.blocking_slots.acquire()).await else { return Ok(None) };
            let _slot = slot.map_err(|error| CoordinationError(error.to_string()))?;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let slice = left.clamp(MIN_WAIT_SLICE, MAX_WAIT_SLICE);
                let mut pop = redis::cmd("BRPOP");
                pop.arg(queues.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>());
                pop.arg(format!("{:.3}", slice.as_secs_f64()));
                let popped = inner.client.query_blocking(first, pop, slice).await?;
                let popped: Option<(String, String)> = redis::from_redis_value(popped)?;
                if let Some((key, text)) = popped {
                    return parse_wake_up(&key, text, &queues).map(Some);
                }
                if left <= slice {
                    return Ok(None);
                }
            }
        })
    }

    fn move_due_wake_ups(&self) -> AsyncResult<'_, MovedWakeUps> {
        Box::pin(async move {
            let inner = &self.inner;
            let (keys, names) = (inner.schedule_and_queues(), inner.queue_names());
            let (UnixMicros(now), count, dropped, next): (_, _, usize, Option<UnixMicros>) =
                inner.call(&inner.scripts.move_due_wake_ups, &keys, &names).await?;
            inner.clock.observe(now);
            if dropped > 0 {
                tracing::warn!(dropped, "dropped scheduled wake-ups of unknown queues");
            }
            let next_in = next.map(|UnixMicros(at)| Duration::from_millis(at.ms_since(now)));
            Ok(MovedWakeUps { count, next_in })
        })
    }

    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let (id, ttl) = parse_job_lock(&job_id, ttl_ms)?;
            let key = keys::job_lock(&id, self.inner.layout());
            let args = [&*holder, &ttl.as_millis().to_string()];
            self.inner.call(&self.inner.scripts.lock_job, &[&key], &args).await
        })
    }

    fn unlock_job(&self, job_id: String, holder: String) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let key = keys::job_lock(&parse_job_id(&job_id)?, self.inner.layout());
            self.inner.call(&self.inner.scripts.unlock_job, &[&key], &[&holder]).await
        })
    }
}
