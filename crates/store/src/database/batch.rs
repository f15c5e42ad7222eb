//! Several statements of one commit: sent as one batch while nothing conflicts, and one by one to find out what does.
//!
//! A batch is one round trip to the database for a whole commit. A batch that fails has changed nothing.

use std::borrow::Cow;
use std::fmt::Write as _;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, Executor};

use super::sql::{Arg, SqlConnection, bind, push_numbered, replace_nul};
use super::{DatabaseError, Operation};

/// A statement, and how many rows it must affect.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    sql: Cow<'static, str>,
    args: Vec<Arg>,
    expected: Expected,
}

/// Which rows a statement must affect; otherwise nothing of its commit happens.
#[derive(Debug, Clone)]
enum Expected {
    Any,
    /// Exactly one row, of the object that is named here for the error.
    OneRow(String),
    /// One row: no response is stored yet under the idempotency key of this request.
    NewResponse,
}

impl Statement {
    pub(super) fn new(sql: impl Into<Cow<'static, str>>, args: impl Into<Vec<Arg>>) -> Self {
        Self { sql: sql.into(), args: args.into(), expected: Expected::Any }
    }

    /// Fails with a conflict about `object` unless the statement affects exactly one row.
    pub(super) fn expect_one_row(self, object: impl Into<String>) -> Self {
        Self { expected: Expected::OneRow(object.into()), ..self }
    }

    /// Fails as a duplicate unless the statement inserts the response.
    pub(super) fn expect_new_response(self) -> Self {
        Self { expected: Expected::NewResponse, ..self }
    }

    fn check(&self, rows: u64) -> Result<(), DatabaseError> {
        match &self.expected {
            Expected::OneRow(object) if rows != 1 => Err(DatabaseError::Conflict { what: object.clone() }),
            Expected::NewResponse if rows != 1 => Err(DatabaseError::DuplicateIdempotencyKey),
            _ => Ok(()),
        }
    }
}

/// Applies the statements one by one; the output is how many rows they affected in total.
impl Operation for Vec<Statement> {
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64, DatabaseError> {
        connection.execute_each(self).await
    }
}

/// How many rows one statement may have. Few sizes, because each of them is prepared and cached as a statement of its own.
const ROWS_PER_STATEMENT: [usize; 9] = [32, 8, 7, 6, 5, 4, 3, 2, 1];
/// Up to this number of rows always become one statement.
pub(super) const MAX_ROWS_OF_ONE_STATEMENT: usize = 8;

/// Statements with `VALUES`, as few as possible: `before`, a `row` template with `?` for each value, and `after`.
pub(super) fn values(before: &str, row: &str, after: &str, rows: &[Vec<Arg>]) -> Vec<Statement> {
    let (mut statements, mut rest) = (Vec::new(), rows);
    while let Some(count) = ROWS_PER_STATEMENT.into_iter().find(|count| *count <= rest.len()) {
        let (chunk, others) = rest.split_at(count);
        let (mut sql, mut next) = (format!("{before}VALUES "), 1);
        for comma in std::iter::once("").chain(std::iter::repeat(", ")).take(count) {
            sql.push_str(comma);
            next = push_numbered(&mut sql, row, next);
        }
        sql.push_str(after);
        statements.push(Statement::new(sql, chunk.concat()));
        rest = others;
    }
    statements
}

