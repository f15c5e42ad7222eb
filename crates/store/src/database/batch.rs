//! Statements with what they must affect, and the rows they insert.

use std::borrow::Cow;

use super::sql::{Arg, Row, SqlConnection, push_placeholders};
use super::{DatabaseError, Operation, Result};

/// A statement, and what is wrong unless it affects exactly one row; then nothing of its commit happens.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sql: Cow<'static, str>,
    pub(super) args: Vec<Arg>,
    /// `None` if it may affect any number of rows.
    pub(super) unless_one_row: Option<DatabaseError>,
}

impl Statement {
    pub(super) fn new(sql: impl Into<Cow<'static, str>>, args: impl Into<Vec<Arg>>) -> Self {
        Self { sql: sql.into(), args: args.into(), unless_one_row: None }
    }

    /// Fails with `error` unless the statement affects exactly one row.
    pub(super) fn or_fail(self, error: DatabaseError) -> Self {
        Self { unless_one_row: Some(error), ..self }
    }

    /// Fails with a conflict about `object` unless the statement affects exactly one row.
    pub(super) fn or_conflict(self, object: impl Into<String>) -> Self {
        self.or_fail(DatabaseError::Conflict { what: object.into() })
    }

    fn check(&self, rows: u64) -> Result<()> {
        match &self.unless_one_row {
            Some(error) if rows != 1 => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Applies the statements one by one; the output is how many rows they affected in total.
impl Operation for Vec<Statement> {
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64> {
        connection.execute_each(self).await
    }
}

/// A statement that returns the row it changes, if there is one.
pub(super) struct Returning(pub(super) Statement);

impl Operation for Returning {
    type Output = Option<Row>;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Option<Row>> {
        connection.query_first(&self.0.sql, &self.0.args).await
    }
}

/// How many rows one statement may have. Few sizes, because each of them is prepared and cached as a statement of its own.
const ROWS_PER_STATEMENT: [usize; 9] = [32, 8, 7, 6, 5, 4, 3, 2, 1];
/// Up to this number of rows always become one statement.
pub(super) const MAX_ROWS_OF_ONE_STATEMENT: usize = 8;

/// A row of a table: its columns with their values.
#[derive(Debug, Clone)]
pub struct TableRow {
    pub table: &'static str,
    pub columns: Vec<(&'static str, Arg)>,
}

impl TableRow {
    pub(super) fn new(table: &'static str, columns: impl Into<Vec<(&'static str, Arg)>>) -> Self {
        Self { table, columns: columns.into() }
    }

    fn insert_into(&self) -> String {
        let mut sql = format!("INSERT INTO {} (", self.table);
        for (at, (name, _)) in self.columns.iter().enumerate() {
            sql.push_str(if at == 0 { "" } else { ", " });
            sql.push_str(name);
        }
        sql.push_str(") VALUES ");
        sql
    }

    /// The text in a column; empty if there is none.
    pub(super) fn text(&self, column: &str) -> &str {
        let found = self.columns.iter().find(|(name, _)| *name == column);
        if let Some((_, Arg::Text(Some(text)))) = found { text } else { "" }
    }

    pub(super) fn into_args(self) -> Vec<Arg> {
        self.columns.into_iter().map(|(_, arg)| arg).collect()
    }

    /// Inserts the row. `suffix` says what happens if it is there already.
    pub(super) fn insert(self, suffix: &str) -> Statement {
        let mut sql = self.insert_into();
        push_list(&mut sql, 1, self.columns.len());
        sql.push_str(suffix);
        Statement::new(sql, self.into_args())
    }

    /// Inserts the row, or updates it if it has the expected revision. It is identified by its first `keys` columns, and called
    /// `object` in errors.
    pub(super) fn put(self, keys: usize, expected: Option<u64>, object: impl Into<String>) -> Statement {
        let Some(expected) = expected else { return self.insert("") };
        let assignments = |columns: &[(&str, Arg)], first: usize, separator: &str| {
            let assign = |(number, (name, _)): (usize, &(&str, Arg))| format!("{name} = ${number}");
            (first..).zip(columns).map(assign).collect::<Vec<_>>().join(separator)
        };
        let (key, values) = self.columns.split_at(keys);
        let (set, key) = (assignments(values, keys + 1, ", "), assignments(key, 1, " AND "));
        let expected_number = self.columns.len() + 1;
        let sql = format!("UPDATE {} SET {set} WHERE {key} AND revision = ${expected_number}", self.table);
        let mut args = self.into_args();
        args.push(expected.into());
        Statement::new(sql, args).or_conflict(object)
    }
}

/// Inserts rows of one table. `suffix` says what happens to those that are there already.
pub(super) fn insert_all(rows: Vec<TableRow>, suffix: &str) -> Vec<Statement> {
    let before = rows.first().map(TableRow::insert_into).unwrap_or_default();
    let rows: Vec<Vec<Arg>> = rows.into_iter().map(TableRow::into_args).collect();
    values(&before, &rows, suffix)
}

/// Adds the placeholders of one row, in parentheses.
fn push_list(sql: &mut String, first: usize, count: usize) {
    sql.push('(');
    push_placeholders(sql, first, count);
    sql.push(')');
}

/// Statements with rows between `before`, which ends with `VALUES`, and `after`, as few as possible.
fn values(before: &str, rows: &[Vec<Arg>], after: &str) -> Vec<Statement> {
    let (mut statements, mut rest) = (Vec::new(), rows);
    while let Some(count) = ROWS_PER_STATEMENT.into_iter().find(|count| *count <= rest.len()) {
        let (chunk, others) = rest.split_at(count);
        let (mut sql, mut next) = (before.to_owned(), 1);
        for row in chunk {
            sql.push_str(if next == 1 { "" } else { ", " });
            push_list(&mut sql, next, row.len());
            next += row.len();
        }
        sql.push_str(after);
        statements.push(Statement::new(sql, chunk.concat()));
        rest = others;
    }
    statements
}

impl SqlConnection<'_> {
    /// Executes statements up to the first that fails its expectation. Returns how many rows they affected.
    pub(super) async fn execute_each(&mut self, statements: &[Statement]) -> Result<u64> {
        let mut affected = 0;
        for statement in statements {
            let rows = self.execute(&statement.sql, &statement.args).await?;
            statement.check(rows)?;
            affected += rows;
        }
        Ok(affected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u64) -> TableRow {
        TableRow::new("t", [("a", number.into()), ("revision", number.into())])
    }

    #[test]
    fn splits_rows_into_statements_of_few_sizes() {
        let statements = insert_all((0..42).map(row).collect(), " ON CONFLICT DO NOTHING");
        let sizes: Vec<usize> = statements.iter().map(|statement| statement.args.len() / 2).collect();
        assert_eq!(sizes, [32, 8, 2]);
        let last = statements.last().map(|statement| &*statement.sql);
        let expected = "INSERT INTO t (a, revision) VALUES ($1, $2), ($3, $4) ON CONFLICT DO NOTHING";
        assert_eq!(last, Some(expected));
    }

    #[test]
    fn inserts_a_new_row_and_updates_an_expected_one() {
        assert_eq!(row(1).put(1, None, "t 1").sql, "INSERT INTO t (a, revision) VALUES ($1, $2)");
        let update = row(2).put(1, Some(1), "t 2");
        assert_eq!(update.sql, "UPDATE t SET revision = $2 WHERE a = $1 AND revision = $3");
        assert_eq!(update.args.len(), 3);
    }
}
