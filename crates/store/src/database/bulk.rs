//! Many tasks at once: what a thousand commits would have written and a sequencer numbered, row for row the same, in big
//! transactions. `ade bench` fills a record with it; nothing else uses it. While it writes nobody else may: the log is
//! chained from where it ended when this began, and on SQLite a crash leaves a file that must be thrown away.

use std::fmt::Write as _;
use std::path::Path;

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, Head, append};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteLockingMode, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::commit::{approval_columns, audit_columns, event_columns, task_columns};
use super::log::{self, Event};
use super::sql::{Arg, Link};
use super::tasks::StoredTask;
use super::{Database, DatabaseError, sqlite};

/// Rows of one statement on SQLite.
const ROWS_AT_ONCE: usize = 64;
/// Kibibytes of cache on SQLite while it is filled.
const CACHE_KIB: &str = "-1048576";

/// A table, and its columns in the order of [`Rows`]; those of moments are marked.
struct Table {
    name: &'static str,
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

/// Where the log and the events go on.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    head: Head,
    events: u64,
}

/// Rows that are ready to be written.
#[derive(Debug, Default)]
pub struct Rows([Vec<Vec<Arg>>; 5]);

impl Chain {
    /// The rows of some tasks, and of entries and events in the order in which they are to be numbered.
    pub fn rows(
        &mut self,
        some: &[StoredTask],
        entries: Vec<AuditBody>,
        told: &[Event],
    ) -> Result<Rows, DatabaseError> {
        let [mut tasks, mut marks, mut approvals, mut audit, mut events] = <[Vec<Vec<Arg>>; 5]>::default();
        for task in some {
            tasks.push(task_columns(task)?);
            for (kind, mark) in task.marks() {
                marks.push(vec![kind.into(), mark.into(), task.task_id.as_str().into()]);
            }
            for approval in &task.approvals {
                approvals.push(approval_columns(approval)?);
            }
        }
        for body in entries {
            let mut columns = audit_columns(&body)?;
            let entry = append(self.head, body).map_err(|error| DatabaseError::Foreign(error.to_string()))?;
            self.head = Head { number: entry.number, entry_hash: entry.entry_hash };
            columns.push(entry.number.into());
            columns.push(entry.previous_hash.to_string().into());
            columns.push(entry.entry_hash.to_string().into());
            audit.push(columns);
        }
        for event in told {
            self.events += 1;
            let mut columns = event_columns(event)?;
            columns.push(self.events.into());
            events.push(columns);
        }
        Ok(Rows([tasks, marks, approvals, audit, events]))
    }
}

/// Writes rows, past everything that guards against others.
#[derive(Debug)]
pub struct Loader(Own);

