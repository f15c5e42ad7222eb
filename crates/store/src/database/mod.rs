//! The database: tasks and their approvals, users, rules, the audit log and events. SQLite in the data folder, or PostgreSQL; one
//! implementation for both, on two drivers.
//!
//! A commit writes state, audit entries, events and the stored response of a request in one transaction, guarded by the revisions
//! that the caller has loaded. What is committed survives the death of the process.

mod agents;
mod approvals;
mod archive;
mod audit_log;
mod batch;
mod bindings;
mod blob_references;
mod checkpoints;
mod commit;
mod documents;
mod event_consumers;
mod event_log;
mod jobs;
mod markers;
mod numbering;
mod outside_chain;
mod people;
mod pool;
mod postgres;
mod projected_rows;
mod retention;
mod revocations;
pub mod rows;
mod secret_key;
mod sql;
mod sqlite;
mod stats;
mod stored_lock_requests;
mod tasks;
mod webhooks;
mod work;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ade_domain::{Keys, Moment};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Notify, watch};

pub use agents::{CapableAgent, CapableAgents, InboxMessage, MAX_INBOX_MESSAGES, StoredAgent};
pub use approvals::{ApprovalFilter, TaskSummary};
pub use archive::{Archive, ArchiveKind, ArchivedTask, SkippedTasks, TaskRemoval};
pub use audit_log::{AuditFilter, AuditRow};
pub use batch::TableRow;
pub use blob_references::BlobStoreLocation;
pub use commit::{Commit, KeyedResponse, Write};
pub use documents::{Document, DocumentKind, FeatureFlag, RulesVersion, Setting, Versioned};
pub use event_consumers::WEBHOOK_CONSUMER;
pub use event_log::EventPage;
pub use jobs::{JobOutcome, StoredJob};
pub use numbering::{Numbering, QuarantinedEntry};
pub use people::{Invitation, KnownDevice, Password, Session, StoredToken, StoredUser};
pub use revocations::{RememberedRights, Revocation};
pub use secret_key::SecretRegistration;
pub use sql::Arg;
pub use stats::{DailyStats, DatabaseCounts, UserStats};
pub use stored_lock_requests::{
    PendingLockRequests, StoredLockCommand, StoredLockOutcome, StoredLockRequest, StoredRefusal,
    StoredRequestCounts,
};
pub use tasks::{AgentOutcome, Comment, LoadedVersion, StoredTask, TaskFilter};
pub use webhooks::{
    AttemptOutcome, Claim, Delivery, DeliveryContent, DeliveryFilter, DeliveryReport, DeliveryStatus,
    NewDelivery, TaskMessage,
};
pub use work::{LeaseRenewal, LogLine, ReadyFilter, ReadyTask, WorkKind};

use batch::Statement;
use pool::ConnectionPool;
use sql::{Row, SqlConnection, uuid};
use sqlite::SqliteDatabase;

pub type Result<T, E = DatabaseError> = std::result::Result<T, E>;

/// A handle to the database; clones share it.
#[derive(Debug, Clone)]
pub struct Database {
    backend: Backend,
    keys: Keys,
    log_appended: Arc<Notify>,
    /// Changes when entries got numbers through this handle or its clones.
    numbered: watch::Sender<()>,
    /// See `numbering.rs`.
    last_seen: Arc<AtomicU64>,
    /// See `secret_key.rs`.
    secret_version: Arc<AtomicU64>,
    /// See `revocations.rs`.
    revocations: Arc<revocations::Revocations>,
}

