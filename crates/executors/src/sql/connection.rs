//! One connection for one operation. It is never pooled: when it is dropped at any point, it is closed, and an open transaction is
//! rolled back. Error messages never contain a password.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_domain::InvalidField;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row as _};

use super::error_code::statement_failure;
use super::statements::is_query;
use crate::limited_process::MIB;
use crate::{Failure, Result};

/// The setting of SQLite for [`MAX_SQLITE_HEAP_BYTES`]. It can only be lowered.
const HEAP_LIMIT: &str = "hard_heap_limit";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for locks of others, where that is limited.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// After this the response to COMMIT counts as lost.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// What SQLite may allocate in this process, for all its connections together.
const MAX_SQLITE_HEAP_BYTES: u64 = 512 * MIB;
/// SQLite instructions between two checks whether the connection was dropped.
const PROGRESS_INTERVAL: i32 = 10_000;
/// The primary result code of SQLite for errors without a code of their own.
const SQLITE_ERROR: &str = "1";

/// Settings that make PostgreSQL release the locks of a suspended worker or a lost machine. They are sent one by one, because older
/// servers do not know all of them.
const SESSION_SETTINGS: [&str; 5] = [
    "SET client_connection_check_interval = '1s'",
    "SET idle_in_transaction_session_timeout = '15s'",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

#[derive(Clone)]
pub(super) enum Target {
    Postgres(Box<PgConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

impl Target {
    pub(super) fn parse(url: &str, path: &str) -> Result<Self, InvalidField> {
        // The error of the parser could quote the password, so only the expected form is named.
        let invalid = |expected: &str| InvalidField::at(path, format!("must have the form {expected}"));
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let expected =
                "postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the password as %XX";
            let options: PgConnectOptions = url.parse().map_err(|_| invalid(expected))?;
            let options = options.application_name("ade").statement_cache_capacity(0);
            return Ok(Self::Postgres(Box::new(options.disable_statement_logging())));
        }
        let expected = "postgres://USER:PASSWORD@HOST:5432/DATABASE or sqlite:///path/to/file";
        if !url.starts_with("sqlite:") || url.contains(":memory:") || url.contains("mode=memory") {
            return Err(invalid(expected));
        }
        let options: SqliteConnectOptions = url.parse().map_err(|_| invalid(expected))?;
        let options = options.create_if_missing(false).busy_timeout(LOCK_TIMEOUT);
        let options = options.pragma(HEAP_LIMIT, MAX_SQLITE_HEAP_BYTES.to_string());
        Ok(Self::Sqlite(Box::new(options.disable_statement_logging())))
    }

    /// The same target with a lower heap limit, and unable to change anything if the statements only read.
    pub(super) fn for_limited_preview(self, heap_bytes: u64, statements: &[String]) -> Self {
        match self {
            Self::Sqlite(options) => {
                let is_read_only = statements.iter().all(|sql| is_query(sql, Dialect::Sqlite));
                let options = options.pragma(HEAP_LIMIT, heap_bytes.to_string());
                // A file that is opened read-only could not be read after a crash of its last writer.
                Self::Sqlite(Box::new(options.pragma("query_only", if is_read_only { "ON" } else { "OFF" })))
            }
            postgres @ Self::Postgres(_) => postgres,
        }
    }

    /// The size of the database file and of its write-ahead log; 0 if they do not exist, and for servers.
    pub(super) fn database_bytes(&self) -> u64 {
        let Self::Sqlite(options) = self else { return 0 };
        let mut log = options.get_filename().as_os_str().to_owned();
        log.push("-wal");
        let bytes = |path: &OsStr| std::fs::metadata(path).map_or(0, |file| file.len());
        bytes(options.get_filename().as_os_str()).saturating_add(bytes(&log))
    }

    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// The user name. SQLite has none.
    pub(super) fn role(&self) -> Option<&str> {
        match self {
            Self::Postgres(options) => Some(options.get_username()),
            Self::Sqlite(_) => None,
        }
    }

    /// A name without secrets, for people.
    fn display_name(&self) -> String {
        match self {
            Self::Postgres(options) => format!("PostgreSQL at {}:{}", options.get_host(), options.get_port()),
            Self::Sqlite(options) => format!("SQLite in {}", options.get_filename().display()),
        }
    }

    pub(super) async fn connect(&self) -> Result<SqlConnection> {
        let unavailable = |reason: String| {
            Failure::retryable(format!("cannot connect to {}: {reason}", self.display_name()))
        };
        let seconds = CONNECT_TIMEOUT.as_secs();
        tokio::time::timeout(CONNECT_TIMEOUT, self.open())
            .await
            .map_err(|_| unavailable(format!("no answer within {seconds} seconds")))?
            .map_err(|error| unavailable(Failure::from(error).message))
    }

    async fn open(&self) -> Result<SqlConnection, sqlx::Error> {
        match self {
            Self::Postgres(options) => {
                let mut connection = options.connect().await?;
                for setting in SESSION_SETTINGS {
                    match sqlx::raw_sql(setting).execute(&mut connection).await {
                        Err(sqlx::Error::Database(error)) => {
                            tracing::debug!(setting, %error, "session setting not supported");
                        }
                        other => {
                            other?;
                        }
                    }
                }
                Ok(SqlConnection::Postgres(Box::new(connection), 0))
            }
            Self::Sqlite(options) => {
                let mut connection = options.connect().await?;
                let interrupt = InterruptOnDrop::default();
                let is_interrupted = Arc::clone(&interrupt.0);
                let mut handle = connection.lock_handle().await?;
                handle
                    .set_progress_handler(PROGRESS_INTERVAL, move || !is_interrupted.load(Ordering::Relaxed));
                drop(handle);
                Ok(SqlConnection::Sqlite(Box::new(connection), interrupt))
            }
        }
    }
}

/// Interrupts a running SQLite statement, which runs on its own thread and would not notice that its connection was dropped.
#[derive(Debug, Default)]
pub(super) struct InterruptOnDrop(Arc<AtomicBool>);

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) enum SqlConnection {
    /// With the id of its transaction. SQLite does not number its transactions.
    Postgres(Box<PgConnection>, i64),
    Sqlite(Box<SqliteConnection>, InterruptOnDrop),
}

/// Numbers of rows, including those that triggers, cascades and functions change.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangedRows {
    pub(super) total: u64,
    /// As far as the database tells: SQLite does not.
    pub(super) deleted: u64,
}

