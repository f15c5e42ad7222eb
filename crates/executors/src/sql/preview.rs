//! Previews statements, which nobody has approved yet. On PostgreSQL they are planned but not executed, unless the operator allows
//! to execute them as a restricted role, without ever committing. On SQLite they are executed without committing, in a process of
//! their own. A dropped preview has no effects.

use std::time::Duration;

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use serde_json::Value;
use tokio::time::Instant;

use super::apply::row_count;
use super::connection::{ChangedRows, Dialect, SqlConnection, Target};
use super::sqlite_process::preview_in_process;
use super::statements::{change_kind, is_explainable, is_query, row_change_kind, summary};
use super::{PreviewMode, SqlExecutor};
use crate::{Failure, Parameters, Result, preview_within, ready_preview};

const PREVIEW_TIMEOUT: Duration = Duration::from_secs(12);
/// For all statements together. Shorter, so that the database itself can report the timeout.
pub(super) const STATEMENTS_TIMEOUT: Duration = Duration::from_secs(10);
/// Short, because others wait for the locks of this preview meanwhile.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

impl SqlExecutor {
    pub(super) async fn run_preview(&self, parameters: &Parameters) -> Result<Preview> {
        let statements = self.parse(parameters)?.forward;
        let Some((url, target)) = &self.preview_target else { return Ok(Preview::none()) };
        let preview = async {
            match (target.dialect(), self.preview_mode) {
                (Dialect::Sqlite, _) => {
                    preview_in_process(&self.limited_program, url, target, &statements).await
                }
                (Dialect::Postgres, PreviewMode::Explain) => explain(target, &statements).await,
                (Dialect::Postgres, PreviewMode::Execute) => execute_and_roll_back(target, &statements).await,
            }
        };
        preview_within(PREVIEW_TIMEOUT, preview).await
    }
}

/// Executes the statements in a transaction that is rolled back.
async fn execute_and_roll_back(target: &Target, statements: &[String]) -> Result<Preview> {
    let mut connection = target.connect().await?;
    let result = try_statements(&mut connection, target, statements).await;
    connection.roll_back_and_close().await;
    result.map(preview_of)
}

/// The preview of statements that were executed: their changes, and the error of the first one that failed.
pub(super) fn preview_of((changes, errors): (Vec<PreviewChange>, Vec<String>)) -> Preview {
    ready_preview(changes, Vec::new(), errors)
}

/// Runs the statements up to the first one that fails. A permanent error of a statement is a result; other errors are returned.
pub(super) async fn try_statements(
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
        let before = connection.changed_rows().await?;
        let rows = match connection.run_statement(sql).await {
            Ok(rows) => rows,
            Err(error) => return Ok((changes, vec![statement_error(number, &error)?])),
        };
        if !connection.is_in_transaction().await? {
            let message = format!("statement {number} ended the transaction of the preview");
            tracing::error!(message, "a preview may have changed something");
            return Ok((changes, vec![message]));
        }
        let changed = before.zip(connection.changed_rows().await?).map(|(before, after)| ChangedRows {
            total: after.total.saturating_sub(before.total),
            deleted: after.deleted.saturating_sub(before.deleted),
        });
        let with_triggers = changed.filter(|changed| changed.total > rows).map(|changed| changed.total);
        let with_triggers =
            with_triggers.map(|total| format!(", with triggers and cascades {}", row_count(total)));
        let after = row_count(rows) + &with_triggers.unwrap_or_default();
        let items = changed_items(sql, target.dialect(), rows, changed);
        changes.push(PreviewChange { items, ..change(number, sql, target.dialect(), after) });
    }
    Ok((changes, Vec::new()))
}

/// Plans the statements in a transaction that cannot change anything, up to the first one that fails.
async fn explain(target: &Target, statements: &[String]) -> Result<Preview> {
    let mut connection = target.connect().await?;
    let result = explain_statements(&mut connection, statements).await;
    connection.roll_back_and_close().await;
    result.map(|preview| Preview { estimated: true, ..preview })
}

