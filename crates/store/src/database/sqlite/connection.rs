//! A connection to SQLite: its settings, its schema, and statements. A text that is not valid, and any value of a type that ade never
//! writes, is read as such, and never as something else.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, TransactionBehavior, ffi, params_from_iter};

use crate::database::numbering::LogEnd;
use crate::database::sql::{Arg, Cell, Row, integer, replace_nul};
use crate::database::{DatabaseError, Result};

/// The statements of each migration, in order. A released migration never changes.
const MIGRATIONS: [&str; 10] = [
    include_str!("../schema/sqlite.sql"),
    include_str!("../schema/sqlite_events.sql"),
    include_str!("../schema/sqlite_event_retention.sql"),
    include_str!("../schema/sqlite_lock_requests.sql"),
    include_str!("../schema/sqlite_webhooks.sql"),
    include_str!("../schema/sqlite_email.sql"),
    include_str!("../schema/sqlite_agent_labels.sql"),
    include_str!("../schema/sqlite_audit_objects.sql"),
    include_str!("../schema/sqlite_raises.sql"),
    include_str!("../schema/sqlite_risk_labels.sql"),
];
/// The version of the schema after the first migration. Lower ones are those of unreleased builds.
const FIRST_VERSION: u32 = 2;
/// A checkpoint of the write-ahead log runs after 8000 pages: many, because most pages are written many times. A commit survives a
/// power failure, not only the death of the process.
const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
                        PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 8000";
/// Prepared statements per connection; more than are in frequent use.
const STATEMENT_CACHE: usize = 200;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(in crate::database) struct SqliteConnection {
    connection: Connection,
    /// Of the writer only.
    pub(in crate::database) log_end: LogEnd,
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        const UNIQUE: [i32; 3] =
            [ffi::SQLITE_CONSTRAINT_UNIQUE, ffi::SQLITE_CONSTRAINT_PRIMARYKEY, ffi::SQLITE_CONSTRAINT_ROWID];
        match &error {
            rusqlite::Error::SqliteFailure(code, message) if UNIQUE.contains(&code.extended_code) => {
                Self::AlreadyExists { what: message.clone().unwrap_or_default() }
            }
            rusqlite::Error::SqliteFailure(code, _)
                if matches!(code.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) =>
            {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// NULL and texts are bound without a copy, unless a NUL must be replaced.
impl ToSql for Arg {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let number = match self {
            Self::Text(Some(text)) | Self::Uuid(Some(text)) => {
                return Ok(match replace_nul(text) {
                    std::borrow::Cow::Borrowed(text) => ToSqlOutput::from(text),
                    std::borrow::Cow::Owned(text) => ToSqlOutput::from(text),
                });
            }
            Self::Text(None) | Self::Uuid(None) => None,
            Self::Int(number) => *number,
            Self::Time(moment) => moment.map(|moment| integer(moment.micros())),
        };
        Ok(ToSqlOutput::Owned(number.map_or(Value::Null, Value::Integer)))
    }
}

impl SqliteConnection {
    /// Opens the database for writing, creates the file if it is missing, and migrates the schema.
    pub(super) fn open_writer(file: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut opened = Self::open(file, flags)?;
        opened.connection.execute_batch(SETTINGS)?;
        migrate(&mut opened.connection, &MIGRATIONS)?;
        Ok(opened)
    }

    pub(super) fn open_reader(file: &Path) -> Result<Self> {
        Self::open(file, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    fn open(file: &Path, flags: OpenFlags) -> Result<Self> {
        let connection = Connection::open_with_flags(file, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
        Ok(Self { connection, log_end: LogEnd::default() })
    }

    /// Executes a statement, and returns how many rows it affected.
    pub(in crate::database) fn execute(&self, sql: &str, args: &[Arg]) -> Result<u64> {
        let rows = self.connection.prepare_cached(sql)?.execute(params_from_iter(args))?;
        Ok(rows as u64)
    }

    pub(in crate::database) fn query(&self, sql: &str, args: &[Arg]) -> Result<Vec<Row>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(args))?;
        let mut read = Vec::new();
        while let Some(row) = rows.next()? {
            let cells = (0..columns).map(|at| Ok(cell(row.get_ref(at)?)));
            read.push(Row(cells.collect::<rusqlite::Result<_>>()?));
        }
        Ok(read)
    }

    /// Begins a transaction that may write. Nobody else writes until it ends.
    pub(super) fn begin(&self) -> Result<()> {
        // An earlier one that could not be rolled back.
        self.roll_back()?;
        self.execute("BEGIN IMMEDIATE", &[]).map(drop)
    }

    pub(super) fn roll_back(&self) -> Result<()> {
        // Some errors end the transaction by themselves.
        if self.connection.is_autocommit() { Ok(()) } else { self.execute("ROLLBACK", &[]).map(drop) }
    }

    pub(super) fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| error.into())
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Int(number),
        ValueRef::Text(text) => {
            std::str::from_utf8(text).map_or(Cell::Other, |text| Cell::Text(text.to_owned()))
        }
        ValueRef::Real(_) | ValueRef::Blob(_) => Cell::Other,
    }
}

/// Applies the migrations that are missing, all or none.
fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let applied: u32 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = (FIRST_VERSION..).zip(migrations);
    let tables: u32 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if applied < FIRST_VERSION && tables > 0 {
        let reason = "an unreleased version of ade made this database; start with a new data folder";
        return Err(DatabaseError::Unavailable(reason.to_owned()));
    }
    if known.clone().all(|(version, _)| version < applied) {
        return Err(DatabaseError::Unavailable("a newer version of ade has changed its schema".to_owned()));
    }
    for (version, sql) in known.filter(|(version, _)| *version > applied) {
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", version)?;
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrates_databases_of_earlier_versions_and_keeps_their_data() {
        const SECOND: &str = "ALTER TABLE users ADD COLUMN note text NOT NULL DEFAULT 'none'";
        let folder = tempfile::tempdir().expect("folder");
        let mut database =
            SqliteConnection::open_writer(&folder.path().join("db")).expect("opened").connection;
        let insert = "INSERT INTO users (user_id, active, revision, body) VALUES ('ann', 1, 1, '{}')";
        database.execute(insert, []).expect("inserted");
        let later = [&MIGRATIONS[..], &[SECOND]].concat();
        for _ in 0..2 {
            migrate(&mut database, &later).expect("migrated");
            let users = "SELECT user_id || ' ' || note FROM users";
            let users: String = database.query_row(users, [], |row| row.get(0)).expect("read");
            assert_eq!(users, "ann none");
        }
        let refused = migrate(&mut database, &MIGRATIONS).expect_err("of a newer version");
        assert!(refused.to_string().contains("a newer version of ade"), "{refused}");
        let broken = [&later[..], &["ALTER TABLE users ADD COLUMN other text; SELECT broken"]].concat();
        migrate(&mut database, &broken).expect_err("broken");
        migrate(&mut database, &later).expect("as before");
    }
}
