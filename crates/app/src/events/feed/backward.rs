//! Pages of events, newest first, for people who look at what happened last.

use std::sync::Arc;

use ade_domain::event_filter::EventFilter;
use tokio::time::Instant;

use super::{EventFeed, FeedError, FeedEvent, FollowerIdentity};

/// Numbers that are read at once.
const SCAN_SIZE: usize = 256;

/// Events before a number.
#[derive(Debug)]
pub struct BackwardPage {
    /// The newest first.
    pub events: Vec<Arc<FeedEvent>>,
    /// Where the next page begins: before this number. 0 if nothing older is kept.
    pub before: u64,
}

impl EventFeed {
    /// Waits until the events that are numbered at present can be read; returns the number of the last one.
    pub async fn end(&self) -> Result<u64, FeedError> {
        self.catch_up().await?;
        Ok(self.head())
    }

    /// At most `limit` of the events before a number that are for a viewer, the newest first. Looks for them until a time, and at
    /// least once.
    pub async fn page_before(
        &self,
        before: u64,
        filter: &EventFilter,
        identity: &FollowerIdentity,
        limit: usize,
        scan_until: Instant,
    ) -> Result<BackwardPage, FeedError> {
        let mut deleted = self.deleted_up_to().await?;
        let mut page = BackwardPage { events: Vec::new(), before };
        loop {
            let after = page.before.saturating_sub(1 + SCAN_SIZE as u64).max(deleted);
            let read = match self.recent(after, SCAN_SIZE) {
                Some(read) => Ok(read),
                None => self.history(after).await,
            };
            let (events, _) = match read {
                // Deleted since.
                Err(FeedError::Expired { oldest }) => {
                    deleted = oldest - 1;
                    continue;
                }
                read => read?,
            };
            for event in events.into_iter().rev() {
                let Some(number) = event.number.filter(|number| *number < page.before) else { continue };
                page.before = number;
                if event.is_for(identity.viewer(), filter) {
                    page.events.push(event);
                    if page.events.len() == limit {
                        return Ok(page);
                    }
                }
            }
            page.before = page.before.min(after + 1);
            if page.before <= deleted + 1 {
                page.before = 0;
                return Ok(page);
            }
            if Instant::now() >= scan_until {
                return Ok(page);
            }
        }
    }
}
