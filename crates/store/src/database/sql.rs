//! One way to speak SQL to both databases: statements are written once, as PostgreSQL has them, and spelled for SQLite.
//!
//! Values travel as arguments, never as text of a statement. Moments are `moment($1)` on the way in and `micros(column)` on the
//! way out; ids and JSON are text on both ways, cast where PostgreSQL has a type of its own for them.

use std::borrow::Cow;

use ade_domain::Moment;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Column, Row as _, TypeInfo, ValueRef};

use super::DatabaseError;

/// The end of a statement that passes by what another transaction is at.
pub(super) const SKIP_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

/// The end of a statement that waits for whoever else is at the same row, and keeps others waiting until the end of its
/// transaction.
pub(super) const ROW_BY_ROW: &str = " FOR NO KEY UPDATE";

/// A value in a statement.
#[derive(Debug, Clone)]
pub(super) enum Arg {
    Text(String),
    MaybeText(Option<String>),
    Int(i64),
    MaybeInt(Option<i64>),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Option<String>> for Arg {
    fn from(text: Option<String>) -> Self {
        Self::MaybeText(text)
    }
}

impl From<Moment> for Arg {
    fn from(moment: Moment) -> Self {
        Self::Int(i64::try_from(moment.micros()).unwrap_or(i64::MAX))
    }
}

impl From<Option<Moment>> for Arg {
    fn from(moment: Option<Moment>) -> Self {
        Self::MaybeInt(moment.map(|moment| i64::try_from(moment.micros()).unwrap_or(i64::MAX)))
    }
}

impl From<Option<u64>> for Arg {
    fn from(number: Option<u64>) -> Self {
        Self::MaybeInt(number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A value as JSON text.
pub(super) fn json(value: &impl Serialize) -> Result<Arg, DatabaseError> {
    let text = serde_json::to_string(value).map_err(|error| DatabaseError::Foreign(error.to_string()))?;
    Ok(Arg::Text(if text.contains("\\u0000") { escapes_without_nul(&text) } else { text }))
}

/// The same for the escape of it in JSON, and not for a backslash that is followed by the same letters.
fn escapes_without_nul(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        told.push_str(before);
        let long = if from.starts_with("\\u") { 6 } else { 2 };
        let (escape, after) = from.split_at(long.min(from.len()));
        told.push_str(if escape == "\\u0000" { "\\ufffd" } else { escape });
        rest = after;
    }
    told.push_str(rest);
    told
}

/// What a statement found: text or whole numbers, in the order in which they were asked for.
#[derive(Debug, Clone)]
pub(super) struct Row(Vec<Cell>);

#[derive(Debug, Clone)]
enum Cell {
    Null,
    Text(String),
    Int(i64),
}

impl Row {
    fn foreign(&self, at: usize) -> DatabaseError {
        DatabaseError::Foreign(format!("column {at} of {self:?} is not what was written there"))
    }

    pub(super) fn text(&self, at: usize) -> Result<&str, DatabaseError> {
        match self.0.get(at) {
            Some(Cell::Text(text)) => Ok(text),
            _ => Err(self.foreign(at)),
        }
    }

    pub(super) fn maybe_text(&self, at: usize) -> Result<Option<&str>, DatabaseError> {
        if matches!(self.0.get(at), Some(Cell::Null)) { Ok(None) } else { self.text(at).map(Some) }
    }

    pub(super) fn number(&self, at: usize) -> Result<u64, DatabaseError> {
        match self.0.get(at) {
            Some(Cell::Int(number)) => u64::try_from(*number).map_err(|_| self.foreign(at)),
            _ => Err(self.foreign(at)),
        }
    }

    pub(super) fn moment(&self, at: usize) -> Result<Moment, DatabaseError> {
        self.number(at).map(Moment::from_micros)
    }

    pub(super) fn maybe_moment(&self, at: usize) -> Result<Option<Moment>, DatabaseError> {
        if matches!(self.0.get(at), Some(Cell::Null)) { Ok(None) } else { self.moment(at).map(Some) }
    }

    pub(super) fn json<T: DeserializeOwned>(&self, at: usize) -> Result<T, DatabaseError> {
        serde_json::from_str(self.text(at)?)
            .map_err(|error| DatabaseError::Foreign(format!("column {at} of {self:?}: {error}")))
    }
}

/// Binds every argument; a macro, because the two databases have different types for the same thing.
macro_rules! bind {
    ($query:expr, $args:expr) => {{
        let mut query = $query;
        for arg in $args {
            query = match arg {
                Arg::Text(text) => query.bind(&*without_nul(text)),
                Arg::MaybeText(text) => query.bind(text.as_deref().map(without_nul).as_deref()),
                Arg::Int(number) => query.bind(number),
                Arg::MaybeInt(number) => query.bind(number),
            };
        }
        query
    }};
}
pub(super) use bind;

/// Conditions that are put together from texts of ours, and arguments.
pub(super) struct Conditions {
    pub(super) sql: String,
    pub(super) args: Vec<Arg>,
}

impl Conditions {
    pub(super) fn new(select: &str) -> Self {
        Self { sql: format!("{select} WHERE TRUE"), args: Vec::new() }
    }

    /// One more; `?` stands for each of the arguments in turn.
    pub(super) fn and(&mut self, condition: &str, args: impl IntoIterator<Item = Arg>) {
        let mut parts = condition.split('?');
        self.sql.push_str(" AND ");
        self.sql.push_str(parts.next().unwrap_or_default());
        for (part, arg) in parts.zip(args) {
            self.args.push(arg);
            self.sql.push_str(&format!("${}{part}", self.args.len()));
        }
    }
}

/// PostgreSQL has no NUL in texts. Names of locks may contain it; what is told of them has the sign for what cannot be shown.
pub(super) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A connection to either.
pub(super) enum Link<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl Link<'_> {
    /// Changes something; how many rows.
    pub(super) async fn run(&mut self, sql: &str, args: &[Arg]) -> Result<u64, DatabaseError> {
        let spelled = AssertSqlSafe(self.spell(sql).into_owned());
        let done = match self {
            Self::Sqlite(link) => {
                bind!(sqlx::query(spelled), args).execute(&mut **link).await?.rows_affected()
            }
            Self::Postgres(link) => {
                bind!(sqlx::query(spelled), args).execute(&mut **link).await?.rows_affected()
            }
        };
        Ok(done)
    }

    /// Finds something.
    pub(super) async fn rows(&mut self, sql: &str, args: &[Arg]) -> Result<Vec<Row>, DatabaseError> {
        let spelled = AssertSqlSafe(self.spell(sql).into_owned());
        match self {
            Self::Sqlite(link) => {
                let rows = bind!(sqlx::query(spelled), args).fetch_all(&mut **link).await?;
                rows.iter().map(sqlite_row).collect()
            }
            Self::Postgres(link) => {
                let rows = bind!(sqlx::query(spelled), args).fetch_all(&mut **link).await?;
                rows.iter().map(postgres_row).collect()
            }
        }
    }

    pub(super) fn spell<'s>(&self, sql: &'s str) -> Cow<'s, str> {
        match self {
            Self::Sqlite(_) => {
                // One writer: nobody else is at the same row.
                let sql =
                    sql.strip_suffix(SKIP_LOCKED).or_else(|| sql.strip_suffix(ROW_BY_ROW)).unwrap_or(sql);
                spell(sql, |inner| inner.to_owned(), |inner| inner.to_owned(), true)
            }
            Self::Postgres(_) => spell(
                sql,
                |inner| format!("to_timestamp({inner}::float8 / 1000000)"),
                |inner| format!("(extract(epoch FROM {inner}) * 1000000)::bigint"),
                false,
            ),
        }
    }
}