async fn explain_statements(connection: &mut SqlConnection, statements: &[String]) -> Result<Preview> {
    let (mut changes, mut warnings) = (Vec::with_capacity(statements.len()), Vec::new());
    let deadline = Instant::now() + STATEMENTS_TIMEOUT;
    connection.begin_read_only().await?;
    let left = deadline.saturating_duration_since(Instant::now());
    connection.set_timeouts(Some(left), LOCK_TIMEOUT).await?;
    let mut is_schema_known = true;
    for (number, sql) in (1..).zip(statements) {
        // Identifies the whole statement. Estimates are not part of the fingerprint: they change with the statistics.
        let digest = Digest::of_bytes(sql.as_bytes()).to_string();
        let mut change = change(number, sql, Dialect::Postgres, digest);
        if !is_explainable(sql) {
            is_schema_known = false;
            warnings
                .push(format!("statement {number} is unverified: it can only be executed, not explained"));
            changes.push(change);
            continue;
        }
        match connection.explain(sql).await {
            Ok(plan) => {
                change.diff = estimated_rows(&plan).map(|rows| format!("estimated: {}\n", row_count(rows)));
            }
            Err(error) => {
                let error = statement_error(number, &error)?;
                if is_schema_known {
                    return Ok(ready_preview(changes, warnings, vec![error]));
                }
                let reason = "it may depend on a statement before it, which was not executed";
                warnings.push(format!("statement {number} is unverified: {reason} ({error})"));
            }
        }
        changes.push(change);
    }
    Ok(ready_preview(changes, warnings, Vec::new()))
}

/// How many rows a statement changes in the way that its kind says; none if it may also change others, or in another way.
fn changed_items(sql: &str, dialect: Dialect, rows: u64, changed: Option<ChangedRows>) -> Option<u64> {
    let (kind, changed) = (row_change_kind(sql, dialect)?, changed?);
    if is_query(sql, dialect) {
        return (changed.total == 0).then_some(0);
    }
    let deletes_others = kind != ChangeKind::Delete && changed.deleted > 0;
    (changed.total <= rows && !deletes_others).then_some(rows)
}

fn change(number: usize, sql: &str, dialect: Dialect, after: String) -> PreviewChange {
    PreviewChange {
        kind: change_kind(sql, dialect),
        what: format!("statement {number}: {}", summary(sql)),
        before: None,
        after: Some(after),
        diff: None,
        items: None,
        reviewers_only: false,
    }
}

/// The error that a preview lists for a statement, unless a later preview may succeed.
fn statement_error(number: usize, error: &Failure) -> Result<String> {
    let message = format!("statement {number}: {error}");
    if error.is_retryable { Err(Failure { message, ..error.clone() }) } else { Ok(message) }
}

/// How many rows a plan returns or changes. The node that changes rows returns none itself.
fn estimated_rows(plan: &str) -> Option<u64> {
    let plans: Value = serde_json::from_str(plan).ok()?;
    let plan = plans.get(0)?.get("Plan")?;
    let rows = |plan: &Value| plan.get("Plan Rows").and_then(Value::as_u64);
    if plan.get("Node Type").and_then(Value::as_str) != Some("ModifyTable") {
        return rows(plan);
    }
    // An init plan only computes a value.
    let is_source = |plan: &&Value| plan.get("Parent Relationship").and_then(Value::as_str) == Some("Outer");
    let sources = plan.get("Plans").and_then(Value::as_array)?;
    Some(sources.iter().filter(is_source).filter_map(rows).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_rows_of_queries_and_changes() {
        assert_eq!(estimated_rows(r#"[{"Plan": {"Node Type": "Seq Scan", "Plan Rows": 7}}]"#), Some(7));
        let update = r#"[{"Plan": {"Node Type": "ModifyTable", "Plan Rows": 0, "Plans": [
            {"Node Type": "Result", "Parent Relationship": "InitPlan", "Plan Rows": 1},
            {"Node Type": "Seq Scan", "Parent Relationship": "Outer", "Plan Rows": 3}]}}]"#;
        assert_eq!(estimated_rows(update), Some(3));
        for unknown in ["", "[]", "{}", r#"[{"Plan": {}}]"#] {
            assert_eq!(estimated_rows(unknown), None, "{unknown}");
        }
    }
}
