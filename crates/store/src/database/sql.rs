//! One SQL dialect for both databases: statements are written once, for PostgreSQL, and translated for SQLite.
//!
//! Values are always bound as arguments and never become part of a statement. Arguments have types, which determine how PostgreSQL
//! reads their placeholders; timestamps are read as `micros(column)`, and ids as text. JSON is text too; a condition on a field of it
//! converts it, as in `body::jsonb->>'priority'`.

use std::borrow::Cow;
use std::fmt::Write as _;

use ade_domain::Moment;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::numbering::LogEnd;
use super::sqlite::SqliteConnection;
use super::{DatabaseError, Result, postgres};

/// Ends a statement that skips rows which another transaction has locked.
pub(super) const SKIP_LOCKED: &str = " FOR NO KEY UPDATE SKIP LOCKED";

/// Ends a statement that locks the rows it finds until the end of the transaction.
pub(super) const LOCK_ROWS: &str = " FOR NO KEY UPDATE";

/// A bound argument of a statement; `None` is NULL.
#[derive(Debug, Clone)]
pub enum Arg {
    Text(Option<String>),
    Int(Option<i64>),
    Time(Option<Moment>),
    Uuid(Option<String>),
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

impl From<Moment> for Arg {
    fn from(moment: Moment) -> Self {
        Self::Time(Some(moment))
    }
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self::Int(Some(integer(number)))
    }
}

impl From<bool> for Arg {
    fn from(flag: bool) -> Self {
        Self::Int(Some(flag.into()))
    }
}

pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// An id that PostgreSQL stores as a UUID.
pub(super) fn uuid(id: &str) -> Arg {
    Arg::Uuid(Some(id.to_owned()))
}

pub(super) fn json(value: &impl Serialize) -> Result<Arg> {
    optional_json(Some(value))
}

pub(super) fn optional_json(value: Option<&impl Serialize>) -> Result<Arg> {
    Ok(Arg::Text(value.map(json_text).transpose()?))
}

pub(super) fn json_text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
    Ok(replace_nul_escapes(text))
}

/// Replaces the escape of NUL in JSON text, but not an escaped backslash that is followed by `u0000`.
pub(super) fn replace_nul_escapes(text: String) -> String {
    if !text.contains("\\u0000") {
        return text;
    }
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        replaced.push_str(before);
        let length = if from.starts_with("\\u") { 6 } else { 2 };
        let (escape, after) = from.split_at(length.min(from.len()));
        replaced.push_str(if escape == "\\u0000" { "\u{fffd}" } else { escape });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

/// PostgreSQL cannot store NUL in text, but lock names may contain it: it becomes the replacement character.
pub(super) fn replace_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A row of a result, by the position of the column.
#[derive(Debug, Clone)]
pub(super) struct Row(pub(super) Vec<Cell>);

#[derive(Debug, Clone)]
pub(super) enum Cell {
    Null,
    Text(String),
    Int(i64),
    /// Of a type that ade never writes.
    Other,
}

/// A type that a column is read as.
pub(super) trait FromCell: Sized {
    /// `None` if the cell is of another type.
    fn from_cell(cell: &Cell) -> Option<Self>;
}

impl FromCell for String {
    fn from_cell(cell: &Cell) -> Option<Self> {
        if let Cell::Text(text) = cell { Some(text.clone()) } else { None }
    }
}

impl FromCell for u64 {
    fn from_cell(cell: &Cell) -> Option<Self> {
        if let Cell::Int(number) = cell { (*number).try_into().ok() } else { None }
    }
}

impl FromCell for i64 {
    fn from_cell(cell: &Cell) -> Option<Self> {
        if let Cell::Int(number) = cell { Some(*number) } else { None }
    }
}

impl FromCell for bool {
    fn from_cell(cell: &Cell) -> Option<Self> {
        u64::from_cell(cell).map(|flag| flag > 0)
    }
}

impl FromCell for Moment {
    fn from_cell(cell: &Cell) -> Option<Self> {
        u64::from_cell(cell).map(Self::from_micros)
    }
}

impl<T: FromCell> FromCell for Option<T> {
    fn from_cell(cell: &Cell) -> Option<Self> {
        if let Cell::Null = cell { Some(None) } else { T::from_cell(cell).map(Some) }
    }
}

impl Row {
    pub(super) fn get<T: FromCell>(&self, at: usize) -> Result<T> {
        let value = self.0.get(at).and_then(T::from_cell);
        let corrupt = || format!("column {at} of {self:?} has an unexpected type");
        value.ok_or_else(|| DatabaseError::Corrupt(corrupt()))
    }

    /// The first two columns.
    pub(super) fn pair<A: FromCell, B: FromCell>(&self) -> Result<(A, B)> {
        Ok((self.get(0)?, self.get(1)?))
    }

    /// Parses a column of JSON; NULL is read as `null`.
    pub(super) fn json<T: DeserializeOwned>(&self, at: usize) -> Result<T> {
        let text = match self.0.get(at) {
            Some(Cell::Text(text)) => text,
            Some(Cell::Null) => "null",
            _ => "",
        };
        let corrupt = |error| DatabaseError::Corrupt(format!("column {at} of {self:?}: {error}"));
        serde_json::from_str(text).map_err(corrupt)
    }

    /// Parses the first column, a stored document.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T> {
        self.json(0)
    }
}

