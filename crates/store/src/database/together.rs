//! Statements that belong together: in one go where all goes as it must, and one by one where it does not, to know what is to be
//! said about it.
//!
//! In one go means one trip to the database for a whole commit. Whatever goes wrong on it has changed nothing.

use std::borrow::Cow;
use std::fmt::Write as _;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, Executor};

use super::DatabaseError;
use super::sql::{Arg, Link, bind, without_nul};

/// A statement that belongs to others, and what must come of it.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sql: Cow<'static, str>,
    pub(super) args: Vec<Arg>,
    must: Must,
}

/// What must come of a statement; else nothing of what belongs to it happens.
#[derive(Debug, Clone)]
enum Must {
    /// Nothing in particular.
    Any,
    /// It meets exactly one row: this one.
    Meet(String),
    /// It is the first to answer its request.
    Answer,
}

impl Statement {
    pub(super) fn new(sql: impl Into<Cow<'static, str>>, args: impl Into<Vec<Arg>>) -> Self {
        Self { sql: sql.into(), args: args.into(), must: Must::Any }
    }

    /// The same, which must meet one row: this one.
    pub(super) fn meets(self, what: impl Into<String>) -> Self {
        Self { must: Must::Meet(what.into()), ..self }
    }

    /// The same, which must be the first to answer its request.
    pub(super) fn answers(self) -> Self {
        Self { must: Must::Answer, ..self }
    }

    fn check(&self, rows: u64) -> Result<(), DatabaseError> {
        match &self.must {
            Must::Meet(what) if rows != 1 => Err(DatabaseError::Conflict { what: what.clone() }),
            Must::Answer if rows != 1 => Err(DatabaseError::AnsweredAlready),
            _ => Ok(()),
        }
    }
}

/// Rows of one statement. Statements are kept ready: with these there are few that differ in the number of their rows alone.
const ROWS_AT_ONCE: [usize; 9] = [32, 8, 7, 6, 5, 4, 3, 2, 1];
/// As many rows are always one statement.
pub(super) const ROWS_OF_ONE: usize = 8;

/// As few statements as may be for some rows: what comes before the values, a row with `?` for each of its values, and what
/// comes after.
pub(super) fn values(before: &str, row: &str, after: &str, rows: &[Vec<Arg>]) -> Vec<Statement> {
    let (mut all, mut rest) = (Vec::new(), rows);
    while let Some(many) = ROWS_AT_ONCE.into_iter().find(|many| *many <= rest.len()) {
        let (some, others) = rest.split_at(many);
        let (mut sql, mut number) = (format!("{before}VALUES "), 0);
        for comma in std::iter::once("").chain(std::iter::repeat(", ")).take(many) {
            sql.push_str(comma);
            let mut parts = row.split('?');
            sql.push_str(parts.next().unwrap_or_default());
            for part in parts {
                number += 1;
                // Writing into text cannot fail.
                let _ = write!(sql, "${number}{part}");
            }
        }
        sql.push_str(after);
        all.push(Statement::new(sql, some.concat()));
        rest = others;
    }
    all
}

impl Link<'_> {
    /// One after the other, up to the first that does not go as it must.
    pub(super) async fn run_each(&mut self, statements: &[Statement]) -> Result<(), DatabaseError> {
        for statement in statements {
            statement.check(self.run(&statement.sql, &statement.args).await?)?;
        }
        Ok(())
    }

    /// All in one go; whether everything went as it must. If not, nothing has happened on PostgreSQL, and on SQLite the
    /// transaction around it must be rolled back. None may go by what another one writes, nor by which comes
    /// first: PostgreSQL shows all of them the record as it was before, and begins with those that must meet something.
    pub(super) async fn run_together(&mut self, statements: &[Statement]) -> Result<bool, DatabaseError> {
        let args = statements.iter().flat_map(|statement| &statement.args);
        let spelled: Vec<String> = self.numbered_through(statements);
        let done = match self {
            Self::Sqlite(link) => {
                let query = bind!(sqlx::query(AssertSqlSafe(spelled.join("; "))), args);
                let (mut outcomes, mut open) = (link.fetch_many(query), statements.iter());
                loop {
                    match outcomes.try_next().await {
                        Ok(Some(Either::Left(done))) => {
                            let fits =
                                open.next().is_some_and(|next| next.check(done.rows_affected()).is_ok());
                            if !fits {
                                break Ok(false);
                            }
                        }
                        Ok(Some(Either::Right(_))) => {}
                        Ok(None) => break Ok(open.len() == 0),
                        Err(error) => break Err(error),
                    }
                }
            }
            Self::Postgres(link) => {
                let query = bind!(sqlx::query(AssertSqlSafe(with(statements, &spelled))), args);
                query.execute(&mut **link).await.map(|_| true)
            }
        };
        match done {
            Err(sqlx::Error::Database(_)) => Ok(false),
            done => Ok(done?),
        }
    }

    /// Each as it is spelled, with numbers of arguments that go on from one to the next.
    fn numbered_through(&self, statements: &[Statement]) -> Vec<String> {
        let mut before = 0;
        let one = |statement: &Statement| {
            let numbered = renumbered(&self.spell(&statement.sql), before);
            before += statement.args.len();
            numbered
        };
        statements.iter().map(one).collect()
    }
}

/// A statement whose arguments come after so many others.
fn renumbered(sql: &str, before: usize) -> String {
    let mut told = String::with_capacity(sql.len() + 32);
    let mut parts = sql.split('$');
    told.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        let _ = match number.parse::<usize>() {
            Ok(number) => write!(told, "${}{rest}", number + before),
            Err(_) => write!(told, "${part}"),
        };
    }
    told
}

/// One statement of PostgreSQL that carries out several, and fails where one does not meet what it must.
fn with(statements: &[Statement], spelled: &[String]) -> String {
    let (mut told, mut must) = (String::from("WITH "), String::new());
    for (number, (statement, sql)) in statements.iter().zip(spelled).enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        let _ = write!(told, "{comma}s{number} AS ({sql} RETURNING 1)");
        if !matches!(statement.must, Must::Any) {
            let _ = write!(must, " AND (SELECT count(*) FROM s{number}) = 1");
        }
    }
    let _ = write!(told, " SELECT 1 / CASE WHEN TRUE{must} THEN 1 ELSE 0 END");
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_put_together_with_numbers_that_go_on() {
        let first =
            Statement::new("UPDATE a SET b = $2 WHERE c = $1", vec![1_u64.into(), 2_u64.into()]).meets("a");
        let second = Statement::new("INSERT INTO d VALUES ($1, $10)", vec![3_u64.into()]);
        let spelled = [renumbered(&first.sql, 0), renumbered(&second.sql, 2)];
        assert_eq!(
            with(&[first, second], &spelled),
            "WITH s0 AS (UPDATE a SET b = $2 WHERE c = $1 RETURNING 1), \
             s1 AS (INSERT INTO d VALUES ($3, $12) RETURNING 1) \
             SELECT 1 / CASE WHEN TRUE AND (SELECT count(*) FROM s0) = 1 THEN 1 ELSE 0 END"
        );
    }
}
