//! SQLite: one writer, which commits all waiting operations as one transaction, and several readers beside it.

use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite};
use tokio::sync::{mpsc, oneshot};

use super::pool::ConnectionPool;
use super::sql::SqlConnection;
use super::{DatabaseError, Operation, Result};
use crate::data_folder::private_file;

/// The database file in the data folder.
const FILE: &str = "ade.sqlite3";
/// Operations that may wait for the writer; further callers wait to enqueue theirs.
const MAX_QUEUED: usize = 1_024;
/// Operations of one transaction.
const MAX_BATCH: usize = 256;
const MAX_READERS: u32 = 4;
/// A checkpoint of the write-ahead log runs after this number of pages. High, because most pages are written many times.
const CHECKPOINT_PAGES: &str = "8000";
/// Prepared statements per connection; more than are in frequent use.
const STATEMENT_CACHE: usize = 200;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(super) struct SqliteDatabase {
    pub(super) readers: ConnectionPool<Sqlite>,
    writer: mpsc::Sender<Box<dyn Queued>>,
}

impl SqliteDatabase {
    pub(super) async fn open(folder: &Path, migrator: &Migrator) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join(FILE))
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A commit survives a power failure, not only the death of the process.
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .statement_cache_capacity(STATEMENT_CACHE)
            .busy_timeout(BUSY_TIMEOUT);
        // SQLite gives its other files the permissions of this one.
        let created = private_file().truncate(false).open(folder.join(FILE));
        created.map_err(|error| DatabaseError::Unavailable(format!("cannot create {FILE}: {error}")))?;
        let mut connection = options.connect().await?;
        migrator.run(&mut connection).await.map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(MAX_READERS)
            .connect_with(options.read_only(true))
            .await?;
        let (writer, queue) = mpsc::channel(MAX_QUEUED);
        tokio::spawn(run_writer(connection, queue));
        Ok(Self { readers: ConnectionPool::new(readers), writer })
    }

    pub(super) async fn execute<O: Operation>(&self, operation: O) -> Result<O::Output> {
        let stopped = || DatabaseError::Unavailable("the SQLite writer has stopped".to_owned());
        let (reply, outcome) = oneshot::channel();
        let queued = QueuedOperation { operation, outcome: None, reply };
        self.writer.send(Box::new(queued)).await.map_err(|_| stopped())?;
        outcome.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// An operation of any output type in the queue of the writer.
trait Queued: Send {
    /// Applies the operation and keeps its outcome; `false` if it failed. `is_optimistic` sends it as one batch if possible,
    /// which may leave a failed operation half applied.
    fn apply<'a>(
        &'a mut self,
        connection: &'a mut SqliteConnection,
        is_optimistic: bool,
    ) -> BoxFuture<'a, bool>;

    /// Sends the outcome to the caller, once the transaction has ended.
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct QueuedOperation<O: Operation> {
    operation: O,
    outcome: Option<Result<O::Output>>,
    reply: oneshot::Sender<Result<O::Output>>,
}

impl<O: Operation> Queued for QueuedOperation<O> {
    fn apply<'a>(
        &'a mut self,
        connection: &'a mut SqliteConnection,
        is_optimistic: bool,
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let connection = &mut SqlConnection::Sqlite(connection);
            self.outcome = if is_optimistic && self.operation.is_batchable() {
                self.operation.apply_batch(connection).await.transpose()
            } else {
                Some(self.operation.apply(connection).await)
            };
            matches!(self.outcome, Some(Ok(_)))
        })
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        let not_applied = || DatabaseError::Unavailable("the writer did not apply the operation".to_owned());
        let Self { outcome, reply, .. } = *self;
        // The caller may have gone; the transaction is committed nevertheless.
        let _ = reply.send(committed.and_then(|()| outcome.unwrap_or_else(|| Err(not_applied()))));
    }
}

/// Runs until the last handle of the database is dropped. Operations that arrive while one transaction is synced form the next one.
async fn run_writer(mut connection: SqliteConnection, mut queue: mpsc::Receiver<Box<dyn Queued>>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while queue.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let committed = write_optimistically(&mut connection, &mut batch).await;
        for operation in batch.drain(..) {
            operation.reply(committed.clone());
        }
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(%error, "cannot close the database cleanly");
    }
}

/// Applies all operations in one transaction, assuming that none fails, which is nearly always so.
async fn write_optimistically(
    connection: &mut SqliteConnection,
    batch: &mut [Box<dyn Queued>],
) -> Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for operation in &mut *batch {
        if !operation.apply(&mut transaction, true).await {
            transaction.rollback().await?;
            return write_separately(connection, batch).await;
        }
    }
    transaction.commit().await?;
    Ok(())
}

/// One transaction with a savepoint for each operation, so that a failed one does not affect the others.
async fn write_separately(connection: &mut SqliteConnection, batch: &mut [Box<dyn Queued>]) -> Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for operation in batch {
        let mut savepoint = transaction.begin().await?;
        if operation.apply(&mut savepoint, false).await {
            savepoint.commit().await?;
        } else {
            savepoint.rollback().await?;
        }
    }
    transaction.commit().await?;
    Ok(())
}
