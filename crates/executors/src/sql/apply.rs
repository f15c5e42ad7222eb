//! Applies and rolls back, each in one transaction with a marker, and finds out by the marker how a transaction ended.
//!
//! A failure reports that nothing was changed only if COMMIT was not sent, or if the attempt was abandoned by its marker.

use std::time::Duration;

use super::SqlExecutor;
use super::attempt_marker::{AttemptTransaction, MarkerKind, MarkerState};
use super::connection::{LOCK_TIMEOUT, SqlConnection};
use crate::{AttemptOutcome, Failure, Result, Run, SideEffects};

/// The waits between attempts to find out how a COMMIT ended whose response was lost.
const RETRY_BACKOFF_MS: [u64; 12] = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000, 5_000];
/// How many attempts are made even if the run must stop: about three seconds.
const MIN_ATTEMPTS: usize = 7;
const ABANDON_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn row_count(count: u64) -> String {
    format!("{count} row{}", if count == 1 { "" } else { "s" })
}

impl SqlExecutor {
    pub(super) async fn apply_statements(&self, run: &Run) -> Result<()> {
        let statements = self.parse(&run.parameters)?.forward;
        let preparing = self.prepare(run, &statements);
        let Some(connection) = run.stop.run_until_stopped(SideEffects::None, preparing).await?? else {
            write_line(run, "this attempt is already applied; nothing was repeated");
            return Ok(());
        };
        run.stop.check(SideEffects::None)?;
        // From here on it is too late to stop, because a COMMIT that was sent cannot be taken back.
        match connection.commit().await {
            Ok(()) => Ok(()),
            Err(error) => self.resolve_lost_commit(run, error).await,
        }
    }

    /// Does everything up to COMMIT. None if the marker shows that the attempt was committed before.
    async fn prepare(&self, run: &Run, statements: &[String]) -> Result<Option<SqlConnection>> {
        let mut transaction =
            AttemptTransaction::begin(&self.target, &self.keys, &run.task_id, run.attempt).await?;
        if !transaction.insert_marker(MarkerState::Applied).await? {
            return match transaction.marker(MarkerKind::Apply).await? {
                Some(MarkerState::Applied) => Ok(None),
                _ => Err(Failure::permanent("this attempt was abandoned by the recovery of its lost worker")),
            };
        }
        run_statements(&mut transaction, run, statements).await?;
        transaction.check_marker(MarkerState::Applied).await?;
        Ok(Some(transaction.connection))
    }

    /// Asks on new connections until it is known how the COMMIT ended.
    async fn resolve_lost_commit(&self, run: &Run, commit_error: Failure) -> Result<()> {
        let mut last_error = String::new();
        for (attempts, backoff) in RETRY_BACKOFF_MS.into_iter().enumerate() {
            match self.abandon_attempt(&run.task_id, run.attempt).await {
                Ok(AttemptOutcome::Applied | AttemptOutcome::PartiallyApplied) => {
                    let line = "the response to COMMIT was lost, but the marker of this attempt shows that it was applied";
                    write_line(run, line);
                    return Ok(());
                }
                Ok(AttemptOutcome::NotApplied) => {
                    let message = format!("nothing was committed: {commit_error}");
                    return Err(Failure { message, ..commit_error });
                }
                Err(error) => last_error = error.message,
            }
            if !back_off(run, attempts, backoff).await {
                break;
            }
        }
        let message = format!(
            "the response to COMMIT was lost ({commit_error}), and its outcome could not be determined ({last_error})"
        );
        let stop_reason = run.stop.reason();
        Err(Failure { stop_reason, ..Failure::with_side_effects(SideEffects::Unknown, message) })
    }

    /// Marks an attempt as abandoned, unless its marker already shows how it ended. Waits a short time for an open transaction of
    /// that attempt.
    pub(super) async fn abandon_attempt(&self, task_id: &str, attempt: u64) -> Result<AttemptOutcome> {
        let seconds = ABANDON_TIMEOUT.as_secs();
        let timed_out =
            |_| Err(Failure::retryable(format!("the database did not answer within {seconds} s")));
        // Cancelling is safe, because the operation can be repeated.
        let abandon = self.insert_abandoned_marker(task_id, attempt);
        tokio::time::timeout(ABANDON_TIMEOUT, abandon).await.unwrap_or_else(timed_out)
    }

