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
use redis::Value;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::encoding::CorruptValue;
use super::{RedisCoordination, keys, reply};
use crate::coordination::{
    CoordinationError, CoordinationFuture, MAX_WAIT, MovedWakeUps, ReceivedWakeUp, WakeAt, WakeUp,
    WakeUpQueue, parse_job_id, parse_job_lock, parse_queue, parse_queues,
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

fn encode_payload(queue: QueueName, about: String) -> Result<String, CoordinationError> {
    let payload = Payload { queue: queue.as_written().to_owned(), target: about };
    serde_json::to_string(&payload)
        .map_err(|error| CoordinationError(format!("cannot serialize a wake-up: {error}")))
}

/// Parses the reply of BRPOP. A payload that ade did not write is passed on unchanged.
fn parse_wake_up(
    value: &Value,
    queues: &[(QueueName, RedisKey)],
) -> Result<Option<ReceivedWakeUp>, CorruptValue> {
    if *value == Value::Nil {
        return Ok(None);
    }
    let [key, text] = reply::array(value)? else {
        return Err(CorruptValue::new("a wake-up", format!("{value:?}")));
    };
    let (key, text) = (reply::text(key)?, reply::text(text)?);
    let (queue, _) = queues
        .iter()
        .find(|(_, known)| known.as_str() == key)
        .ok_or_else(|| CorruptValue::new("a known queue", key))?;
    let about =
        serde_json::from_str(text).map_or_else(|_| text.to_owned(), |payload: Payload| payload.target);
    Ok(Some(ReceivedWakeUp { queue: queue.as_written().to_owned(), subject: about }))
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

impl RedisCoordination {
    /// The schedule, then every queue in catalog order.
    fn schedule_and_queues(&self) -> Vec<RedisKey> {
        let inner = &self.inner;
        let queues = QueueName::all().iter().map(|name| keys::queue(*name, inner.layout()));
        std::iter::once(inner.keys.scheduled.clone()).chain(queues).collect()
    }
}

impl WakeUpQueue for RedisCoordination {
    fn send_wake_ups(&self, calls: Vec<WakeUp>) -> CoordinationFuture<'_, usize> {
        Box::pin(async move {
            let inner = &self.inner;
            let mut wake_ups = Vec::with_capacity(3 * calls.len());
            for call in calls {
                let queue = parse_queue(&call.queue)?;
                wake_ups.push(queue.as_written().to_owned());
                wake_ups.push(time_argument(call.when));
                wake_ups.push(encode_payload(queue, call.subject)?);
            }
            let keys = self.schedule_and_queues();
            let names = QueueName::all();
            let names = names.iter().map(|name| name.as_written().as_bytes());
            let args: Vec<&[u8]> = names.chain(wake_ups.iter().map(String::as_bytes)).collect();
            let value = inner.client.call(&inner.scripts.enqueue_wake_ups, &keys, &args).await?;
            Ok(reply::number(&value)?)
        })
    }

    fn receive_wake_up(
        &self,
        queues: Vec<String>,
        at_most: Duration,
    ) -> CoordinationFuture<'_, Option<ReceivedWakeUp>> {
        Box::pin(async move {
            let inner = &self.inner;
            let layout = inner.layout();
            let queues: Vec<(QueueName, RedisKey)> =
                parse_queues(&queues)?.into_iter().map(|name| (name, keys::queue(name, layout))).collect();
            let Some((_, first)) = queues.first() else { return Ok(None) };
            let at_most = at_most.min(MAX_WAIT);
            let deadline = Instant::now() + at_most;
            let Ok(slot) = timeout(at_most, inner.blocking_slots.acquire()).await else { return Ok(None) };
            let _slot = slot.map_err(|error| CoordinationError(error.to_string()))?;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let slice = left.clamp(MIN_WAIT_SLICE, MAX_WAIT_SLICE);
                let mut pop = redis::cmd("BRPOP");
                for (_, key) in &queues {
                    pop.arg(key.as_str());
                }
                pop.arg(format!("{:.3}", slice.as_secs_f64()));
                let value = reply::flatten(inner.client.query_blocking(first, pop, slice).await?);
                let job = parse_wake_up(&value, &queues)?;
                if job.is_some() || left <= slice {
                    return Ok(job);
                }
            }
        })
    }

    fn move_due_wake_ups(&self) -> CoordinationFuture<'_, MovedWakeUps> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = self.schedule_and_queues();
            let names = QueueName::all();
            let args: Vec<&[u8]> = names.iter().map(|name| name.as_written().as_bytes()).collect();
            let value = inner.client.call(&inner.scripts.move_due_wake_ups, &keys, &args).await?;
            let [now, moved, dropped, next] = reply::array(&value)? else {
                return Err(CorruptValue::new("moved wake-ups", format!("{value:?}")).into());
            };
            let now = reply::moment(now)?;
            inner.clock.observe(now);
            let dropped = reply::number(dropped)?;
            if dropped > 0 {
                tracing::warn!(dropped, "dropped scheduled wake-ups of unknown queues");
            }
            let next = match next {
                Value::Nil => None,
                next => Some(reply::moment(next)?),
            };
            let next_in = next.map(|at| Duration::from_millis(at.ms_since(now)));
            Ok(MovedWakeUps { count: reply::number(moved)?, next_in })
        })
    }

    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> CoordinationFuture<'_, bool> {
        Box::pin(async move {
            let inner = &self.inner;
            let (id, ttl) = parse_job_lock(&job_id, ttl_ms)?;
            let keys = [keys::job_lock(&id, inner.layout())];
            let ttl = ttl.as_millis().to_string();
            let args = [holder.as_bytes(), ttl.as_bytes()];
            let value = inner.client.call(&inner.scripts.lock_job, &keys, &args).await?;
            Ok(reply::number(&value)? == 1)
        })
    }

    fn unlock_job(&self, job_id: String, holder: String) -> CoordinationFuture<'_, bool> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = [keys::job_lock(&parse_job_id(&job_id)?, inner.layout())];
            let value = inner.client.call(&inner.scripts.unlock_job, &keys, &[holder.as_bytes()]).await?;
            Ok(reply::number(&value)? == 1)
        })
    }
}