/// Adds the placeholders of a list: `$3, $4` for two values that begin with argument 3.
pub(super) fn push_placeholders(sql: &mut String, first: usize, count: usize) {
    for number in first..first + count {
        let separator = if number == first { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(sql, "{separator}${number}");
    }
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
        let mut parts = condition.split('?');
        self.sql.push_str(parts.next().unwrap_or_default());
        for (part, arg) in parts.zip(args) {
            self.args.push(arg);
            // Writing to a string cannot fail.
            let _ = write!(self.sql, "${}{part}", self.args.len());
        }
    }

    /// Requires that a column has one of some values.
    pub(super) fn and_in(&mut self, column: &str, values: impl ExactSizeIterator<Item = Arg>) {
        match values.len() {
            0 => self.and("FALSE", []),
            count => self.and(&format!("{column} IN ({})", vec!["?"; count].join(", ")), values),
        }
    }

    /// Adds a condition with one argument, if there is a value for it.
    pub(super) fn and_if(&mut self, condition: &str, value: Option<impl Into<Arg>>) {
        if let Some(value) = value {
            self.and(condition, [value.into()]);
        }
    }
}

/// A connection to either database. On SQLite nothing ever waits: a future of these methods is ready when it is first polled.
pub(super) enum SqlConnection<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

impl SqlConnection<'_> {
    /// What the writer of SQLite knows about the end of the log; none on PostgreSQL, where processes share it.
    pub(super) fn log_end(&mut self) -> Option<&mut LogEnd> {
        match self {
            Self::Sqlite(connection) => Some(&mut connection.log_end),
            Self::Postgres(_) => None,
        }
    }

    /// Executes a statement, and returns how many rows it affected.
    pub(super) async fn execute(&mut self, sql: &str, args: &[Arg]) -> Result<u64> {
        match self {
            Self::Sqlite(connection) => connection.execute(&for_sqlite(sql), args),
            Self::Postgres(connection) => {
                postgres::execute_statement(connection, for_postgres(sql, args, 0), args).await
            }
        }
    }

    /// The rows of a result. There are none if an argument is not a valid UUID: PostgreSQL would reject it, and nothing has such an id.
    pub(super) async fn query(&mut self, sql: &str, args: &[Arg]) -> Result<Vec<Row>> {
        let is_invalid = |arg: &Arg| matches!(arg, Arg::Uuid(Some(id)) if Uuid::parse_str(id).is_err());
        if args.iter().any(is_invalid) {
            return Ok(Vec::new());
        }
        match self {
            Self::Sqlite(connection) => connection.query(&for_sqlite(sql), args),
            Self::Postgres(connection) => postgres::query(connection, for_postgres(sql, args, 0), args).await,
        }
    }

    /// The first row of a result, if there is one.
    pub(super) async fn query_first(&mut self, sql: &str, args: &[Arg]) -> Result<Option<Row>> {
        Ok(self.query(sql, args).await?.into_iter().next())
    }

    /// The number in the first column of the first row; 0 if there is no row.
    pub(super) async fn query_number(&mut self, sql: &str, args: &[Arg]) -> Result<u64> {
        self.query_first(sql, args).await?.map_or(Ok(0), |row| row.get(0))
    }
}