#[derive(Debug)]
enum Own {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Loader {
    /// Into the record of a data folder that no process has open. What is written is not synced before the end.
    pub async fn in_folder(folder: &Path) -> Result<Self, DatabaseError> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join(sqlite::FILE))
            .create_if_missing(true)
            .foreign_keys(false)
            .busy_timeout(sqlite::BUSY)
            .journal_mode(SqliteJournalMode::Off)
            .synchronous(SqliteSynchronous::Off)
            .locking_mode(SqliteLockingMode::Exclusive)
            .pragma("cache_size", CACHE_KIB);
        let mut own = options.connect().await?;
        let migrated = super::migrator(super::SQLITE_MIGRATIONS).run(&mut own).await;
        migrated.map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        Ok(Self(Own::Sqlite(own)))
    }

    /// Into the record on PostgreSQL.
    pub async fn on_postgres(url: &str) -> Result<Self, DatabaseError> {
        drop(Database::on_postgres(url).await?);
        let unreadable = |_| DatabaseError::Unavailable("its URL cannot be read".to_owned());
        let options: PgConnectOptions = url.parse().map_err(unreadable)?;
        Ok(Self(Own::Postgres(options.connect().await?)))
    }

    fn link(&mut self) -> Link<'_> {
        match &mut self.0 {
            Own::Sqlite(link) => Link::Sqlite(link),
            Own::Postgres(link) => Link::Postgres(link),
        }
    }

    /// Where the log and the events go on. Everything that was committed must have its number.
    pub async fn chain(&mut self) -> Result<Chain, DatabaseError> {
        let link = &mut self.link();
        let head = log::head(link).await?;
        Ok(Chain { head, events: log::last_event(link).await? })
    }

    /// Makes the part of the audit log for the month of a moment, where the log has parts.
    pub async fn prepare_month(&mut self, at: Moment) -> Result<(), DatabaseError> {
        let Own::Postgres(link) = &mut self.0 else { return Ok(()) };
        let sql = "SELECT audit_create_partitions(moment($1))";
        Link::Postgres(link).rows(sql, &[at.into()]).await.map(drop)
    }

    /// Writes some, in one transaction.
    pub async fn write(&mut self, rows: &Rows) -> Result<(), DatabaseError> {
        match &mut self.0 {
            Own::Sqlite(own) => {
                // Without a journal nothing could be rolled back: plain statements, since a guard would try to.
                sqlx::query("BEGIN").execute(&mut *own).await?;
                for (table, rows) in TABLES.iter().zip(&rows.0) {
                    insert(own, table, rows).await?;
                }
                sqlx::query("COMMIT").execute(&mut *own).await?;
            }
            Own::Postgres(own) => {
                let mut transaction = own.begin().await?;
                for (table, rows) in TABLES.iter().zip(&rows.0) {
                    copy(&mut transaction, table, rows).await?;
                }
                transaction.commit().await?;
            }
        }
        Ok(())
    }

    /// Done: what the database knows about its tables is brought up to date, as it would do by itself in time.
    pub async fn finish(mut self) -> Result<(), DatabaseError> {
        match &mut self.0 {
            // Nothing is analyzed: a record in use never is.
            Own::Sqlite(own) => {
                sqlx::query("PRAGMA locking_mode = NORMAL").execute(&mut *own).await?;
                sqlx::query("PRAGMA synchronous = FULL").execute(&mut *own).await?;
                sqlx::query("PRAGMA journal_mode = WAL").execute(&mut *own).await?;
            }
            Own::Postgres(own) => {
                for table in &TABLES {
                    let sql = format!("VACUUM (ANALYZE) {}", table.name);
                    sqlx::query(AssertSqlSafe(sql)).execute(&mut *own).await?;
                }
                // A role that may not simply leaves the writing out to a later time.
                let _ = sqlx::query("CHECKPOINT").execute(&mut *own).await;
            }
        }
        match self.0 {
            Own::Sqlite(own) => own.close().await?,
            Own::Postgres(own) => own.close().await?,
        }
        Ok(())
    }
}

async fn insert(own: &mut SqliteConnection, table: &Table, rows: &[Vec<Arg>]) -> Result<(), DatabaseError> {
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let one = format!("({})", vec!["?"; names.len()].join(", "));
    for some in rows.chunks(ROWS_AT_ONCE) {
        let places = vec![one.as_str(); some.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES {places}", table.name, names.join(", "));
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for arg in some.iter().flatten() {
            query = match arg {
                Arg::Text(text) => query.bind(text.as_str()),
                Arg::MaybeText(text) => query.bind(text.as_deref()),
                Arg::Int(number) => query.bind(number),
                Arg::MaybeInt(number) => query.bind(number),
            };
        }
        query.execute(&mut *own).await?;
    }
    Ok(())
}

async fn copy(own: &mut PgConnection, table: &Table, rows: &[Vec<Arg>]) -> Result<(), DatabaseError> {
    if rows.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
    let mut text = String::new();
    for row in rows {
        for (at, (arg, (_, is_moment))) in row.iter().zip(table.columns).enumerate() {
            if at > 0 {
                text.push('\t');
            }
            match arg {
                Arg::Text(value) | Arg::MaybeText(Some(value)) => escape(value, &mut text),
                Arg::Int(number) | Arg::MaybeInt(Some(number)) if *is_moment => {
                    let moment = Moment::from_micros(u64::try_from(*number).unwrap_or_default());
                    // Writing into text cannot fail.
                    let _ = write!(text, "{}", moment.timestamp());
                }
                Arg::Int(number) | Arg::MaybeInt(Some(number)) => {
                    let _ = write!(text, "{number}");
                }
                Arg::MaybeText(None) | Arg::MaybeInt(None) => text.push_str("\\N"),
            }
        }
        text.push('\n');
    }
    let sql = format!("COPY {} ({}) FROM STDIN", table.name, names.join(", "));
    let mut into = own.copy_in_raw(&sql).await?;
    into.send(text.into_bytes()).await?;
    into.finish().await?;
    Ok(())
}

/// As COPY wants text.
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
