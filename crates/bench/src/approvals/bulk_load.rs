//! Loads many tasks at once, in large transactions: row for row what as many commits and the sequencer would have written. Nobody else
//! may write meanwhile: the audit chain continues from where it ended at the start, and on SQLite a crash leaves a file that must be
//! discarded.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use ade_domain::audit::{AuditBody, ChainHead, append};
use ade_domain::event::Event;
use ade_domain::{Keys, Moment};
use ade_store::database::{Arg, StoredTask, TableRow, rows};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::database::parse_url;
use crate::error::{BenchError, ErrorKind};

/// The database file in a data folder.
pub(super) const SQLITE_FILE: &str = "ade.sqlite3";
/// Rows per statement on SQLite.
const ROWS_PER_INSERT: usize = 64;
/// The cache of SQLite while it is filled: negative, because it is in KiB and not in pages.
const CACHE_SIZE: &str = "-1048576";
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// On PostgreSQL; on SQLite the audit log has no chain of its own.
const TABLES: [&str; 6] = ["tasks", "task_labels", "approvals", "audit", "audit_chain", "events"];

/// Where the audit chain continues.
#[derive(Debug, Clone)]
pub(super) struct BulkChain {
    head: ChainHead,
    keys: Keys,
    /// Whether places in the chain are rows of their own.
    has_chain_table: bool,
}

/// Rows in the order in which they are to be written, grouped by table.
pub(super) type BulkRows = [Vec<TableRow>; 6];

fn corrupt(error: &impl ToString) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}

impl BulkChain {
    /// The rows of tasks, of audit entries in the order in which they are to be numbered, and of their events.
    pub(super) fn rows(
        &mut self,
        tasks: &[StoredTask],
        entries: Vec<AuditBody>,
        events: &[Event],
    ) -> Result<BulkRows, BenchError> {
        let mut all = BulkRows::default();
        let [task_rows, label_rows, approval_rows, audit_rows, chain_rows, event_rows] = &mut all;
        for task in tasks {
            task_rows.push(rows::task(task)?);
            for (kind, label) in task.labels() {
                label_rows.push(rows::label(&task.task_id, kind, &label));
            }
            for approval in &task.approvals {
                approval_rows.push(rows::approval(approval)?);
            }
        }
        for body in entries {
            let mut row = rows::audit_entry(&body, &self.keys)?;
            let entry = append(self.head, body).map_err(|error| corrupt(&error))?;
            self.head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
            let place = [
                ("number", entry.number.into()),
                ("previous_hash", entry.previous_hash.to_string().into()),
                ("entry_hash", entry.entry_hash.to_string().into()),
            ];
            if self.has_chain_table {
                let columns = rows::audit_key(&entry.body).into_iter().chain(place).collect();
                chain_rows.push(TableRow { table: "audit_chain", columns });
                row.columns.push(("queued", true.into()));
            } else {
                row.columns.extend(place);
            }
            audit_rows.push(row);
        }
        for event in events {
            event_rows.push(rows::event(event)?);
        }
        Ok(all)
    }
}

