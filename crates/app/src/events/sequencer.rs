//! The sequencer numbers and chains audit entries, in the order of their commits; events have the numbers of their entries. On SQLite
//! they are numbered when they are committed, and it only finds what others inserted.
//!
//! Each process numbers what it has committed itself, as soon as it is committed; a slow poll finds what others have left. Any number
//! of processes may do so: they take turns. Rows that no process with the secret wrote are quarantined and reported; they never hold up
//! the others.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use ade_domain::audit::{ChainHead, Trigger};
use ade_store::database::QuarantinedEntry;
use ade_store::{Database, DatabaseError};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::outbox::AuditedAction;
use crate::Context;
use crate::alerts::{Alerts, HELD_UP};

/// Commits within this time are numbered together.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A batch that takes longer, or fails for longer, is an alert.
const HELD_UP_AFTER: Duration = Duration::from_secs(30);
const BATCH_SIZE: u32 = 100;
/// Quarantined entries that one report lists.
const MAX_REPORTED: usize = 20;

/// Runs until it is dropped. Logs the first of several failures, and the recovery.
pub async fn run_sequencer(context: Context) {
    let (mut failing_since, mut has_more) = (None, false);
    loop {
        let since = failing_since.unwrap_or_else(Instant::now);
        match watched(&context.alerts, since, number_batch(&context, has_more)).await {
            Ok(more) => {
                let was_held_up = context.alerts.set_held_up(false);
                if failing_since.take().is_some() || was_held_up {
                    tracing::info!("audit entries are numbered again");
                }
                if more {
                    has_more = true;
                    continue;
                }
            }
            Err(error @ DatabaseError::Superseded(_)) => {
                tracing::error!(%error, "this process leaves the numbers of audit entries to the others");
                return watch_others(&context).await;
            }
            Err(error) => {
                if failing_since.replace(since).is_none() {
                    tracing::error!(%error, "cannot number audit entries; retrying");
                }
            }
        }
        sleep(BATCH_INTERVAL).await;
        // Returns at once if something was committed meanwhile.
        has_more = timeout(POLL_INTERVAL, context.database.log_appended()).await.is_ok();
    }
}

/// Raises an alert if a batch that began, or failed first, at `since` is not done in time. It waits for it all the same: a batch that
/// waits for a lock keeps its connection.
async fn watched<T>(alerts: &Alerts, since: Instant, batch: impl Future<Output = T>) -> T {
    let mut batch = pin!(batch);
    if let Ok(done) = timeout_at(since + HELD_UP_AFTER, &mut batch).await {
        return done;
    }
    if !alerts.set_held_up(true) {
        tracing::error!("{HELD_UP}");
    }
    batch.await
}

/// Raises an alert while the others number nothing.
async fn watch_others(context: &Context) {
    let mut last = None;
    loop {
        compare_heads(&context.alerts, &mut last, waiting_head(&context.database).await);
        sleep(HELD_UP_AFTER).await;
    }
}

/// The others are held up while entries wait behind the head that they waited behind the last time.
fn compare_heads(alerts: &Alerts, last: &mut Option<ChainHead>, head: Option<ChainHead>) {
    let is_held_up = head.is_some() && head == *last;
    if !alerts.set_held_up(is_held_up) && is_held_up {
        tracing::error!("{HELD_UP}");
    }
    *last = head;
}

/// The end of the chain if entries wait for numbers, as far as the database answers. It is read first, so that they come after it.
async fn waiting_head(database: &Database) -> Option<ChainHead> {
    let head = database.audit_head().await.ok()?;
    database.has_unnumbered().await.ok()?.then_some(head)
}

/// Returns whether there may be more. `has_more` says so of the last batch, or that something was committed.
async fn number_batch(context: &Context, has_more: bool) -> Result<bool, DatabaseError> {
    let Context { database, clock, .. } = context;
    if !has_more && !database.needs_numbering().await? {
        return Ok(false);
    }
    let numbering = database.number_entries(clock.now(), BATCH_SIZE).await?;
    report(context, &numbering.quarantined).await;
    Ok(numbering.has_more || !numbering.quarantined.is_empty())
}

/// Raises the alarm about rows that somebody wrote into the audit log, or marked: in the log, the metrics, the audit log itself and an event.
async fn report(context: &Context, quarantined: &[QuarantinedEntry]) {
    let Some(first) = quarantined.first() else { return };
    context.alerts.add_quarantined(quarantined.len());
    let row = |entry: &QuarantinedEntry| json!({ "entry_id": entry.entry_id, "action": entry.action, "reason": entry.reason });
    let rows: Vec<Value> = quarantined.iter().take(MAX_REPORTED).map(row).collect();
    let count = quarantined.len();
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

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_batch_that_is_held_up_is_an_alert() {
        let (alerts, now) = (Alerts::default(), Instant::now());
        watched(&alerts, now, yield_now()).await;
        assert_eq!(alerts.reasons(), [""; 0]);
        let until_alert = async {
            while !alerts.is_held_up() {
                yield_now().await;
            }
        };
        let began = now.checked_sub(HELD_UP_AFTER).expect("the machine has run for longer");
        timeout(HELD_UP_AFTER, watched(&alerts, began, until_alert)).await.expect("an alert");
        assert_eq!(alerts.reasons(), [HELD_UP]);
    }

    #[test]
    fn a_process_that_leaves_numbering_to_others_is_held_up_only_if_they_are() {
        let alerts = Alerts::default();
        let head = |number| Some(ChainHead { number, ..ChainHead::origin() });
        let mut last = None;
        let held_up = [head(1), head(2), head(2), None, head(2)].map(|head| {
            compare_heads(&alerts, &mut last, head);
            alerts.is_held_up()
        });
        assert_eq!(held_up, [false, false, true, false, false]);
    }
}
