//! One SQL dialect for both databases: statements are written once, for PostgreSQL, and translated for SQLite.
//!
//! Values are always bound as arguments and never become part of a statement. Timestamps are written `moment($1)` and read
//! `micros(column)`; ids and JSON are text in both directions, with a cast where PostgreSQL has a type for them.

use std::borrow::Cow;
use std::fmt::Write as _;

use ade_domain::Moment;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Row as _, TypeInfo, ValueRef};

use super::DatabaseError;

/// Ends a statement that skips rows which another transaction has locked.
pub(super) const SKIP_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

/// Ends a statement that locks the rows it finds until the end of the transaction.
pub(super) const LOCK_ROWS: &str = " FOR NO KEY UPDATE";

/// A bound argument of a statement.
#[derive(Debug, Clone)]
pub(super) enum Arg {
    Text(Option<String>),
    Int(Option<i64>),
}

impl Arg {
    pub(super) const NULL: Self = Self::Text(None);
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<String>> for Arg {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<Moment> for Arg {
    fn from(moment: Moment) -> Self {
        moment.micros().into()
    }
}

impl From<Option<Moment>> for Arg {
    fn from(moment: Option<Moment>) -> Self {
        moment.map(Moment::micros).into()
    }
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Some(number).into()
    }
}

impl From<Option<u64>> for Arg {
    fn from(number: Option<u64>) -> Self {
        Self::Int(number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

/// A value as JSON text.
pub(super) fn json(value: &impl Serialize) -> Result<Arg, DatabaseError> {
    let text = serde_json::to_string(value).map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
    Ok(if text.contains("\\u0000") { replace_nul_escapes(&text) } else { text }.into())
}

/// A value as JSON text, or NULL.
pub(super) fn optional_json(value: Option<&impl Serialize>) -> Result<Arg, DatabaseError> {
    value.map_or(Ok(Arg::NULL), json)
}

/// Replaces the escape of NUL in JSON text, but not an escaped backslash that is followed by `u0000`.
fn replace_nul_escapes(text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        replaced.push_str(before);
        let length = if from.starts_with("\\u") { 6 } else { 2 };
        let (escape, after) = from.split_at(length.min(from.len()));
        replaced.push_str(if escape == "\\u0000" { "\\ufffd" } else { escape });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

/// PostgreSQL cannot store NUL in text, but lock names may contain it: it becomes the replacement character.
pub(super) fn replace_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A row of a result: text or integers, by the position of the column.
#[derive(Debug, Clone)]
pub(super) struct Row(Vec<Cell>);

#[derive(Debug, Clone)]
enum Cell {
    Null,
    Text(String),
    Int(i64),
}

impl Row {
    fn corrupt(&self, at: usize) -> DatabaseError {
        DatabaseError::Corrupt(format!("column {at} of {self:?} has an unexpected type"))
    }

    fn is_null(&self, at: usize) -> bool {
        matches!(self.0.get(at), Some(Cell::Null))
    }

    pub(super) fn text(&self, at: usize) -> Result<&str, DatabaseError> {
        match self.0.get(at) {
            Some(Cell::Text(text)) => Ok(text),
            _ => Err(self.corrupt(at)),
        }
    }

    pub(super) fn string(&self, at: usize) -> Result<String, DatabaseError> {
        self.text(at).map(str::to_owned)
    }

    pub(super) fn optional_text(&self, at: usize) -> Result<Option<&str>, DatabaseError> {
        if self.is_null(at) { Ok(None) } else { self.text(at).map(Some) }
    }

    pub(super) fn optional_string(&self, at: usize) -> Result<Option<String>, DatabaseError> {
        Ok(self.optional_text(at)?.map(str::to_owned))
    }

    pub(super) fn number(&self, at: usize) -> Result<u64, DatabaseError> {
        match self.0.get(at) {
            Some(Cell::Int(number)) => u64::try_from(*number).map_err(|_| self.corrupt(at)),
            _ => Err(self.corrupt(at)),
        }
    }

    pub(super) fn moment(&self, at: usize) -> Result<Moment, DatabaseError> {
        self.number(at).map(Moment::from_micros)
    }

    pub(super) fn optional_moment(&self, at: usize) -> Result<Option<Moment>, DatabaseError> {
        if self.is_null(at) { Ok(None) } else { self.moment(at).map(Some) }
    }

    pub(super) fn json<T: DeserializeOwned>(&self, at: usize) -> Result<T, DatabaseError> {
        serde_json::from_str(self.text(at)?)
            .map_err(|error| DatabaseError::Corrupt(format!("column {at} of {self:?}: {error}")))
    }

    pub(super) fn optional_json<T: DeserializeOwned>(&self, at: usize) -> Result<Option<T>, DatabaseError> {
        if self.is_null(at) { Ok(None) } else { self.json(at).map(Some) }
    }
}

/// Binds every argument. A macro, because the query types of the two databases share no trait for this.
macro_rules! bind {
    ($query:expr, $args:expr) => {{
        let mut query = $query;
        for arg in $args {
            query = match arg {
                Arg::Text(text) => query.bind(text.as_deref().map(replace_nul).as_deref()),
                Arg::Int(number) => query.bind(number),
            };
        }
        query
    }};
}
pub(super) use bind;

/// The placeholders of a list: `$3::uuid, $4::uuid` for two values that begin with argument 3 and have the cast `::uuid`.
pub(super) fn placeholders(first: usize, count: usize, cast: &str) -> String {
    let all: Vec<String> = (first..first + count).map(|number| format!("${number}{cast}")).collect();
    all.join(", ")
}

/// Appends `template` with `?` replaced by `$n`, from `next` on. Returns the number after the last one.
pub(super) fn push_numbered(sql: &mut String, template: &str, mut next: usize) -> usize {
    let mut parts = template.split('?');
    sql.push_str(parts.next().unwrap_or_default());
    for part in parts {
        // Writing to a string cannot fail.
        let _ = write!(sql, "${next}{part}");
        next += 1;
    }
    next
}

/// A SELECT whose conditions are added one by one. The texts are constants; values are arguments.
pub(super) struct Select {
    pub(super) sql: String,
    pub(super) args: Vec<Arg>,
}

impl Select {
    pub(super) fn new(select: &str) -> Self {
        Self { sql: format!("{select} WHERE TRUE"), args: Vec::new() }
    }

    /// Adds a condition; `?` stands for each of the arguments in turn.
    pub(super) fn and(&mut self, condition: &str, args: impl IntoIterator<Item = Arg>) {
        self.sql.push_str(" AND ");
        push_numbered(&mut self.sql, condition, self.args.len() + 1);
        self.args.extend(args);
    }
}

/// A connection to either database.
pub(super) enum SqlConnection<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl SqlConnection<'_> {
    /// Executes a statement, and returns how many rows it affected.
    pub(super) async fn execute(&mut self, sql: &str, args: &[Arg]) -> Result<u64, DatabaseError> {
        let sql = AssertSqlSafe(self.translate(sql));
        let affected = match self {
            Self::Sqlite(connection) => {
                bind!(sqlx::query(sql), args).execute(&mut **connection).await?.rows_affected()
            }
            Self::Postgres(connection) => {
                bind!(sqlx::query(sql), args).execute(&mut **connection).await?.rows_affected()
            }
        };
        Ok(affected)
    }

    pub(super) async fn query(&mut self, sql: &str, args: &[Arg]) -> Result<Vec<Row>, DatabaseError> {
        let sql = AssertSqlSafe(self.translate(sql));
        match self {
            Self::Sqlite(connection) => {
                let rows = bind!(sqlx::query(sql), args).fetch_all(&mut **connection).await?;
                rows.iter().map(sqlite_row).collect()
            }
            Self::Postgres(connection) => {
                let rows = bind!(sqlx::query(sql), args).fetch_all(&mut **connection).await?;
                rows.iter().map(postgres_row).collect()
            }
        }
    }

    /// The first row of a result, if there is one.
    pub(super) async fn query_first(
        &mut self,
        sql: &str,
        args: &[Arg],
    ) -> Result<Option<Row>, DatabaseError> {
        Ok(self.query(sql, args).await?.into_iter().next())
    }

    /// The number in the first column of the first row; 0 if there is no row.
    pub(super) async fn query_number(&mut self, sql: &str, args: &[Arg]) -> Result<u64, DatabaseError> {
        self.query_first(sql, args).await?.map_or(Ok(0), |row| row.number(0))
    }

    /// A statement in the dialect of this database.
    pub(super) fn translate(&self, sql: &str) -> String {
        match self {
            Self::Sqlite(_) => {
                // SQLite has one writer, which never meets a locked row.
                let sql =
                    sql.strip_suffix(SKIP_LOCKED).or_else(|| sql.strip_suffix(LOCK_ROWS)).unwrap_or(sql);
                translate(sql, str::to_owned, str::to_owned, false)
            }
            Self::Postgres(_) => translate(
                sql,
                |inner| format!("to_timestamp({inner}::float8 / 1000000)"),
                |inner| format!("(extract(epoch FROM {inner}) * 1000000)::bigint"),
                true,
            ),
        }
    }
}

/// Replaces `moment(…)` and `micros(…)`, and removes casts unless the database has them.
fn translate(
    sql: &str,
    moment: impl Fn(&str) -> String,
    micros: impl Fn(&str) -> String,
    has_casts: bool,
) -> String {
    let mut translated = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(at) = rest.find(['m', ':']) {
        let (before, from) = rest.split_at(at);
        translated.push_str(before);
        let call = [("moment(", true), ("micros(", false)]
            .into_iter()
            .find_map(|(name, is_moment)| from.strip_prefix(name).map(|inner| (inner, is_moment)));
        if let Some((inner, is_moment)) = call
            && let Some((inner, after)) = inner.split_once(')')
        {
            translated.push_str(&if is_moment { moment(inner) } else { micros(inner) });
            rest = after;
        } else if let Some(cast) = from.strip_prefix("::").filter(|_| !has_casts) {
            rest = cast.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        } else {
            let (first, after) = from.split_at(1);
            translated.push_str(first);
            rest = after;
        }
    }
    translated.push_str(rest);
    translated
}

fn sqlite_row(row: &SqliteRow) -> Result<Row, DatabaseError> {
    let cell = |at: usize| {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(Cell::Null);
        }
        match raw.type_info().name() {
            "INTEGER" => row.try_get(at).map(Cell::Int),
            _ => row.try_get(at).map(Cell::Text),
        }
    };
    let cells = row.columns().iter().map(|column| cell(column.ordinal())).collect::<Result<_, sqlx::Error>>();
    Ok(Row(cells?))
}

fn postgres_row(row: &PgRow) -> Result<Row, DatabaseError> {
    let cell = |at: usize| {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(Cell::Null);
        }
        match raw.type_info().name() {
            "INT8" => row.try_get(at).map(Cell::Int),
            "INT4" => row.try_get::<i32, _>(at).map(|number| Cell::Int(number.into())),
            _ => row.try_get(at).map(Cell::Text),
        }
    };
    let cells = row.columns().iter().map(|column| cell(column.ordinal())).collect::<Result<_, sqlx::Error>>();
    Ok(Row(cells?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_nul_characters() {
        assert_eq!(replace_nul_escapes(r#""a\u0000b\\u0000\"\u00e9""#), r#""a\ufffdb\\u0000\"\u00e9""#);
        assert_eq!(replace_nul("a\0"), "a\u{fffd}");
    }

    #[test]
    fn translates_statements_for_either_database() {
        let sql = "UPDATE tasks SET body = $1::jsonb, closed_at = moment($2) WHERE task_id = $3::uuid RETURNING micros(closed_at), name";
        assert_eq!(
            translate(sql, str::to_owned, str::to_owned, false),
            "UPDATE tasks SET body = $1, closed_at = $2 WHERE task_id = $3 RETURNING closed_at, name"
        );
        assert_eq!(
            translate(sql, |inner| format!("<{inner}>"), |inner| format!("[{inner}]"), true),
            "UPDATE tasks SET body = $1::jsonb, closed_at = <$2> WHERE task_id = $3::uuid RETURNING [closed_at], name"
        );
    }

    #[test]
    fn numbers_placeholders() {
        assert_eq!(placeholders(3, 2, "::uuid"), "$3::uuid, $4::uuid");
        let mut select = Select::new("SELECT 1 FROM t");
        select.and("a = ?", [1_u64.into()]);
        select.and("(b < ? OR c > ?::uuid)", [2_u64.into(), 3_u64.into()]);
        assert_eq!(select.sql, "SELECT 1 FROM t WHERE TRUE AND a = $1 AND (b < $2 OR c > $3::uuid)");
        assert_eq!(select.args.len(), 3);
    }
}
