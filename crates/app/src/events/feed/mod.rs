//! The feed: new events are read, given their audience and serialized once per process, for any number of followers.
//!
//! A follower near the end is served from memory; one further back reads pages from the database until it gets there. Followers are
//! woken together, at most once per [`PUBLISH_INTERVAL`]. Nobody is sent an event without being in its audience.

mod backward;
mod cursor;
mod message;
mod ring;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ade_domain::audience::{Account, Audience, TaskParticipants, task_of_lock};
use ade_domain::event::Event;
use ade_domain::event_filter::EventFilter;
use ade_domain::people::UserId;
use ade_store::database::Revocation;
use ade_store::{Database, DatabaseError};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::time::{sleep, timeout};

pub use backward::BackwardPage;
pub use cursor::{CursorBatch, EventCursor, FollowerIdentity};
pub use message::{FeedEvent, LockEventMessage};

use crate::Context;
use ring::Ring;

/// Followers are woken at most this often: a hundred commits wake a thousand followers a few times, not a hundred times.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(25);
/// How long a new follower waits for events that were committed before it came.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_BACKOFF: Duration = Duration::from_millis(500);
/// Events that are read at once.
const PAGE_SIZE: u32 = 500;
/// Pages that are read for followers at the same time. They must not keep requests from the database.
const MAX_HISTORY_READS: usize = 4;
/// Events of locks that a follower may be behind.
const LOCK_EVENT_BUFFER: usize = 1_024;

/// Why events cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// Some of the next events have been deleted.
    #[error("events before {oldest} have been deleted because they are old; read the state, then continue after {}", oldest - 1)]
    Expired { oldest: u64 },
    #[error("there is no event {after} yet; the last one is {head}")]
    BeyondEnd { after: u64, head: u64 },
    #[error("the client does not keep up with the events; resume from the last event that it has handled")]
    TooSlow,
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Clones share one feed.
#[derive(Debug, Clone)]
pub struct EventFeed(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    context: Context,
    ring: RwLock<Ring>,
    /// The number of the last event in the ring.
    head: watch::Sender<u64>,
    lock_events: broadcast::Sender<Arc<FeedEvent>>,
    history_reads: Semaphore,
}

/// Events in order, and the number up to which these are all.
type Page = (Vec<Arc<FeedEvent>>, u64);

impl EventFeed {
    /// A feed that begins at the present end. Its loop must be run.
    pub async fn open(context: Context) -> Result<Self, DatabaseError> {
        let end = context.database.audit_head().await?.number;
        Ok(Self::starting_at(context, end))
    }

    /// A feed whose memory begins after an event.
    #[must_use]
    pub fn starting_at(context: Context, end: u64) -> Self {
        Self(Arc::new(Shared {
            context,
            ring: RwLock::new(Ring::starting_at(end)),
            head: watch::Sender::new(end),
            lock_events: broadcast::Sender::new(LOCK_EVENT_BUFFER),
            history_reads: Semaphore::new(MAX_HISTORY_READS),
        }))
    }

