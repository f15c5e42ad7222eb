//! Events of locks for followers, from the coordination of this process: best effort, counted per lock so that a gap is visible.

use std::collections::HashMap;
use std::sync::Arc;

use ade_domain::lock::{FencingToken, Holder, LockName};
use ade_store::coordination::{LockEvent, LockEventKind};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::feed::{EventFeed, LockEventMessage};
use crate::Context;

/// Events that are sent together.
const BATCH_SIZE: usize = 256;
/// Locks that are counted; then all counts begin again.
const MAX_COUNTED_LOCKS: usize = 50_000;

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
        event: name,
        at: event.at,
        source: source.to_owned(),
        sequence,
        payload: present.map(|(name, value)| (name.to_owned(), value)).collect::<Map<String, Value>>(),
    })
}

/// Sends the lock events of this process to its followers, until coordination ends.
pub async fn forward_lock_events(context: Context, feed: EventFeed) {
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
        if feed.has_lock_followers()
            && let Err(error) = feed.publish_lock_events(&messages).await
        {
            // Their sequence numbers show that they are missing.
            tracing::debug!(%error, "cannot send lock events to their followers");
        }
    }
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
