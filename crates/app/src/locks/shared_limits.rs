//! The lock settings that all processes share: leases, heartbeats and the detection of deadlocks. Each process keeps a copy, so
//! that locks are granted while the database is unavailable, and reads it again whenever the settings change.

use std::convert::Infallible;
use std::time::Duration;

use ade_domain::lock::LockLimits;
use ade_store::{Database, DatabaseError};
use tokio::time::{MissedTickBehavior, interval};

use super::LockService;
use crate::Settings;

/// A change by another process is noticed after this time.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

impl LockService {
    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> LockLimits {
        self.limits.borrow().clone()
    }

    /// Reads the settings, and applies them from the next request on.
    pub async fn reload_limits(&self, database: &Database) -> Result<(), DatabaseError> {
        let limits = Settings::load(database).await?.lock_limits(self.coordination.limits());
        self.coordination.set_deadlock_detection(limits.deadlock_detection);
        self.limits.send_replace(limits);
        Ok(())
    }
}

/// Keeps the limits up to date with the changes of other processes.
pub(super) async fn follow_settings(locks: LockService, database: Database) -> Infallible {
    let mut tick = interval(RELOAD_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    loop {
        tick.tick().await;
        let reloaded = async {
            let version = Some(database.rules_version().await?);
            if version != known {
                locks.reload_limits(&database).await?;
                known = version;
            }
            Ok::<(), DatabaseError>(())
        };
        if let Err(error) = reloaded.await {
            tracing::debug!(%error, "cannot read the settings of locks; the last ones stay in force");
        }
    }
}