    /// Follows the events until it is dropped. Logs the first of several failures.
    pub async fn run(self) {
        let (mut tail, mut is_failing) = (self.0.context.tail.head(), false);
        loop {
            let head = *tail.borrow_and_update();
            match self.read_up_to(head).await {
                Ok(()) => {
                    is_failing = false;
                    sleep(PUBLISH_INTERVAL).await;
                    // The sender lives as long as the context.
                    let _ = tail.changed().await;
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "cannot read new events; retrying");
                    }
                    sleep(RETRY_BACKOFF).await;
                }
            }
        }
    }

    async fn read_up_to(&self, head: u64) -> Result<(), DatabaseError> {
        let mut end = self.head();
        while end < head {
            let events = self.0.context.database.events(end, PAGE_SIZE).await?;
            let (events, next) = up_to(events, head);
            // Before the events count as read: a failure repeats it.
            for (_, event) in &events {
                note_revocation(&self.0.context.database, event).await?;
            }
            let events = self.with_audience(events).await?;
            self.0.ring.write().unwrap_or_else(PoisonError::into_inner).push(events, next);
            self.0.head.send_replace(next);
            end = next;
        }
        Ok(())
    }

    /// The number of the last event that can be read here.
    #[must_use]
    pub fn head(&self) -> u64 {
        *self.0.head.borrow()
    }

    /// Waits until the feed has what is numbered at present, by any server; returns the number of the last event.
    async fn catch_up(&self) -> Result<u64, DatabaseError> {
        let last = self.0.context.database.audit_head().await?.number;
        let mut head = self.0.head.subscribe();
        // If it takes longer, the events follow later. The sender lives as long as the feed.
        let _ = timeout(CATCH_UP_TIMEOUT, head.wait_for(|head| *head >= last)).await;
        Ok(last)
    }

    /// The number up to which events have been deleted.
    pub async fn deleted_up_to(&self) -> Result<u64, DatabaseError> {
        self.0.context.database.deleted_events().await
    }

    /// Follows events after a number, or from now on.
    pub async fn cursor(&self, after: Option<u64>, filter: EventFilter) -> Result<EventCursor, FeedError> {
        let head = self.catch_up().await?;
        let Some(after) = after else { return Ok(EventCursor::new(self.clone(), head, filter)) };
        if after > head {
            return Err(FeedError::BeyondEnd { after, head });
        }
        let deleted = self.deleted_up_to().await?;
        if after < deleted {
            return Err(FeedError::Expired { oldest: deleted + 1 });
        }
        Ok(EventCursor::new(self.clone(), after, filter))
    }

    /// Subscribes to events of locks, best effort: a slow subscriber misses some.
    #[must_use]
    pub fn lock_events(&self) -> broadcast::Receiver<Arc<FeedEvent>> {
        self.0.lock_events.subscribe()
    }

    /// Whether anybody follows events of locks.
    #[must_use]
    pub fn has_lock_followers(&self) -> bool {
        self.0.lock_events.receiver_count() > 0
    }

    /// Sends events of locks to their followers. Every source of them ends here.
    pub async fn publish_lock_events(&self, events: &[LockEventMessage]) -> Result<(), DatabaseError> {
        let tasks = events.iter().filter_map(|event| task_of_lock(&event.lock)).map(str::to_owned);
        let participants = self.participants(tasks.collect()).await?;
        for event in events {
            let task = task_of_lock(&event.lock).and_then(|task| participants.get(task)).cloned();
            let audience = Audience::of_lock(&event.lock, task);
            // Without followers nobody needs it.
            let _ = self.0.lock_events.send(Arc::new(FeedEvent::of_lock(event, audience)));
        }
        Ok(())
    }

    /// A page from memory; `None` if it is no longer there.
    fn recent(&self, after: u64, limit: usize) -> Option<Page> {
        self.0.ring.read().unwrap_or_else(PoisonError::into_inner).after(after, limit)
    }

    /// A page from the database.
    async fn history(&self, after: u64) -> Result<Page, FeedError> {
        // Fails only for a closed semaphore, and this one is never closed.
        let _permit = self.0.history_reads.acquire().await.ok();
        let head = self.head();
        let page = self.0.context.database.event_page(after, PAGE_SIZE).await?;
        if after < page.deleted_up_to {
            return Err(FeedError::Expired { oldest: page.deleted_up_to + 1 });
        }
        let (events, end) = up_to(page.events, head);
        Ok((self.with_audience(events).await?, end.max(after)))
    }

    /// Adds who may see each event, with one read for the tasks of all of them.
    async fn with_audience(&self, events: Vec<(u64, Event)>) -> Result<Vec<Arc<FeedEvent>>, DatabaseError> {
        let tasks: Vec<Option<String>> = events.iter().map(|(_, event)| event.audience_task()).collect();
        let participants = self.participants(tasks.iter().flatten().cloned().collect()).await?;
        let add = |((number, event), task): ((u64, Event), Option<String>)| {
            let task = task.and_then(|task| participants.get(&task)).cloned();
            let audience = Audience::of(&event, task);
            Arc::new(FeedEvent::new(number, event, audience))
        };
        Ok(events.into_iter().zip(tasks).map(add).collect())
    }

    async fn participants(
        &self,
        tasks: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Arc<TaskParticipants>>, DatabaseError> {
        let found = self.0.context.database.task_participants(&tasks).await?;
        Ok(found.into_iter().map(|(task, participants)| (task, Arc::new(participants))).collect())
    }
}

/// Notes who may have lost rights by what another process did.
async fn note_revocation(database: &Database, event: &Event) -> Result<(), DatabaseError> {
    let is_new = event.event.ends_with(":created");
    let revocation = match event.account() {
        Some(Account::User(id)) if !is_new => Revocation::User(UserId::new(&id)),
        Some(Account::Token(id)) if !is_new => Revocation::Token(id),
        // Another agent may have its name by now.
        Some(Account::Agent(agent_id)) if event.event == "agent:deleted" => {
            Revocation::Agent { agent_id, kept_for: None }
        }
        // An agent that was only named before may have got another sponsor when it was registered.
        Some(Account::Agent(agent_id)) => {
            let kept_for = database.agent_sponsor(&agent_id).await?;
            Revocation::Agent { agent_id, kept_for }
        }
        // What is remembered of callers is about tokens.
        _ => return Ok(()),
    };
    database.note_revocation(revocation);
    Ok(())
}

/// Those of a page of events that are not behind the end, and the number up to which these are all. A row that somebody wrote behind
/// the end of the chain does not count.
fn up_to(mut events: Vec<(u64, Event)>, head: u64) -> (Vec<(u64, Event)>, u64) {
    let is_full = events.len() >= PAGE_SIZE as usize;
    events.retain(|(number, _)| *number <= head);
    let last = events.last().filter(|_| is_full).map(|(number, _)| *number);
    let end = last.unwrap_or(head);
    (events, end)
}

#[cfg(test)]
mod tests;
