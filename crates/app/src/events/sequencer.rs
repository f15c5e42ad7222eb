//! The sequencer numbers and chains audit entries and events, in the order of their commits.
//!
//! Each process numbers what it has committed itself, as soon as it is committed; a slow poll finds what others have left. Any number
//! of processes may do so: the row of the sequencer lease is locked while one of them assigns numbers.

use std::time::Duration;

use ade_store::DatabaseError;
use tokio::time::{sleep, timeout};

use crate::Context;

/// Commits within this time are numbered together.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The lease ends with each batch, so that no process has to wait for another one to number its commits.
const LEASE_MS: u64 = 0;
/// Of entries, and of events.
const BATCH_SIZE: u32 = 100;

/// Runs until it is dropped. Logs the first of several failures, and the recovery.
pub async fn run_sequencer(context: Context, holder: String) {
    let mut is_failing = false;
    loop {
        match number_all(&context, &holder).await {
            Ok(()) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!("audit entries and events are numbered again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "cannot number audit entries and events; retrying");
                }
            }
        }
        sleep(BATCH_INTERVAL).await;
        // Returns at once if something was committed meanwhile.
        let _ = timeout(POLL_INTERVAL, context.database.log_appended()).await;
    }
}

async fn number_all(Context { database, clock, .. }: &Context, holder: &str) -> Result<(), DatabaseError> {
    while database.has_unnumbered().await? {
        if database.assign_numbers(holder, clock.now(), LEASE_MS, BATCH_SIZE).await? == 0 {
            // Another process was faster.
            return Ok(());
        }
    }
    Ok(())
}
