//! Events of locks for followers, from the coordination of this process: best effort, counted per lock so that a gap is visible. Several
//! servers on one Redis share them through the stream of locks.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::lock::{FencingToken, Holder, LockName};
use ade_store::coordination::{LockEvent, LockEventKind};
use ade_store::redis::projections::{EventTopic, RedisProjections, StreamEntry};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use super::feed::{EventFeed, LockEventMessage};
use crate::Context;

/// Events that are sent together.
const BATCH_SIZE: usize = 256;
/// Locks that are counted; then all counts begin again.
const MAX_COUNTED_LOCKS: usize = 50_000;
/// How long one read of the stream waits.
const STREAM_WAIT: Duration = Duration::from_secs(5);
const RETRY_BACKOFF: Duration = Duration::from_millis(500);

/// Counts the events of each lock.
#[derive(Debug, Default)]
struct Sequences {
    /// How often some events were missed.
    gaps: u64,
    /// The last sequence number of a lock, and the gaps that it includes.
    by_lock: HashMap<LockName, (u64, u64)>,
}

impl Sequences {
    /// Any lock may be among those whose events were missed.
    const fn add_gap(&mut self) {
        self.gaps += 1;
    }

    fn next(&mut self, lock: &LockName) -> u64 {
        if self.by_lock.len() >= MAX_COUNTED_LOCKS && !self.by_lock.contains_key(lock) {
            self.by_lock.clear();
        }
        let gaps = self.gaps;
        let (sequence, included) = self.by_lock.entry(lock.clone()).or_insert((0, gaps));
        *sequence += 1 + u64::from(*included != gaps);
        *included = gaps;
        *sequence
    }
}

/// The event as it is sent; `None` for a full queue, which is reported by an event in the database.
fn message(event: &LockEvent, source: &str, sequence: u64) -> Option<LockEventMessage> {
    let (name, holder, token, reason): (_, &Holder, Option<&FencingToken>, _) = match &event.kind {
        LockEventKind::QueueFull => return None,
        LockEventKind::Acquired(holder, token) => ("lock:acquired", holder, Some(token), None),
        LockEventKind::Promoted(holder, token) => ("lock:promoted", holder, Some(token), None),
        LockEventKind::Queued(holder) => ("lock:queued", holder, None, None),
        LockEventKind::WaitEnded(holder, reason) => ("lock:wait_ended", holder, None, Some(*reason)),
        LockEventKind::Released(holder, token, "expired") => ("lock:expired", holder, Some(token), None),
        LockEventKind::Released(holder, token, reason) => {
            ("lock:released", holder, Some(token), Some(*reason))
        }
    };
    let fields = [
        ("lock_id", json!(event.lock.as_str())),
        ("agent_id", json!(holder.agent_id())),
        ("holder_id", json!(holder.holder_id())),
        ("fencing_token", json!(token.map(|token| token.number()))),
        ("reason", json!(reason)),
    ];
    let present = fields.into_iter().filter(|(_, value)| !value.is_null());
    Some(LockEventMessage {
        lock: event.lock.clone(),
        event: name.into(),
        at: event.at,
        source: source.to_owned(),
        sequence,
        payload: present.map(|(name, value)| (name.to_owned(), value)).collect::<Map<String, Value>>(),
    })
}

/// Where the lock events of this process go.
#[derive(Debug)]
pub enum LockEventTarget {
    /// To the followers at this process: there is no other one, or none that shares a stream.
    Feed(EventFeed),
    /// To the stream of locks, which every server reads.
    Stream(RedisProjections),
}

impl LockEventTarget {
    async fn send(&self, messages: &[LockEventMessage]) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self {
            Self::Feed(feed) if feed.has_lock_followers() => Ok(feed.publish_lock_events(messages).await?),
            Self::Feed(_) => Ok(()),
            Self::Stream(stream) => {
                let entry = |message: &LockEventMessage| StreamEntry {
                    number: None,
                    event: message.event.to_string(),
                    at: message.at,
                    payload: Value::Object(message.payload.clone()).to_string(),
                    source: message.source.clone(),
                    sequence: Some(message.sequence),
                };
                let entries: Vec<StreamEntry> = messages.iter().map(entry).collect();
                Ok(stream.append(EventTopic::Lock, &entries).await?)
            }
        }
    }
}

/// Sends the lock events of this process on, until coordination ends. Events that arrive while some are sent go together.
pub async fn forward_lock_events(context: Context, target: LockEventTarget) {
    let mut events = context.coordination.subscribe_events();
    let (mut sequences, source) = (Sequences::default(), context.instance.clone());
    loop {
        let mut received: Vec<Arc<LockEvent>> = Vec::new();
        match events.recv().await {
            Ok(event) => received.push(event),
            Err(RecvError::Lagged(_)) => sequences.add_gap(),
            Err(RecvError::Closed) => return,
        }
        while received.len() < BATCH_SIZE
            && let Ok(event) = events.try_recv()
        {
            received.push(event);
        }
        let counted =
            received.iter().filter_map(|event| message(event, &source, sequences.next(&event.lock)));
        let messages: Vec<LockEventMessage> = counted.collect();
        if messages.is_empty() {
            continue;
        }
        if let Err(error) = target.send(&messages).await {
            // Their sequence numbers show that they are missing.
            tracing::debug!(%error, "cannot send lock events on");
        }
    }
}

/// Brings the lock events of all processes from the stream to the followers at this one, until it is dropped.
pub async fn follow_lock_stream(stream: RedisProjections, feed: EventFeed) {
    let mut last = None;
    loop {
        let read = async {
            let after = match &last {
                Some(after) => String::clone(after),
                None => stream.last_entry(EventTopic::Lock).await?,
            };
            stream.entries(EventTopic::Lock, &after, STREAM_WAIT).await
        };
        match read.await {
            Ok((read_to, entries)) => {
                last = Some(read_to);
                let messages: Vec<LockEventMessage> =
                    entries.into_iter().filter_map(message_of_entry).collect();
                if feed.has_lock_followers()
                    && !messages.is_empty()
                    && let Err(error) = feed.publish_lock_events(&messages).await
                {
                    tracing::debug!(%error, "cannot send lock events to their followers");
                }
            }
            Err(error) => {
                // What is missed shows in the sequence numbers.
                tracing::debug!(%error, "cannot read the stream of locks; retrying");
                last = None;
                sleep(RETRY_BACKOFF).await;
            }
        }
    }
}

/// An entry of the stream of locks; `None` for one that the database has, and for one that ade did not write.
fn message_of_entry(entry: StreamEntry) -> Option<LockEventMessage> {
    if entry.number.is_some() {
        return None;
    }
    let payload: Map<String, Value> = serde_json::from_str(&entry.payload).ok()?;
    let lock = payload.get("lock_id").and_then(Value::as_str)?.parse().ok()?;
    let StreamEntry { event, at, source, sequence, .. } = entry;
    Some(LockEventMessage { lock, event: event.into(), at, source, sequence: sequence?, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_visible_for_every_lock_once() {
        let (mut sequences, locks) = (Sequences::default(), ["task:a", "task:b"]);
        let [a, b]: [LockName; 2] = locks.map(|name| name.parse().expect("a name"));
        assert_eq!([sequences.next(&a), sequences.next(&a), sequences.next(&b)], [1, 2, 1]);
        sequences.add_gap();
        assert_eq!([sequences.next(&a), sequences.next(&a)], [4, 5]);
        assert_eq!([sequences.next(&b), sequences.next(&b)], [3, 4]);
    }
}