/// Runs the same code on either database.
macro_rules! on_connection {
    ($sql_connection:expr, $connection:ident => $body:expr) => {
        match $sql_connection {
            SqlConnection::Postgres($connection, _) => {
                let $connection = &mut **$connection;
                $body
            }
            SqlConnection::Sqlite($connection, _) => {
                let $connection = &mut **$connection;
                $body
            }
        }
    };
}

pub(super) use on_connection;

impl SqlConnection {
    async fn execute(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        on_connection!(self, connection => sqlx::raw_sql(sql).execute(connection).await.map(drop))
    }

    /// Begins a transaction. SQLite takes the write lock at once if it `is_immediate`, otherwise when it is needed.
    pub(super) async fn begin(&mut self, is_immediate: bool) -> Result<()> {
        let is_sqlite = matches!(self, Self::Sqlite(..));
        self.execute(if is_sqlite && is_immediate { "BEGIN IMMEDIATE" } else { "BEGIN" }).await?;
        if let Self::Postgres(connection, transaction) = self {
            let id = sqlx::query_scalar("SELECT pg_catalog.txid_current()");
            *transaction = id.fetch_one(&mut **connection).await?;
        }
        Ok(())
    }

    /// Begins a transaction of PostgreSQL in which nothing can be changed.
    pub(super) async fn begin_read_only(&mut self) -> Result<()> {
        Ok(self.execute("BEGIN TRANSACTION READ ONLY").await?)
    }