/// Writes rows without the checks of a commit.
#[derive(Debug)]
pub(super) enum BulkLoader {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl BulkLoader {
    /// Opens the SQLite database of a data folder that no process uses. Nothing is synced before [`finish`](Self::finish).
    pub(super) async fn open_sqlite(folder: &Path) -> Result<Self, BenchError> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join(SQLITE_FILE))
            .foreign_keys(false)
            .busy_timeout(BUSY_TIMEOUT)
            .journal_mode(SqliteJournalMode::Off)
            .synchronous(SqliteSynchronous::Off)
            .locking_mode(SqliteLockingMode::Exclusive)
            .pragma("cache_size", CACHE_SIZE);
        Ok(Self::Sqlite(options.connect().await?))
    }

    /// Connects to a database that has the schema already.
    pub(super) async fn open_postgres(url: &str) -> Result<Self, BenchError> {
        Ok(Self::Postgres(parse_url(url)?.connect().await?))
    }

    /// Where the numbers continue. Everything that is committed must be numbered. `keys` are those of the server.
    pub(super) async fn chain(&mut self, keys: Keys) -> Result<BulkChain, BenchError> {
        let has_chain_table = matches!(self, Self::Postgres(_));
        let chain = if has_chain_table { "audit_chain" } else { "audit" };
        let last = AssertSqlSafe(format!(
            "SELECT number, entry_hash FROM {chain} WHERE number > 0 ORDER BY number DESC LIMIT 1"
        ));
        let last: Option<(i64, String)> = match self {
            Self::Sqlite(connection) => sqlx::query_as(last).fetch_optional(connection).await?,
            Self::Postgres(connection) => sqlx::query_as(last).fetch_optional(connection).await?,
        };
        let head = match last {
            Some((number, hash)) => ChainHead {
                number: number.unsigned_abs(),
                entry_hash: hash
                    .parse()
                    .map_err(|_| corrupt(&format!("invalid hash of entry {number}: {hash}")))?,
            },
            None => ChainHead::origin(),
        };
        Ok(BulkChain { head, keys, has_chain_table })
    }

    /// Creates the partition of the audit log for the month of `at`. Does nothing on SQLite.
    pub(super) async fn create_audit_partition(&mut self, at: Moment) -> Result<(), BenchError> {
        if let Self::Postgres(connection) = self {
            let sql = "SELECT audit_create_partitions($1::timestamptz)";
            sqlx::query(sql).bind(at.timestamp().to_string()).execute(connection).await?;
        }
        Ok(())
    }

    /// Writes rows in one transaction.
    pub(super) async fn write(&mut self, rows: &BulkRows) -> Result<(), BenchError> {
        match self {
            Self::Sqlite(connection) => {
                // Without a journal SQLite cannot roll back: plain statements, because a transaction guard would try to.
                sqlx::query("BEGIN").execute(&mut *connection).await?;
                for rows in rows {
                    insert(connection, rows).await?;
                }
                sqlx::query("COMMIT").execute(&mut *connection).await?;
            }
            Self::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                for rows in rows {
                    copy(&mut transaction, rows).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(())
    }

    /// Syncs and closes the database, with fresh statistics where the database would maintain them itself.
    pub(super) async fn finish(self) -> Result<(), BenchError> {
        match self {
            // Not analyzed: a SQLite database in use never is.
            Self::Sqlite(mut connection) => {
                for pragma in ["locking_mode = NORMAL", "synchronous = FULL", "journal_mode = WAL"] {
                    sqlx::query(AssertSqlSafe(format!("PRAGMA {pragma}"))).execute(&mut connection).await?;
                }
                connection.close().await?;
            }
            Self::Postgres(mut connection) => {
                for table in TABLES {
                    let sql = format!("VACUUM (ANALYZE) {table}");
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

/// The table and its columns, as in `tasks (task_id, state)`.
fn target(row: &TableRow) -> String {
    let names: Vec<&str> = row.columns.iter().map(|(name, _)| *name).collect();
    format!("{} ({})", row.table, names.join(", "))
}

async fn insert(connection: &mut SqliteConnection, rows: &[TableRow]) -> Result<(), BenchError> {
    let Some(first) = rows.first() else { return Ok(()) };
    let row = format!("({})", vec!["?"; first.columns.len()].join(", "));
    for chunk in rows.chunks(ROWS_PER_INSERT) {
        let values = vec![row.as_str(); chunk.len()].join(", ");
        let mut query = sqlx::query(AssertSqlSafe(format!("INSERT INTO {} VALUES {values}", target(first))));
        for (_, arg) in chunk.iter().flat_map(|row| &row.columns) {
            query = match arg {
                Arg::Text(text) | Arg::Uuid(text) => query.bind(text.as_deref()),
                Arg::Int(number) => query.bind(*number),
                Arg::Time(moment) => query.bind(moment.map(|moment| moment.micros().cast_signed())),
            };
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn copy(connection: &mut PgConnection, rows: &[TableRow]) -> Result<(), BenchError> {
    let Some(first) = rows.first() else { return Ok(()) };
    let mut text = String::new();
    for row in rows {
        for (at, (_, arg)) in row.columns.iter().enumerate() {
            if at > 0 {
                text.push('\t');
            }
            // Writing to a string cannot fail.
            let _ = match arg {
                Arg::Text(Some(value)) | Arg::Uuid(Some(value)) => {
                    escape(value, &mut text);
                    Ok(())
                }
                Arg::Time(Some(moment)) => write!(text, "{}", moment.timestamp()),
                Arg::Int(Some(number)) => write!(text, "{number}"),
                Arg::Text(None) | Arg::Uuid(None) | Arg::Time(None) | Arg::Int(None) => text.write_str("\\N"),
            };
        }
        text.push('\n');
    }
    let mut copy = connection.copy_in_raw(&format!("COPY {} FROM STDIN", target(first))).await?;
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
