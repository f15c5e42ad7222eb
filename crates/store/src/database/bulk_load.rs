//! Loads many tasks at once, in large transactions: row for row what as many commits and the sequencer would have written. Only
//! `ade bench` uses it, to fill a database. Nobody else may write meanwhile: the audit chain continues from where it ended at the
//! start, and on SQLite a crash leaves a file that must be discarded.

use std::fmt::Write as _;
use std::path::Path;

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, ChainHead, append};
use ade_domain::event::Event;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::audit_log;
use super::commit::{approval_columns, audit_columns, event_columns, task_columns};
use super::sql::{Arg, SqlConnection, bind, replace_nul};
use super::tasks::StoredTask;
use super::{Database, DatabaseError, postgres, sqlite};

/// Rows per statement on SQLite.
const ROWS_PER_INSERT: usize = 64;
/// The cache of SQLite while it is filled: negative, because it is in KiB and not in pages.
const CACHE_SIZE: &str = "-1048576";

/// A table with its columns, in the order in which the rows are written.
struct Table {
    name: &'static str,
    /// Name, and whether it is a timestamp.
    columns: &'static [(&'static str, bool)],
}

const TABLES: [Table; 5] = [
    Table {
        name: "tasks",
        columns: &[
            ("task_id", false),
            ("state", false),
            ("type", false),
            ("author_id", false),
            ("revision", false),
            ("approval_expires_at", true),
            ("finished_at", true),
            ("body", false),
            ("work_kind", false),
            ("work_queue", false),
            ("work_priority", false),
            ("ready_at", true),
            ("attempt", false),
            ("lease_until", true),
            ("closed_at", true),
        ],
    },
    Table { name: "task_labels", columns: &[("kind", false), ("label", false), ("task_id", false)] },
    Table {
        name: "approvals",
        columns: &[
            ("approval_id", false),
            ("task_id", false),
            ("reviewer_id", false),
            ("status", false),
            ("score", false),
            ("created_at", true),
            ("due_at", true),
            ("responded_at", true),
            ("revision", false),
            ("body", false),
        ],
    },
    Table {
        name: "audit",
        columns: &[
            ("entry_id", false),
            ("at", true),
            ("actor", false),
            ("action", false),
            ("task_id", false),
            ("body", false),
            ("number", false),
            ("previous_hash", false),
            ("entry_hash", false),
        ],
    },
    Table { name: "events", columns: &[("event_id", false), ("body", false), ("number", false)] },
];

/// Where the audit chain and the event numbers continue.
#[derive(Debug, Clone, Copy)]
pub struct BulkChain {
    head: ChainHead,
    last_event: u64,
}

/// Rows of each table, ready to be written.
#[derive(Debug, Default)]
pub struct BulkRows([Vec<Vec<Arg>>; 5]);

impl BulkChain {
    /// The rows of tasks, and of audit entries and events in the order in which they are to be numbered.
    pub fn rows(
        &mut self,
        tasks: &[StoredTask],
        entries: Vec<AuditBody>,
        events: &[Event],
    ) -> Result<BulkRows, DatabaseError> {
        let mut rows = BulkRows::default();
        let [task_rows, label_rows, approval_rows, audit_rows, event_rows] = &mut rows.0;
        for task in tasks {
            task_rows.push(task_columns(task)?);
            for (kind, label) in task.labels() {
                label_rows.push(vec![kind.into(), label.into(), task.task_id.as_str().into()]);
            }
            for approval in &task.approvals {
                approval_rows.push(approval_columns(approval)?);
            }
        }
        for body in entries {
            let mut columns = audit_columns(&body)?;
            let entry = append(self.head, body).map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
            self.head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
            columns.push(entry.number.into());
            columns.push(entry.previous_hash.to_string().into());
            columns.push(entry.entry_hash.to_string().into());
            audit_rows.push(columns);
        }
        for event in events {
            self.last_event += 1;
            let mut columns = event_columns(event)?;
            columns.push(self.last_event.into());
            event_rows.push(columns);
        }
        Ok(rows)
    }
}

/// Writes rows without the checks of a commit.
#[derive(Debug)]
pub struct BulkLoader(LoaderConnection);