/// A statement for PostgreSQL, with `offset` added to the number of every placeholder.
pub(super) fn for_postgres(sql: &str, args: &[Arg], offset: usize) -> String {
    translate(sql, args, offset, true)
}

fn for_sqlite(sql: &str) -> String {
    // One writer never meets a locked row.
    let unlocked = sql.strip_suffix(SKIP_LOCKED).or_else(|| sql.strip_suffix(LOCK_ROWS)).unwrap_or(sql);
    let translated = translate(unlocked, &[], 0, false);
    // Rows of the log get their numbers when they are inserted, in that order.
    if translated.contains("insert_seq") { translated.replace("insert_seq", "number") } else { translated }
}

/// Renumbers placeholders, converts arguments and `micros(…)` to the types of PostgreSQL, and removes casts for SQLite.
fn translate(sql: &str, args: &[Arg], offset: usize, is_postgres: bool) -> String {
    let mut translated = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(at) = rest.find(['$', ':', 'm']) {
        let (before, from) = rest.split_at(at);
        translated.push_str(before);
        let word_len = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
        let micros = from.strip_prefix("micros(").and_then(|inner| inner.split_once(')'));
        rest = if let Some((column, after)) = micros {
            if is_postgres {
                // Writing to a string cannot fail.
                let _ = write!(translated, "(extract(epoch FROM {column}) * 1000000)::bigint");
            } else {
                translated.push_str(column);
            }
            after
        } else if let Some(from) = from.strip_prefix('$') {
            let (digits, after) = from.split_at(word_len(from));
            if is_postgres {
                let number: usize = digits.parse().unwrap_or_default();
                push_placeholder(&mut translated, number + offset, args.get(number.wrapping_sub(1)));
            } else {
                translated.push('?');
                translated.push_str(digits);
            }
            after
        } else if let Some(cast) = from.strip_prefix("::").filter(|_| !is_postgres) {
            cast.split_at(word_len(cast)).1
        } else {
            let (first, after) = from.split_at(1);
            translated.push_str(first);
            after
        };
    }
    translated.push_str(rest);
    translated
}

/// Adds a placeholder, converted to the type of its argument.
fn push_placeholder(sql: &mut String, number: usize, arg: Option<&Arg>) {
    // Writing to a string cannot fail.
    let _ = match arg {
        Some(Arg::Time(_)) => write!(sql, "to_timestamp(${number}::float8 / 1000000)"),
        Some(Arg::Uuid(_)) => write!(sql, "${number}::uuid"),
        _ => write!(sql, "${number}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_nul_characters() {
        let replaced = replace_nul_escapes(r#""a\u0000b\\u0000\"\u00e9""#.to_owned());
        assert_eq!(replaced, "\"a\u{fffd}b\\\\u0000\\\"\\u00e9\"");
        assert_eq!(replace_nul("a\0"), "a\u{fffd}");
    }

    #[test]
    fn translates_statements_for_either_database() {
        let sql = "UPDATE tasks SET body = $1, closed_at = $2, name = $4 WHERE task_id = $3 \
                   RETURNING micros(closed_at), task_id::text";
        let args = [Arg::Text(None), Arg::Time(None), uuid("1"), "x".into()];
        assert_eq!(
            for_sqlite(&format!("{sql}, insert_seq{LOCK_ROWS}")),
            "UPDATE tasks SET body = ?1, closed_at = ?2, name = ?4 WHERE task_id = ?3 RETURNING closed_at, task_id, number"
        );
        assert_eq!(
            for_postgres(sql, &args, 10),
            "UPDATE tasks SET body = $11, closed_at = to_timestamp($12::float8 / 1000000), name = $14 \
             WHERE task_id = $13::uuid RETURNING (extract(epoch FROM closed_at) * 1000000)::bigint, task_id::text"
        );
    }

    #[test]
    fn numbers_placeholders() {
        let mut list = String::new();
        push_placeholders(&mut list, 3, 2);
        assert_eq!(list, "$3, $4");
        let mut select = Select::new("SELECT 1 FROM t");
        select.and_if("a = ?", Some(1_u64));
        select.and_if("d = ?", None::<u64>);
        select.and("(b < ? OR c > ?)", [2_u64.into(), 3_u64.into()]);
        assert_eq!(select.sql, "SELECT 1 FROM t WHERE TRUE AND a = $1 AND (b < $2 OR c > $3)");
        assert_eq!(select.args.len(), 3);
    }
}