    async fn insert_abandoned_marker(&self, task_id: &str, attempt: u64) -> Result<AttemptOutcome> {
        let mut transaction = AttemptTransaction::begin(&self.target, &self.keys, task_id, attempt).await?;
        transaction.connection.set_timeouts(None, LOCK_TIMEOUT).await?;
        transaction.insert_marker(MarkerState::Abandoned).await?;
        let outcome = match transaction.marker(MarkerKind::Apply).await? {
            Some(MarkerState::Applied) => AttemptOutcome::Applied,
            Some(MarkerState::Abandoned) => AttemptOutcome::NotApplied,
            Some(MarkerState::RolledBack) | None => {
                let message = format!("the marker of attempt {attempt} of task {task_id} is corrupt");
                return Err(Failure::permanent(message));
            }
        };
        // The caller relies on the marker.
        transaction.connection.commit().await?;
        Ok(outcome)
    }

    pub(super) async fn run_rollback(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        let still_changed = |message: String| Failure::with_side_effects(SideEffects::Remaining, message);
        let statements: Vec<String> = if rollback_data.is_empty() {
            self.parse(&run.parameters).map_err(|invalid| Failure::from(invalid).not_rolled_back())?.rollback
        } else {
            let unreadable = |error| still_changed(format!("cannot read the rollback data: {error}"));
            serde_json::from_slice(rollback_data).map_err(unreadable)?
        };
        if statements.is_empty() {
            let message = "cannot roll back: the task has no rollback_statements; undo the change by hand";
            return Err(still_changed(message.to_owned()));
        }
        let (mut is_unknown, mut last_failure) = (false, Failure::permanent("not attempted"));
        for (attempts, backoff) in RETRY_BACKOFF_MS.into_iter().enumerate() {
            match self.try_rollback(run, &statements).await {
                Ok(Ok(message)) => {
                    write_line(run, message);
                    return Ok(());
                }
                // The marker tells the next try whether this one was committed.
                Ok(Err(error)) => (is_unknown, last_failure) = (true, error.not_rolled_back()),
                Err(failure) => last_failure = failure,
            }
            let is_final = last_failure.stop_reason.is_some() || !last_failure.is_retryable;
            if is_final || !back_off(run, attempts, backoff).await {
                break;
            }
        }
        if is_unknown {
            let message = format!(
                "the response to COMMIT was lost, and its outcome could not be determined: {last_failure}"
            );
            return Err(Failure { side_effects: SideEffects::Unknown, message, ..last_failure });
        }
        Err(last_failure)
    }

    /// Tries to roll back once. The inner error means that the response to COMMIT was lost.
    async fn try_rollback(&self, run: &Run, statements: &[String]) -> Result<Result<&'static str>> {
        let work = async {
            let mut transaction =
                AttemptTransaction::begin(&self.target, &self.keys, &run.task_id, run.attempt).await?;
            // Only an applied attempt is rolled back, and one that was not applied must not be applied afterwards.
            transaction.insert_marker(MarkerState::Abandoned).await?;
            if transaction.marker(MarkerKind::Apply).await? != Some(MarkerState::Applied) {
                return Ok((transaction, "nothing was applied, so nothing is rolled back"));
            }
            if !transaction.insert_marker(MarkerState::RolledBack).await? {
                return Ok((transaction, "this attempt is already rolled back; nothing was repeated"));
            }
            run_statements(&mut transaction, run, statements).await?;
            transaction.check_marker(MarkerState::RolledBack).await?;
            Ok((transaction, "rolled back"))
        };
        let result = run.stop.run_until_stopped(SideEffects::Remaining, work).await?;
        let (transaction, message) = result.map_err(Failure::not_rolled_back)?;
        run.stop.check(SideEffects::Remaining)?;
        match transaction.connection.commit().await {
            // The database has rejected the COMMIT.
            Err(error) if !error.is_retryable => Err(error.not_rolled_back()),
            result => Ok(result.map(|()| message)),
        }
    }
}

/// Waits before the next try. False if the run must stop and enough tries were made.
async fn back_off(run: &Run, attempts: usize, backoff_ms: u64) -> bool {
    if attempts + 1 >= MIN_ATTEMPTS && run.stop.reason().is_some() {
        return false;
    }
    tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
    true
}

/// Runs the statements in order and writes to the output how many rows each has affected.
async fn run_statements(
    transaction: &mut AttemptTransaction,
    run: &Run,
    statements: &[String],
) -> Result<()> {
    for (number, sql) in (1..).zip(statements) {
        let rows = transaction.connection.run_statement(sql).await;
        let rows =
            rows.map_err(|error| Failure { message: format!("statement {number}: {error}"), ..error })?;
        if !transaction.connection.is_in_transaction().await? {
            let message =
                format!("statement {number} ended the transaction, so earlier statements may be committed");
            return Err(Failure::with_side_effects(SideEffects::Unknown, message));
        }
        write_line(run, &format!("statement {number}: {}", row_count(rows)));
    }
    Ok(())
}

fn write_line(run: &Run, line: &str) {
    run.output.write(format!("{line}\n").as_bytes());
}
