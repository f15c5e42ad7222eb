//! How fast a server is read, so that its other clients do not notice.
//!
//! After each request the scan pauses, in proportion to the time that the server took. A busy server takes longer and is thus
//! left alone for longer. Batches are small, because a server serves nobody else while it processes one.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The limits of a scan, for each server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Percentage of time in which a request is under way: 1 to 100.
    pub share: u32,
    /// Maximum number of commands in a second.
    pub max_ops: Option<u64>,
}

/// Keys in a batch of a scan that pauses.
const POLITE_BATCH: usize = 40;
/// Keys in a batch of a scan without pauses.
const FULL_BATCH: usize = 1000;
/// Timers are no more precise than this; shorter pauses are added up.
const MIN_PAUSE: Duration = Duration::from_millis(2);

impl Pace {
    /// Leaves most of the time to others.
    pub const POLITE: Self = Self { share: 10, max_ops: None };
    /// As fast as the server replies.
    pub const FULL: Self = Self { share: 100, max_ops: None };

    /// Whether there are no pauses.
    #[must_use]
    pub fn is_full(self) -> bool {
        self.share >= 100 && self.max_ops.is_none()
    }

    /// Keys to read at once.
    #[must_use]
    pub fn batch(self) -> usize {
        if self.is_full() { FULL_BATCH } else { POLITE_BATCH }
    }
}

/// Keeps the pace of one server.
#[derive(Debug)]
pub(crate) struct Pacer {
    pace: Pace,
    owed: Duration,
}

impl Pacer {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, owed: Duration::ZERO }
    }

    /// Pauses after `commands` that took `busy`.
    pub(crate) async fn pause(&mut self, commands: usize, busy: Duration) {
        let share = self.pace.share.clamp(1, 100);
        let for_share = busy * (100 - share) / share;
        let for_rate = self.pace.max_ops.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(commands as f64 / rate.max(1) as f64).saturating_sub(busy)
        });
        self.owed += for_share.max(for_rate);
        if self.owed >= MIN_PAUSE {
            let started = Instant::now();
            sleep(self.owed).await;
            self.owed = self.owed.saturating_sub(started.elapsed());
        }
    }
}
