//! The end of the event log: the number of the last event that can be read, for everything in this process that reads events by number.
//!
//! It is woken by commits of this process, by announcements of others, and from time to time by itself: a lost announcement delays an
//! event and never loses it. It follows the log with one query for all readers.

use std::sync::Arc;
use std::time::Duration;

use ade_store::{Coordination, Database};
use tokio::sync::watch;
use tokio::time::timeout;

/// How late an event is noticed if its announcement was lost.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Clones share one tail.
#[derive(Debug, Clone)]
pub struct EventTail {
    head: watch::Sender<u64>,
}

impl Default for EventTail {
    fn default() -> Self {
        Self { head: watch::Sender::new(0) }
    }
}

impl EventTail {
    /// The number of the last event. It changes when events are numbered, by any process.
    #[must_use]
    pub fn head(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Follows the log until it is dropped. Logs the first of several failures.
    pub async fn run(self, database: Database, coordination: Arc<dyn Coordination>) {
        let (mut own, mut of_others) = (database.numbered(), coordination.event_announcements());
        let mut is_failing = false;
        loop {
            match database.audit_head().await {
                Ok(head) => {
                    is_failing = false;
                    // A row that somebody wrote behind the end of the chain, and that is removed again, does not count.
                    self.head.send_if_modified(|known| std::mem::replace(known, head.number) != head.number);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "cannot follow the events; retrying");
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            let woken = async {
                tokio::select! {
                    // Both senders live as long as their stores, which are held here.
                    _ = own.changed() => {}
                    _ = of_others.changed() => {}
                }
            };
            // Read again in either case.
            let _ = timeout(POLL_INTERVAL, woken).await;
        }
    }
}