#[derive(Debug)]
enum LoaderConnection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl BulkLoader {
    /// Opens the SQLite database of a data folder that no process uses. Nothing is synced before [`finish`](Self::finish).
    pub async fn open_sqlite(folder: &Path) -> Result<Self, DatabaseError> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join(sqlite::FILE))
            .create_if_missing(true)
            .foreign_keys(false)
            .busy_timeout(sqlite::BUSY_TIMEOUT)
            .journal_mode(SqliteJournalMode::Off)
            .synchronous(SqliteSynchronous::Off)
            .locking_mode(SqliteLockingMode::Exclusive)
            .pragma("cache_size", CACHE_SIZE);
        let mut connection = options.connect().await?;
        let migrated = super::migrator(super::SQLITE_MIGRATIONS).run(&mut connection).await;
        migrated.map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        Ok(Self(LoaderConnection::Sqlite(connection)))
    }

    pub async fn open_postgres(url: &str) -> Result<Self, DatabaseError> {
        drop(Database::open_postgres(url).await?);
        Ok(Self(LoaderConnection::Postgres(postgres::parse_url(url)?.connect().await?)))
    }

    fn connection(&mut self) -> SqlConnection<'_> {
        match &mut self.0 {
            LoaderConnection::Sqlite(connection) => SqlConnection::Sqlite(connection),
            LoaderConnection::Postgres(connection) => SqlConnection::Postgres(connection),
        }
    }

    /// Where the numbers continue. Everything that is committed must be numbered.
    pub async fn chain(&mut self) -> Result<BulkChain, DatabaseError> {
        let connection = &mut self.connection();
        let head = audit_log::head(connection).await?;
        Ok(BulkChain { head, last_event: audit_log::last_event(connection).await? })
    }

    /// Creates the partition of the audit log for the month of `at`. Does nothing on SQLite.
    pub async fn create_audit_partition(&mut self, at: Moment) -> Result<(), DatabaseError> {
        if matches!(self.0, LoaderConnection::Sqlite(_)) {
            return Ok(());
        }
        let sql = "SELECT audit_create_partitions(moment($1))";
        self.connection().query(sql, &[at.into()]).await.map(drop)
    }

    /// Writes rows in one transaction.
    pub async fn write(&mut self, rows: &BulkRows) -> Result<(), DatabaseError> {
        match &mut self.0 {
            LoaderConnection::Sqlite(connection) => {
                // Without a journal SQLite cannot roll back: plain statements, because a transaction guard would try to.
                sqlx::query("BEGIN").execute(&mut *connection).await?;
                for (table, rows) in TABLES.iter().zip(&rows.0) {
                    insert(connection, table, rows).await?;
                }
                sqlx::query("COMMIT").execute(&mut *connection).await?;
            }
            LoaderConnection::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                for (table, rows) in TABLES.iter().zip(&rows.0) {
                    copy(&mut transaction, table, rows).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(())
    }

    /// Syncs and closes the database, with fresh statistics where the database would maintain them itself.
    pub async fn finish(self) -> Result<(), DatabaseError> {
        match self.0 {
            // Not analyzed: a SQLite database in use never is.
            LoaderConnection::Sqlite(mut connection) => {
                for pragma in ["locking_mode = NORMAL", "synchronous = FULL", "journal_mode = WAL"] {
                    sqlx::query(AssertSqlSafe(format!("PRAGMA {pragma}"))).execute(&mut connection).await?;
                }
                connection.close().await?;
            }
            LoaderConnection::Postgres(mut connection) => {
                for table in &TABLES {
                    let sql = format!("VACUUM (ANALYZE) {}", table.name);
                    sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await?;
                }
                // The role may lack the privilege; then the checkpoint happens later.
                let _ = sqlx::query("CHECKPOINT").execute(&mut connection).await;
                connection.close().await?;
            }
        }
        Ok(())
    }
}

fn column_names(table: &Table) -> String {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

async fn insert(
    connection: &mut SqliteConnection,
    table: &Table,
    rows: &[Vec<Arg>],
) -> Result<(), DatabaseError> {
    let row = format!("({})", vec!["?"; table.columns.len()].join(", "));
    for chunk in rows.chunks(ROWS_PER_INSERT) {
        let values = vec![row.as_str(); chunk.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES {values}", table.name, column_names(table));
        let query = bind!(sqlx::query(AssertSqlSafe(sql)), chunk.iter().flatten());
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn copy(connection: &mut PgConnection, table: &Table, rows: &[Vec<Arg>]) -> Result<(), DatabaseError> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    for row in rows {
        for (at, (arg, (_, is_timestamp))) in row.iter().zip(table.columns).enumerate() {
            if at > 0 {
                text.push('\t');
            }
            // Writing to a string cannot fail.
            let _ = match arg {
                Arg::Text(Some(value)) => {
                    escape(value, &mut text);
                    Ok(())
                }
                Arg::Int(Some(number)) if *is_timestamp => {
                    let moment = Moment::from_micros(u64::try_from(*number).unwrap_or_default());
                    write!(text, "{}", moment.timestamp())
                }
                Arg::Int(Some(number)) => write!(text, "{number}"),
                Arg::Text(None) | Arg::Int(None) => text.write_str("\\N"),
            };
        }
        text.push('\n');
    }
    let sql = format!("COPY {} ({}) FROM STDIN", table.name, column_names(table));
    let mut copy = connection.copy_in_raw(&sql).await?;
    copy.send(text.into_bytes()).await?;
    copy.finish().await?;
    Ok(())
}

/// Escapes text for COPY.
fn escape(value: &str, text: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            c => text.push(c),
        }
    }
}
