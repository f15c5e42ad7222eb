//! The writer: one thread, which commits all waiting operations as one transaction. Nobody gets an outcome before it is committed, and
//! a failed operation leaves nothing behind and does not affect the others.

use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::{SqliteConnection, at_once};
use crate::database::sql::SqlConnection;
use crate::database::{DatabaseError, Operation, Result};

/// Operations that may wait for the writer; further callers wait to enqueue theirs.
const MAX_QUEUED: usize = 1_024;
/// Operations of one transaction.
const MAX_BATCH: usize = 256;

/// A handle to the writer, which ends with the last of them.
#[derive(Debug, Clone)]
pub(super) struct Writer(mpsc::Sender<Box<dyn Queued>>);

impl Writer {
    pub(super) fn start(connection: SqliteConnection) -> Result<Self> {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        let thread = thread::Builder::new().name("sqlite-writer".to_owned());
        let failed = |error| DatabaseError::Unavailable(format!("cannot start the SQLite writer: {error}"));
        thread.spawn(move || run(connection, queue)).map_err(failed)?;
        Ok(Self(sender))
    }

    pub(super) async fn execute<O: Operation>(&self, operation: O) -> Result<O::Output> {
        let stopped = || DatabaseError::Unavailable("the SQLite writer has stopped".to_owned());
        let (reply, outcome) = oneshot::channel();
        let queued = QueuedOperation { operation, outcome: None, reply };
        self.0.send(Box::new(queued)).await.map_err(|_| stopped())?;
        outcome.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// An operation of any output type in the queue of the writer.
trait Queued: Send {
    /// Applies the operation and keeps its outcome; `false` if it failed, and may be half applied.
    fn apply(&mut self, connection: &mut SqliteConnection) -> bool;

    /// Sends the outcome to the caller, once the transaction has ended.
    fn reply(self: Box<Self>, committed: Result<()>);
}

struct QueuedOperation<O: Operation> {
    operation: O,
    outcome: Option<Result<O::Output>>,
    reply: oneshot::Sender<Result<O::Output>>,
}

impl<O: Operation> Queued for QueuedOperation<O> {
    fn apply(&mut self, connection: &mut SqliteConnection) -> bool {
        let outcome = at_once(self.operation.apply(&mut SqlConnection::Sqlite(connection)));
        self.outcome.insert(outcome).is_ok()
    }

    fn reply(self: Box<Self>, committed: Result<()>) {
        let not_applied = || DatabaseError::Unavailable("the writer did not apply the operation".to_owned());
        let Self { outcome, reply, .. } = *self;
        // The caller may have gone; the transaction is committed nevertheless.
        let _ = reply.send(committed.and_then(|()| outcome.unwrap_or_else(|| Err(not_applied()))));
    }
}

/// Runs until the last handle of the database is dropped. Operations that arrive while one transaction is synced form the next one.
fn run(mut connection: SqliteConnection, mut queue: mpsc::Receiver<Box<dyn Queued>>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while queue.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
        // Nearly always nothing fails. Otherwise everything is applied again, so that the rest does not need savepoints.
        let committed = match write(&mut connection, &mut batch, apply_all) {
            Ok(false) if batch.len() > 1 => write(&mut connection, &mut batch, apply_separately),
            outcome => outcome,
        };
        for operation in batch.drain(..) {
            operation.reply(committed.clone().map(drop));
        }
    }
    if let Err(error) = connection.close() {
        tracing::warn!(%error, "cannot close the database cleanly");
    }
}

type Batch = [Box<dyn Queued>];

/// Applies all operations in one transaction, and commits it if `apply` says so. Otherwise nothing of it remains.
fn write(
    connection: &mut SqliteConnection,
    batch: &mut Batch,
    apply: fn(&mut SqliteConnection, &mut Batch) -> Result<bool>,
) -> Result<bool> {
    connection.begin()?;
    let log_end = connection.log_end.clone();
    let outcome = apply(connection, batch).and_then(|is_applied| {
        if is_applied {
            connection.execute("COMMIT", &[])?;
        }
        Ok(is_applied)
    });
    if !matches!(outcome, Ok(true)) {
        connection.log_end = log_end;
        connection.roll_back()?;
    }
    outcome
}

fn apply_all(connection: &mut SqliteConnection, batch: &mut Batch) -> Result<bool> {
    Ok(batch.iter_mut().all(|operation| operation.apply(connection)))
}

/// With a savepoint for each operation.
fn apply_separately(connection: &mut SqliteConnection, batch: &mut Batch) -> Result<bool> {
    for operation in batch {
        connection.execute("SAVEPOINT operation", &[])?;
        let log_end = connection.log_end.clone();
        if !operation.apply(connection) {
            connection.log_end = log_end;
            connection.execute("ROLLBACK TO operation", &[])?;
        }
        connection.execute("RELEASE operation", &[])?;
    }
    Ok(true)
}
