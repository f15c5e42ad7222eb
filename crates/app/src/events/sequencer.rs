//! The sequencer numbers and chains audit entries, in the order of their commits; events have the numbers of their entries. On SQLite
//! they are numbered when they are committed, and it only finds what others inserted.
//!
//! Each process numbers what it has committed itself, as soon as it is committed; a slow poll finds what others have left. Any number
//! of processes may do so: they take turns. Rows that no process with the
//! secret wrote are quarantined and reported; they never hold up the others.

use std::time::Duration;

use ade_domain::audit::Trigger;
use ade_store::DatabaseError;
use ade_store::database::QuarantinedEntry;
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout};

use super::outbox::AuditedAction;
use crate::Context;

/// Commits within this time are numbered together.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const BATCH_SIZE: u32 = 100;
/// Quarantined entries that one report lists.
const MAX_REPORTED: usize = 20;

/// Runs until it is dropped. Logs the first of several failures, and the recovery.
pub async fn run_sequencer(context: Context) {
    let (mut is_failing, mut has_committed) = (false, false);
    loop {
        match number_all(&context, has_committed).await {
            Ok(()) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!("audit entries are numbered again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "cannot number audit entries; retrying");
                }
            }
        }
        sleep(BATCH_INTERVAL).await;
        // Returns at once if something was committed meanwhile.
        has_committed = timeout(POLL_INTERVAL, context.database.log_appended()).await.is_ok();
    }
}

async fn number_all(context: &Context, has_committed: bool) -> Result<(), DatabaseError> {
    let Context { database, clock, .. } = context;
    if !has_committed && !database.needs_numbering().await? {
        return Ok(());
    }
    loop {
        let numbering = database.number_entries(clock.now(), BATCH_SIZE).await?;
        if !numbering.quarantined.is_empty() {
            report(context, &numbering.quarantined).await;
        } else if !numbering.has_more {
            // Nothing is left, or another process was faster.
            return Ok(());
        }
    }
}

/// Raises the alarm about rows that somebody wrote into the audit log, or marked: in the log, the metrics, the audit log itself and an event.
async fn report(context: &Context, quarantined: &[QuarantinedEntry]) {
    context.alerts.add_quarantined(quarantined.len());
    let row = |entry: &QuarantinedEntry| json!({ "entry_id": entry.entry_id, "action": entry.action, "reason": entry.reason });
    let rows: Vec<Value> = quarantined.iter().take(MAX_REPORTED).map(row).collect();
    let count = quarantined.len();
    let Some(first) = quarantined.first() else { return };
    tracing::error!(
        count,
        first = first.entry_id,
        reason = first.reason,
        "rows of the audit log were written or marked by somebody else; find out who changed the database"
    );
    let details =
        Map::from_iter([("count".to_owned(), json!(count)), ("rows".to_owned(), Value::from(rows))]);
    let reason = Some("rows of the audit log were written or marked by somebody else");
    let action = AuditedAction { reason, details, ..AuditedAction::new("audit.quarantine", &first.entry_id) };
    let by = context.service("sequencer", Trigger::Job("sequencer".to_owned()));
    let commit = action.commit_as(by, Vec::new(), context.clock.now());
    if let Err(error) = context.database.commit(commit).await {
        tracing::error!(%error, "cannot audit quarantined rows");
    }
}