    /// Plans a statement without executing it, and returns the plan as JSON. An error leaves the transaction as it was. The
    /// statement is prepared, so that PostgreSQL rejects several in one, and follows a list of options, so that it cannot begin
    /// with options of its own, such as ANALYZE, which would execute it.
    pub(super) async fn explain(&mut self, sql: &str) -> Result<String> {
        const PREFIX: &str = "EXPLAIN (ANALYZE false, FORMAT json) ";
        let Self::Postgres(connection, _) = self else {
            return Err(Failure::permanent("only PostgreSQL explains statements"));
        };
        sqlx::raw_sql("SAVEPOINT ade_explain").execute(&mut **connection).await?;
        let query = sqlx::query(AssertSqlSafe(format!("{PREFIX}{sql}"))).persistent(false);
        let plan = query.fetch_one(&mut **connection).await.and_then(|row| row.try_get_unchecked(0));
        let plan = plan.map_err(|error| statement_failure(error, PREFIX.len()));
        // After a lost connection this fails as well.
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT ade_explain").execute(&mut **connection).await?;
        plan
    }

    /// Whether the transaction that was begun is still the current one.
    pub(super) async fn is_in_transaction(&mut self) -> Result<bool> {
        match self {
            Self::Postgres(connection, transaction) => {
                let query = sqlx::query_scalar("SELECT pg_catalog.txid_current_if_assigned()");
                let current: Option<i64> = query.fetch_one(&mut **connection).await?;
                Ok(current == Some(*transaction))
            }
            // Transactions of SQLite cannot be nested, and a deferred BEGIN has no other reason for this code.
            Self::Sqlite(..) => match self.execute("BEGIN").await {
                Ok(()) => Ok(false),
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(SQLITE_ERROR) => {
                    Ok(true)
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Interrupts the running statement of SQLite.
    pub(super) fn interrupt(&self) {
        if let Self::Sqlite(_, interrupt) = self {
            interrupt.0.store(true, Ordering::Relaxed);
        }
    }

    /// Limits the duration of each statement and its wait for locks. SQLite waits for locks as set when connecting, and is
    /// interrupted when the connection is dropped.
    pub(super) async fn set_timeouts(&mut self, statement: Option<Duration>, lock: Duration) -> Result<()> {
        let Self::Postgres(connection, _) = self else { return Ok(()) };
        let millis = |time: Duration| time.as_millis().max(1).to_string();
        let query = sqlx::query(
            "SELECT pg_catalog.set_config('statement_timeout', $1, true), pg_catalog.set_config('lock_timeout', $2, true)",
        );
        let query = query.bind(statement.map_or_else(|| "0".to_owned(), millis)).bind(millis(lock));
        query.execute(&mut **connection).await?;
        Ok(())
    }

    /// Runs one statement and returns the number of affected rows. It is prepared, so that PostgreSQL rejects several in one.
    pub(super) async fn run_statement(&mut self, sql: &str) -> Result<u64> {
        let changes_before = self.total_changes().await?;
        let affected = on_connection!(self, connection => {
            sqlx::query(AssertSqlSafe(sql)).persistent(false).execute(connection).await?.rows_affected()
        });
        // After a statement that changes no rows, SQLite still reports the count of the previous one.
        let is_unchanged = changes_before.is_some() && changes_before == self.total_changes().await?;
        Ok(if is_unchanged { 0 } else { affected })
    }

    /// How many rows this connection of SQLite has changed so far.
    async fn total_changes(&mut self) -> Result<Option<i64>> {
        let Self::Sqlite(connection, _) = self else { return Ok(None) };
        Ok(Some(sqlx::query_scalar("SELECT total_changes()").fetch_one(&mut **connection).await?))
    }

    /// What has been changed so far, on PostgreSQL by this transaction; none if the database does not count it. Statements may
    /// change the search path, so nothing here depends on it.
    pub(super) async fn changed_rows(&mut self) -> Result<Option<ChangedRows>> {
        let Self::Postgres(connection, _) = self else {
            let total = self.total_changes().await?;
            return Ok(total.map(|total| ChangedRows { total: total.unsigned_abs(), deleted: 0 }));
        };
        let query = sqlx::query(
            "SELECT pg_catalog.current_setting('track_counts'), pg_catalog.int8(pg_catalog.sum(n_tup_ins)), \
             pg_catalog.int8(pg_catalog.sum(n_tup_upd)), pg_catalog.int8(pg_catalog.sum(n_tup_del)) \
             FROM pg_catalog.pg_stat_xact_user_tables",
        );
        let row = query.persistent(false).fetch_one(&mut **connection).await?;
        let count = |column: usize| {
            row.try_get::<Option<i64>, _>(column).map(|count| count.unwrap_or_default().unsigned_abs())
        };
        let (inserted, updated, deleted) = (count(1)?, count(2)?, count(3)?);
        let is_counted = row.try_get::<String, _>(0)? == "on";
        let total = inserted.saturating_add(updated).saturating_add(deleted);
        Ok(is_counted.then_some(ChangedRows { total, deleted }))
    }

    /// Commits and closes the connection. After an error the transaction may be committed nevertheless.
    pub(super) async fn commit(mut self) -> Result<()> {
        let seconds = COMMIT_TIMEOUT.as_secs();
        tokio::time::timeout(COMMIT_TIMEOUT, self.execute("COMMIT"))
            .await
            .map_err(|_| Failure::retryable(format!("no response to COMMIT within {seconds} seconds")))??;
        self.close().await;
        Ok(())
    }

    /// Rolls the transaction back and closes the connection.
    pub(super) async fn roll_back_and_close(mut self) {
        // Closing rolls back as well, but without waiting for it.
        if let Ok(Err(error)) = tokio::time::timeout(LOCK_TIMEOUT, self.execute("ROLLBACK")).await {
            tracing::debug!(%error, "cannot roll back explicitly; closing the connection");
        }
        self.close().await;
    }

    /// Closes the connection with a message to the server. Dropping it closes it without one.
    async fn close(self) {
        let close = async {
            match self {
                Self::Postgres(connection, _) => connection.close().await,
                // Dropping the interrupt earlier would interrupt the close.
                Self::Sqlite(connection, _interrupt) => connection.close().await,
            }
        };
        if let Ok(Err(error)) = tokio::time::timeout(LOCK_TIMEOUT, close).await {
            tracing::debug!(%error, "cannot close database connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check of the statements by keywords cannot find everything.
    #[tokio::test(flavor = "multi_thread")]
    async fn detects_end_of_transaction() {
        let server = ade_testkit::Postgres::start().expect("starts");
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, b"").expect("written");
        for url in [server.url("postgres"), format!("sqlite://{}", file.display())] {
            let target = Target::parse(&url, "url").expect("valid");
            for statements in [&["COMMIT"][..], &["ROLLBACK"], &["COMMIT", "BEGIN"]] {
                let mut connection = target.connect().await.expect("connects");
                connection.begin(true).await.expect("begun");
                connection.run_statement("CREATE TABLE IF NOT EXISTS a (b INTEGER)").await.expect("created");
                assert_eq!(connection.is_in_transaction().await, Ok(true), "{url}");
                for statement in statements {
                    connection.run_statement(statement).await.expect("runs");
                }
                // On SQLite a new transaction is not recognized, so the executor checks after each statement.
                let is_detected = statements.len() == 1 || target.dialect() == Dialect::Postgres;
                let is_inside = connection.is_in_transaction().await;
                assert_eq!(is_inside, Ok(!is_detected), "{statements:?} on {url}");
                connection.roll_back_and_close().await;
            }
        }
    }
}