impl SqlConnection<'_> {
    /// Executes statements up to the first that fails its expectation. Returns how many rows they affected.
    pub(super) async fn execute_each(&mut self, statements: &[Statement]) -> Result<u64, DatabaseError> {
        let mut affected = 0;
        for statement in statements {
            let rows = self.execute(&statement.sql, &statement.args).await?;
            statement.check(rows)?;
            affected += rows;
        }
        Ok(affected)
    }

    /// Executes all statements in one round trip; `false` if one of them failed or missed its expectation. Then nothing has
    /// happened on PostgreSQL, and on SQLite the caller must roll the transaction back. No statement may depend on the effects
    /// or the order of the others: PostgreSQL runs all of them on the same snapshot, in an order of its own.
    pub(super) async fn execute_batch(&mut self, statements: &[Statement]) -> Result<bool, DatabaseError> {
        let args = statements.iter().flat_map(|statement| &statement.args);
        let translated = self.translate_batch(statements);
        let outcome = match self {
            Self::Sqlite(connection) => {
                let query = bind!(sqlx::query(AssertSqlSafe(translated.join("; "))), args);
                let (mut results, mut pending) = (connection.fetch_many(query), statements.iter());
                loop {
                    match results.try_next().await {
                        Ok(Some(Either::Left(result))) => {
                            let statement = pending.next();
                            if statement.is_none_or(|next| next.check(result.rows_affected()).is_err()) {
                                break Ok(false);
                            }
                        }
                        Ok(Some(Either::Right(_))) => {}
                        Ok(None) => break Ok(pending.len() == 0),
                        Err(error) => break Err(error),
                    }
                }
            }
            Self::Postgres(connection) => {
                let query = bind!(sqlx::query(AssertSqlSafe(combine(statements, &translated))), args);
                query.execute(&mut **connection).await.map(|_| true)
            }
        };
        match outcome {
            Err(sqlx::Error::Database(_)) => Ok(false),
            outcome => Ok(outcome?),
        }
    }

    /// Each statement in the dialect of this database, with placeholders numbered across all of them.
    fn translate_batch(&self, statements: &[Statement]) -> Vec<String> {
        let mut offset = 0;
        let translate = |statement: &Statement| {
            let renumbered = renumber(&self.translate(&statement.sql), offset);
            offset += statement.args.len();
            renumbered
        };
        statements.iter().map(translate).collect()
    }
}

/// Adds `offset` to the number of every placeholder.
fn renumber(sql: &str, offset: usize) -> String {
    let mut renumbered = String::with_capacity(sql.len() + 32);
    let mut parts = sql.split('$');
    renumbered.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        // Writing to a string cannot fail.
        let _ = match number.parse::<usize>() {
            Ok(number) => write!(renumbered, "${}{rest}", number + offset),
            Err(_) => write!(renumbered, "${part}"),
        };
    }
    renumbered
}

/// One PostgreSQL statement that executes several, and fails with a division by zero if one misses its expectation.
fn combine(statements: &[Statement], translated: &[String]) -> String {
    let (mut combined, mut conditions) = (String::from("WITH "), String::new());
    for (number, (statement, sql)) in statements.iter().zip(translated).enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        let _ = write!(combined, "{comma}s{number} AS ({sql} RETURNING 1)");
        if !matches!(statement.expected, Expected::Any) {
            let _ = write!(conditions, " AND (SELECT count(*) FROM s{number}) = 1");
        }
    }
    let _ = write!(combined, " SELECT 1 / CASE WHEN TRUE{conditions} THEN 1 ELSE 0 END");
    combined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combines_statements_and_renumbers_their_placeholders() {
        let sql = "UPDATE a SET b = $2 WHERE c = $1";
        let first = Statement::new(sql, vec![1_u64.into(), 2_u64.into()]).expect_one_row("a");
        let second = Statement::new("INSERT INTO d VALUES ($1, $10)", vec![3_u64.into()]);
        let translated = [renumber(&first.sql, 0), renumber(&second.sql, 2)];
        assert_eq!(
            combine(&[first, second], &translated),
            "WITH s0 AS (UPDATE a SET b = $2 WHERE c = $1 RETURNING 1), \
             s1 AS (INSERT INTO d VALUES ($3, $12) RETURNING 1) \
             SELECT 1 / CASE WHEN TRUE AND (SELECT count(*) FROM s0) = 1 THEN 1 ELSE 0 END"
        );
    }

    #[test]
    fn splits_rows_into_statements_of_few_sizes() {
        let rows: Vec<Vec<Arg>> = (0..42_u64).map(|number| vec![number.into(), number.into()]).collect();
        let statements = values("INSERT INTO t ", "(?, moment(?))", " ON CONFLICT DO NOTHING", &rows);
        let sizes: Vec<usize> = statements.iter().map(|statement| statement.args.len() / 2).collect();
        assert_eq!(sizes, [32, 8, 2]);
        let last = statements.last().map(|statement| &*statement.sql);
        assert_eq!(
            last,
            Some("INSERT INTO t VALUES ($1, moment($2)), ($3, moment($4)) ON CONFLICT DO NOTHING")
        );
    }
}