/// Puts what a database has for moments in their places, and leaves casts out if it has none.
fn spell(
    sql: &str,
    moment: impl Fn(&str) -> String,
    micros: impl Fn(&str) -> String,
    without_casts: bool,
) -> Cow<'_, str> {
    let mut spelled = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(at) = rest.find(['m', ':']) {
        let (before, from) = rest.split_at(at);
        spelled.push_str(before);
        let call = [("moment(", true), ("micros(", false)]
            .into_iter()
            .find_map(|(word, is_moment)| from.strip_prefix(word).map(|inner| (inner, is_moment)));
        if let Some((inner, is_moment)) = call
            && let Some((inner, after)) = inner.split_once(')')
        {
            spelled.push_str(&if is_moment { moment(inner) } else { micros(inner) });
            rest = after;
        } else if let Some(cast) = from.strip_prefix("::").filter(|_| without_casts) {
            rest = cast.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
        } else {
            let (one, after) = from.split_at(1);
            spelled.push_str(one);
            rest = after;
        }
    }
    spelled.push_str(rest);
    Cow::Owned(spelled)
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
    fn what_no_database_takes_is_not_sent() {
        assert_eq!(escapes_without_nul(r#""a\u0000b\\u0000\"\u00e9""#), r#""a\ufffdb\\u0000\"\u00e9""#);
        assert_eq!(without_nul("a\0"), "a\u{fffd}");
    }

    #[test]
    fn a_statement_is_spelled_for_either_database() {
        let sql = "UPDATE tasks SET body = $1::jsonb, finished_at = moment($2) WHERE task_id = $3::uuid RETURNING micros(finished_at), name";
        let same = |inner: &str| inner.to_owned();
        assert_eq!(
            spell(sql, same, same, true),
            "UPDATE tasks SET body = $1, finished_at = $2 WHERE task_id = $3 RETURNING finished_at, name"
        );
        let spelled = spell(sql, |inner| format!("<{inner}>"), |inner| format!("[{inner}]"), false);
        assert_eq!(
            spelled,
            "UPDATE tasks SET body = $1::jsonb, finished_at = <$2> WHERE task_id = $3::uuid RETURNING [finished_at], name"
        );
    }
}
