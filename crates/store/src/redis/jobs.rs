//! Calls that wake workers, on Redis: lists that they wait at, a sorted set of what is due later, and a key for each lock of a job.
//!
//! Whoever waits has a connection for itself, because a connection that blocks answers nobody else; it is taken from and
//! given back to those of the link, so waiting again costs no new one, and dropped if the waiter goes away. It waits in
//! slices: a server that hangs is noticed, and the primary is followed. On a cluster all queues and the schedule share
//! a slot, which a handful of hints can afford: so one command waits at several queues, and a call moves from the
//! schedule to its queue in one step.

use std::time::Duration;

use ade_keyspace::RedisKey;
use ade_keyspace::ade::ids::QueueName;
use redis::Value;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::encoding::Foreign;
use super::{RedisCoordination, foreign, keys, step};
use crate::coordination::{
    CoordinationError, Job, Jobs, LONGEST_WAIT, Moved, Reply, WakeAt, WakeUp, checked_lock, job_named,
    queue_named, queues_named,
};

/// Waiters with a connection at the same time; further ones wait until one of those is done.
pub(super) const MOST_LISTENERS: usize = 64;
/// The longest that one command blocks.
const SLICE: Duration = Duration::from_secs(5);
/// Redis waits for ever if it is told to wait for nothing.
const SHORTEST_SLICE: Duration = Duration::from_millis(1);

/// A call as it stands in Redis.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    #[serde(rename = "type")]
    queue: String,
    target: String,
}

fn write(queue: QueueName, about: String) -> Result<String, CoordinationError> {
    let call = Written { queue: queue.as_written().to_owned(), target: about };
    serde_json::to_string(&call)
        .map_err(|error| CoordinationError(format!("a call cannot be written down: {error}")))
}

/// A call that was taken from one of the queues; what somebody else put there is told as it stands.
fn read(value: &Value, queues: &[(QueueName, RedisKey)]) -> Result<Option<Job>, Foreign> {
    if *value == Value::Nil {
        return Ok(None);
    }
    let [key, text] = step::list(value)? else {
        return Err(Foreign::new("no call", format!("{value:?}")));
    };
    let (key, text) = (step::text(key)?, step::text(text)?);
    let (queue, _) =
        queues.iter().find(|(_, known)| known.as_str() == key).ok_or_else(|| Foreign::new("a queue", key))?;
    let about = serde_json::from_str(text).map_or_else(|_| text.to_owned(), |call: Written| call.target);
    Ok(Some(Job { queue: queue.as_written().to_owned(), about }))
}

/// When a call is made, as the script reads it: in Unix seconds, at once if there is nothing, or never.
fn spelled(when: WakeAt) -> String {
    match when {
        WakeAt::Now => String::new(),
        WakeAt::At(at) => {
            let ms = at.micros().div_ceil(1000);
            format!("{}.{:03}", ms / 1000, ms % 1000)
        }
        WakeAt::NotAnyMore => "never".to_owned(),
    }
}

impl RedisCoordination {
    /// What is scheduled, then every queue in the order of the catalog.
    fn schedule_and_queues(&self) -> Vec<RedisKey> {
        let inner = &self.inner;
        let queues = QueueName::all().iter().map(|name| keys::queue(*name, inner.layout()));
        std::iter::once(inner.keys.scheduled.clone()).chain(queues).collect()
    }
}

impl Jobs for RedisCoordination {
    fn call(&self, calls: Vec<WakeUp>) -> Reply<'_, usize> {
        Box::pin(async move {
            let inner = &self.inner;
            let mut words = Vec::with_capacity(3 * calls.len());
            for call in calls {
                let queue = queue_named(&call.queue)?;
                words.push(queue.as_written().to_owned());
                words.push(spelled(call.when));
                words.push(write(queue, call.about)?);
            }
            let keys = self.schedule_and_queues();
            let names = QueueName::all();
            let names = names.iter().map(|name| name.as_written().as_bytes());
            let args: Vec<&[u8]> = names.chain(words.iter().map(String::as_bytes)).collect();
            let answer = inner.link.call(&inner.scripts.call, &keys, &args).await?;
            step::number(&answer).map_err(foreign)
        })
    }

    fn woken(&self, queues: Vec<String>, at_most: Duration) -> Reply<'_, Option<Job>> {
        Box::pin(async move {
            let inner = &self.inner;
            let layout = inner.layout();
            let queues: Vec<(QueueName, RedisKey)> =
                queues_named(&queues)?.into_iter().map(|name| (name, keys::queue(name, layout))).collect();
            let Some((_, first)) = queues.first() else { return Ok(None) };
            let at_most = at_most.min(LONGEST_WAIT);
            let deadline = Instant::now() + at_most;
            let Ok(listener) = timeout(at_most, inner.listeners.acquire()).await else { return Ok(None) };
            let _listener = listener.map_err(|error| CoordinationError(error.to_string()))?;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let slice = left.clamp(SHORTEST_SLICE, SLICE);
                let mut pop = redis::cmd("BRPOP");
                for (_, key) in &queues {
                    pop.arg(key.as_str());
                }
                pop.arg(format!("{:.3}", slice.as_secs_f64()));
                let value = step::plain(inner.link.ask_waiting(first, pop, slice).await?);
                let job = read(&value, &queues).map_err(foreign)?;
                if job.is_some() || left <= slice {
                    return Ok(job);
                }
            }
        })
    }

    fn wake_scheduled(&self) -> Reply<'_, Moved> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = self.schedule_and_queues();
            let names = QueueName::all();
            let args: Vec<&[u8]> = names.iter().map(|name| name.as_written().as_bytes()).collect();
            let answer = inner.link.call(&inner.scripts.wake_scheduled, &keys, &args).await?;
            let [now, moved, strays, next] = step::list(&answer).map_err(foreign)? else {
                return Err(foreign(Foreign::new("no answer", format!("{answer:?}"))));
            };
            let now = step::moment(now).map_err(foreign)?;
            inner.clock.heard(now);
            let strays = step::number(strays).map_err(foreign)?;
            if strays > 0 {
                tracing::warn!(strays, "scheduled calls named no queue that is known, and were dropped");
            }
            let next = match next {
                Value::Nil => None,
                next => Some(step::moment(next).map_err(foreign)?),
            };
            let next_in = next.map(|at| Duration::from_millis(at.ms_since(now)));
            Ok(Moved { calls: step::number(moved).map_err(foreign)?, next_in })
        })
    }

    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> Reply<'_, bool> {
        Box::pin(async move {
            let inner = &self.inner;
            let (id, ttl) = checked_lock(&job_id, ttl_ms)?;
            let keys = [keys::job_lock(&id, inner.layout())];
            let ttl = ttl.as_millis().to_string();
            let args = [holder.as_bytes(), ttl.as_bytes()];
            let answer = inner.link.call(&inner.scripts.lock_job, &keys, &args).await?;
            Ok(step::number(&answer).map_err(foreign)? == 1)
        })
    }

    fn unlock_job(&self, job_id: String, holder: String) -> Reply<'_, bool> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = [keys::job_lock(&job_named(&job_id)?, inner.layout())];
            let answer = inner.link.call(&inner.scripts.unlock_job, &keys, &[holder.as_bytes()]).await?;
            Ok(step::number(&answer).map_err(foreign)? == 1)
        })
    }
}