#[derive(Debug, Clone)]
enum Backend {
    Sqlite(SqliteDatabase),
    Postgres(ConnectionPool),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// The operation may nevertheless have been committed.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The caller must load again, and decide again.
    #[error("{what} was changed by another request; load it again and retry")]
    Conflict { what: String },
    #[error("{what} already exists")]
    AlreadyExists { what: String },
    /// Another request with the same idempotency key was answered, or is being answered: its stored response counts.
    #[error("a request with the same idempotency key was answered already")]
    DuplicateIdempotencyKey,
    #[error("the database contains data that ade cannot read: {0}")]
    Corrupt(String),
    /// This process cannot verify what others have written meanwhile.
    #[error("the secret was replaced while this process ran: restart it with the present one (key id {0})")]
    Superseded(String),
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) if database.is_unique_violation() => {
                Self::AlreadyExists { what: database.message().to_owned() }
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Corrupt(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// The response to a request with an idempotency key, for requests that repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// A digest of the request: a different request with the same key is rejected.
    pub request_digest: String,
    /// The objects that the response is rendered from.
    pub outcome: Value,
}

/// Reads a value from a row.
type Parse<T> = fn(&Row) -> Result<T>;

/// Pages with more rows are read beside the threads of the runtime.
const MAX_ROWS_OF_A_SHORT_READ: u32 = 100;

/// A change of the database, applied in a transaction of its own.
trait Operation: Send + Sync + 'static {
    type Output: Send + 'static;

    fn apply(&self, connection: &mut SqlConnection<'_>) -> impl Future<Output = Result<Self::Output>> + Send;

    /// Statements that do the same in any order, and the output then: worth one round trip while nothing conflicts.
    fn batch(&self) -> Option<(&[Statement], Self::Output)> {
        None
    }
}

impl Database {
    /// Opens the SQLite database of a data folder, and migrates its schema. Audit entries are written and verified with `keys`.
    pub async fn open_sqlite(folder: &Path, keys: Keys) -> Result<Self> {
        let sqlite = SqliteDatabase::open(folder).await?;
        Ok(Self {
            backend: Backend::Sqlite(sqlite),
            keys,
            log_appended: Arc::default(),
            numbered: watch::Sender::new(()),
            last_seen: Arc::default(),
            secret_version: Arc::default(),
            revocations: Arc::default(),
        })
    }

    /// Connects to PostgreSQL, and migrates the schema. Any number of processes may do so at once. Audit entries are written and
    /// verified with `keys`.
    pub async fn open_postgres(url: &str, keys: Keys) -> Result<Self> {
        let pool = postgres::open(url).await?;
        Ok(Self {
            backend: Backend::Postgres(pool),
            keys,
            log_appended: Arc::default(),
            numbered: watch::Sender::new(()),
            last_seen: Arc::default(),
            secret_version: Arc::default(),
            revocations: Arc::default(),
        })
    }

    /// Commits everything or nothing.
    pub async fn commit(&self, commit: Commit) -> Result<()> {
        // Before: it may be committed although it fails.
        let revocations: Vec<Revocation> = commit.writes.iter().filter_map(Write::revocation).collect();
        revocations.iter().cloned().for_each(|revocation| self.note_revocation(revocation));
        let outcome = self.execute(self.prepare(&commit)?).await;
        // And after: somebody may have read the old rows meanwhile.
        revocations.into_iter().for_each(|revocation| self.note_revocation(revocation));
        self.notify_appended();
        outcome
    }

    /// Call it after a commit, also after an error: it may have been committed.
    fn notify_appended(&self) {
        match self.backend {
            // It has its numbers already.
            Backend::Sqlite(_) => {
                self.numbered.send_replace(());
            }
            Backend::Postgres(_) => self.log_appended.notify_one(),
        }
    }

    /// Waits for audit entries or events without a number that were committed through this handle or its clones since the last call.
    /// Only one caller is woken.
    pub async fn log_appended(&self) {
        self.log_appended.notified().await;
    }

    /// Changes when audit entries, and with them their events, got numbers through this handle or its clones.
    #[must_use]
    pub fn numbered(&self) -> watch::Receiver<()> {
        self.numbered.subscribe()
    }

    async fn execute<O: Operation>(&self, operation: O) -> Result<O::Output> {
        // On the heap: the futures of the drivers are large, and callers nest them.
        Box::pin(self.execute_inline(operation)).await
    }

    async fn execute_inline<O: Operation>(&self, operation: O) -> Result<O::Output> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.execute(operation).await,
            Backend::Postgres(pool) => {
                // In a task of its own: a caller that is cancelled must not leave a transaction open on a pooled connection.
                let pool = pool.clone();
                let task = tokio::spawn(async move { postgres::execute(&pool, &operation).await });
                task.await.unwrap_or_else(|error| Err(DatabaseError::Unavailable(error.to_string())))
            }
        }
    }

    /// Executes one statement, and returns how many rows it affected.
    async fn execute_statement(&self, sql: &str, args: &[Arg]) -> Result<u64> {
        self.execute(vec![Statement::new(sql.to_owned(), args)]).await
    }

    /// Reads on one connection. Statements are not in a transaction. `read` uses only the connection, and few rows: see
    /// [`scan`](Self::scan).
    async fn read<T>(&self, read: impl AsyncFnOnce(&mut SqlConnection<'_>) -> Result<T>) -> Result<T> {
        // On the heap, as above.
        Box::pin(self.read_inline(read)).await
    }

    async fn read_inline<T>(&self, read: impl AsyncFnOnce(&mut SqlConnection<'_>) -> Result<T>) -> Result<T> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.read(read).await,
            Backend::Postgres(pool) => {
                let mut connection = pool.acquire().await?;
                let outcome =
                    pool.while_answering(read(&mut SqlConnection::Postgres(connection.get()))).await;
                connection.release(outcome)
            }
        }
    }

    /// The rows of a statement that may read many.
    async fn scan(&self, sql: &str, args: &[Arg]) -> Result<Vec<Row>> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.scan(sql, args).await,
            Backend::Postgres(_) => self.read(async |connection| connection.query(sql, args).await).await,
        }
    }

    async fn fetch_all<T, C: FromIterator<T>>(&self, sql: &str, args: &[Arg], parse: Parse<T>) -> Result<C> {
        let rows = self.read(async |connection| connection.query(sql, args).await).await?;
        rows.iter().map(parse).collect()
    }

    /// The first `limit` rows. The limit is part of the statement and not an argument, so that the planner sees it.
    async fn fetch_page<T>(&self, sql: &str, args: &[Arg], limit: u32, parse: Parse<T>) -> Result<Vec<T>> {
        let sql = format!("{sql} LIMIT {limit}");
        if limit > MAX_ROWS_OF_A_SHORT_READ {
            return self.scan(&sql, args).await?.iter().map(parse).collect();
        }
        self.fetch_all(&sql, args, parse).await
    }

    async fn fetch_first<T>(&self, sql: &str, args: &[Arg], parse: Parse<T>) -> Result<Option<T>> {
        let row = self.read(async |connection| connection.query_first(sql, args).await).await?;
        row.as_ref().map(parse).transpose()
    }

    /// The number in the first column of the first row; 0 if there is no row.
    async fn fetch_number(&self, sql: &str, args: &[Arg]) -> Result<u64> {
        self.read(async |connection| connection.query_number(sql, args).await).await
    }
}

/// A task id with the time that a list is sorted by: where the list goes on after a page.
type TaskPosition = (Moment, String);

/// The arguments of a page that begins after a position, or at the start of the list.
fn position_args(after: Option<&TaskPosition>) -> [Arg; 2] {
    const FIRST_ID: &str = "00000000-0000-0000-0000-000000000000";
    let (at, id) = after.map_or((Moment::from_micros(0), FIRST_ID), |(at, id)| (*at, id.as_str()));
    [at.into(), uuid(id)]
}
