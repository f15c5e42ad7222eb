//! Previews statements by running them as a restricted role, without ever committing. A dropped preview has no effects.

use std::time::Duration;

use ade_domain::task::{Preview, PreviewChange};
use tokio::time::Instant;

use super::SqlExecutor;
use super::apply::row_count;
use super::connection::{SqlConnection, Target};
use super::statements::{change_kind, summary};
use crate::{Failure, Parameters, Result, preview_within, ready_preview};

const PREVIEW_TIMEOUT: Duration = Duration::from_secs(12);
/// For all statements together. Shorter, so that the database itself can report the timeout.
const STATEMENTS_TIMEOUT: Duration = Duration::from_secs(10);
/// Short, because others wait for the locks of this preview meanwhile.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

impl SqlExecutor {
    pub(super) async fn run_preview(&self, parameters: &Parameters) -> Result<Preview> {
        let statements = self.parse(parameters)?.forward;
        let Some(target) = &self.preview_target else { return Ok(Preview::none()) };
        preview_within(PREVIEW_TIMEOUT, preview(target, &statements)).await
    }
}

async fn preview(target: &Target, statements: &[String]) -> Result<Preview> {
    let mut connection = target.connect().await?;
    let result = try_statements(&mut connection, target, statements).await;
    connection.roll_back_and_close().await;
    let (changes, errors) = result?;
    Ok(ready_preview(changes, Vec::new(), errors))
}

/// Runs the statements up to the first one that fails. A permanent error of a statement is a result; other errors are returned.
async fn try_statements(
    connection: &mut SqlConnection,
    target: &Target,
    statements: &[String],
) -> Result<(Vec<PreviewChange>, Vec<String>)> {
    let mut changes = Vec::with_capacity(statements.len());
    let deadline = Instant::now() + STATEMENTS_TIMEOUT;
    connection.begin(false).await?;
    for (number, sql) in (1..).zip(statements) {
        // Set before each statement, because a statement may change the limits for the following ones.
        let left = deadline.saturating_duration_since(Instant::now());
        connection.set_timeouts(Some(left), LOCK_TIMEOUT).await?;
        let rows = match connection.run_statement(sql).await {
            Ok(rows) => rows,
            Err(error) => {
                let message = format!("statement {number}: {error}");
                return if error.is_retryable {
                    Err(Failure { message, ..error })
                } else {
                    Ok((changes, vec![message]))
                };
            }
        };
        if !connection.is_in_transaction().await? {
            let message = format!("statement {number} ended the transaction of the preview");
            tracing::error!(message, "a preview may have changed something");
            return Ok((changes, vec![message]));
        }
        changes.push(PreviewChange {
            kind: change_kind(sql, target.dialect()),
            what: format!("statement {number}: {}", summary(sql)),
            before: None,
            after: Some(row_count(rows)),
            diff: None,
        });
    }
    Ok((changes, Vec::new()))
}
