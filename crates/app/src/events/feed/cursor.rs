//! How far one follower has got, and what it may see next.

use std::sync::Arc;

use ade_domain::audience::{Account, Viewer};
use ade_domain::event_filter::EventFilter;
use ade_domain::permission::Scope;
use tokio::sync::watch;

use super::{EventFeed, FeedError, FeedEvent};
use crate::{Caller, Result};

/// Events of one batch, of which few may be for the follower.
const SCAN_SIZE: usize = 256;

/// Who follows, as last authenticated.
#[derive(Debug, Clone)]
pub struct FollowerIdentity {
    viewer: Viewer,
    token_id: Option<String>,
    session_id: Option<String>,
    /// Events up to this number cannot have changed the identity since.
    verified_up_to: u64,
}

impl FollowerIdentity {
    /// A caller who was authenticated after `head` was the last event.
    pub fn new(caller: &Caller, head: u64) -> Result<Self> {
        caller.require_scope(Scope::Read)?;
        Ok(Self {
            viewer: caller.viewer(),
            token_id: caller.audit_actor.token_id.clone(),
            session_id: caller.audit_actor.session_id.clone(),
            verified_up_to: head,
        })
    }

    #[must_use]
    pub const fn viewer(&self) -> &Viewer {
        &self.viewer
    }

    /// Whether an event may have changed what the follower may see.
    fn is_changed_by(&self, event: &FeedEvent) -> bool {
        let Some(account) = &event.account else { return false };
        let is_new = event.number.is_none_or(|number| number > self.verified_up_to);
        is_new
            && match account {
                Account::User(id) => self.viewer.user_id.as_ref().is_some_and(|own| own.as_str() == id),
                Account::Agent(id) => self.viewer.agent_id.as_ref() == Some(id),
                Account::Token(id) => self.token_id.as_ref() == Some(id),
                Account::Session(id) => self.session_id.as_ref() == Some(id),
            }
    }
}

/// The next events of a follower.
#[derive(Debug, Default)]
pub struct CursorBatch {
    pub events: Vec<Arc<FeedEvent>>,
    /// The next event is about the account of the follower: authenticate it again before the next batch.
    pub needs_authentication: bool,
}

#[derive(Debug)]
pub struct EventCursor {
    feed: EventFeed,
    filter: EventFilter,
    /// The number up to which the follower has got.
    after: u64,
    /// Whether it has once reached the end.
    is_live: bool,
    head: watch::Receiver<u64>,
}

impl EventCursor {
    pub(super) fn new(feed: EventFeed, after: u64, filter: EventFilter) -> Self {
        let head = feed.0.head.subscribe();
        Self { feed, filter, after, is_live: false, head }
    }

    /// The number up to which the follower has got.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.after
    }

    #[must_use]
    pub const fn filter(&self) -> &EventFilter {
        &self.filter
    }

    /// Whether all events up to the present end were in batches.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.after >= self.feed.head()
    }

    /// Completes when there are events after the position.
    pub async fn changed(&mut self) {
        let after = self.after;
        // The sender lives as long as the feed.
        let _ = self.head.wait_for(|head| *head > after).await;
    }

    /// At most `limit` events for the follower among the next ones; none of them if none of these is for it, or at the end.
    pub async fn next_batch(
        &mut self,
        identity: &FollowerIdentity,
        limit: usize,
    ) -> Result<CursorBatch, FeedError> {
        let (events, end) = match self.feed.recent(self.after, SCAN_SIZE) {
            Some(page) => page,
            None if self.is_live => return Err(FeedError::TooSlow),
            None => self.feed.history(self.after).await?,
        };
        let mut batch = CursorBatch::default();
        for event in events {
            if identity.is_changed_by(&event) {
                batch.needs_authentication = true;
                return Ok(batch);
            }
            if batch.events.len() == limit {
                return Ok(batch);
            }
            self.after = event.number.unwrap_or(self.after);
            if event.is_for(&identity.viewer, &self.filter) {
                batch.events.push(event);
            }
        }
        self.after = end;
        self.is_live |= self.is_at_end();
        Ok(batch)
    }
}
