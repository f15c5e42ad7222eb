//! The sequencer numbers and chains audit entries, in the order of their commits; events have the numbers of their entries. On SQLite
//! they are numbered when they are committed, and it only finds what others inserted.
//!
//! Each process numbers what it has committed itself, as soon as it is committed; a slow poll finds what others have left. Any number
//! of processes may do so: they take turns. Rows that no process with the secret wrote are quarantined and reported; they never hold up
//! the others.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use ade_domain::audit::Trigger;
use ade_store::DatabaseError;
use ade_store::database::{Numbering, QuarantinedEntry};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::outbox::AuditedAction;
use crate::Context;
use crate::alerts::{Alerts, HELD_UP, SUPERSEDED};

/// Commits within this time are numbered together.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// It is an alert if nothing is numbered for longer although entries may wait.
const HELD_UP_AFTER: Duration = Duration::from_secs(30);
const BATCH_SIZE: u32 = 100;
/// Quarantined entries that one report lists.
const MAX_REPORTED: usize = 20;

/// What a batch has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    More,
    /// There may be more, and nothing was numbered: somebody filled the queue with rows that are no entries.
    Nothing,
}

/// Runs until it is dropped.
pub async fn run_sequencer(context: Context) {
    tokio::join!(number_entries(&context), announce(&context));
}

/// Announces what this process has numbered to the others. Numbering does not wait for it; a batch that is numbered meanwhile is
/// announced with the next one.
async fn announce(context: &Context) {
    let mut numbered = context.database.numbered();
    while numbered.changed().await.is_ok() {
        if let Err(error) = context.coordination.announce_events().await {
            tracing::debug!(%error, "cannot announce events; the readers of other processes poll");
        }
    }
}

/// Logs the first of several failures, and the recovery.
async fn number_entries(context: &Context) {
    let (mut stuck_since, mut is_failing, mut has_more) = (None, false, false);
    loop {
        let since = *stuck_since.get_or_insert_with(Instant::now);
        match watched(&context.alerts, since, number_batch(context, has_more)).await {
            Ok(progress) => {
                let was_failing = std::mem::take(&mut is_failing);
                if progress != Progress::Nothing {
                    stuck_since = None;
                    if context.alerts.set_held_up(None) || was_failing {
                        tracing::info!("audit entries are numbered again");
                    }
                }
                if progress != Progress::Done {
                    has_more = true;
                    continue;
                }
            }
            Err(error @ DatabaseError::Superseded(_)) => {
                context.alerts.set_held_up(Some(SUPERSEDED));
                tracing::error!(%error, "this process leaves the numbers of audit entries to the others");
                return pending().await;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "cannot number audit entries; retrying");
                }
            }
        }
        sleep(BATCH_INTERVAL).await;
        // Returns at once if something was committed meanwhile.
        has_more = timeout(POLL_INTERVAL, context.database.log_appended()).await.is_ok();
    }
}

/// Raises an alert if nothing is numbered in time, counted from `since`, when the first batch began that numbered nothing. It waits for it all the same: a batch that
/// waits for a lock keeps its connection.
async fn watched<T>(alerts: &Alerts, since: Instant, batch: impl Future<Output = T>) -> T {
    let mut batch = pin!(batch);
    if let Ok(done) = timeout_at(since + HELD_UP_AFTER, &mut batch).await {
        return done;
    }
    if !alerts.set_held_up(Some(HELD_UP)) {
        tracing::error!("{HELD_UP}");
    }
    batch.await
}

/// `has_more` says so of the last batch, or that something was committed.
async fn number_batch(context: &Context, has_more: bool) -> Result<Progress, DatabaseError> {
    let Context { database, clock, .. } = context;
    if !has_more && !database.needs_numbering().await? {
        return Ok(Progress::Done);
    }
    let numbering = database.number_entries(clock.now(), BATCH_SIZE).await?;
    report(context, &numbering.quarantined).await;
    Ok(match numbering {
        Numbering { has_more: false, quarantined, .. } if quarantined.is_empty() => Progress::Done,
        Numbering { numbered: 0, .. } => Progress::Nothing,
        _ => Progress::More,
    })
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
}
