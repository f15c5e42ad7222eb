//! SQLite: one thread writes, and readers read beside it on the threads of their callers.
//!
//! Reads are short, so nobody waits for another thread; those of many rows are sent to a thread that may block. A connection is in
//! use only while a caller is on its thread, so there are never more readers than threads.

mod connection;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use tokio::task::spawn_blocking;

use super::sql::{Arg, Row, SqlConnection};
use super::{DatabaseError, Operation, Result};
use crate::data_folder::private_file;

pub(super) use connection::SqliteConnection;
use writer::Writer;

/// The database file in the data folder.
const FILE: &str = "ade.sqlite3";
/// Readers that are kept open.
const MAX_IDLE_READERS: usize = 8;

/// A handle to the database; clones share it.
#[derive(Debug, Clone)]
pub(super) struct SqliteDatabase {
    // Dropped first: the last connection to be closed must be the writer, which empties the write-ahead log.
    readers: Arc<Readers>,
    writer: Writer,
}

#[derive(Debug)]
struct Readers {
    file: PathBuf,
    idle: Mutex<Vec<SqliteConnection>>,
}

impl SqliteDatabase {
    /// Opens the database of a data folder, and migrates its schema.
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        let file = folder.join(FILE);
        off_runtime(move || {
            // SQLite gives its other files the permissions of this one.
            let created = private_file().truncate(false).open(&file);
            created.map_err(|error| DatabaseError::Unavailable(format!("cannot create {FILE}: {error}")))?;
            let writer = Writer::start(SqliteConnection::open_writer(&file)?)?;
            Ok(Self { readers: Arc::new(Readers { file, idle: Mutex::default() }), writer })
        })
        .await
    }

    /// Applies an operation. It is committed when this returns, possibly with others.
    pub(super) async fn execute<O: Operation>(&self, operation: O) -> Result<O::Output> {
        self.writer.execute(operation).await
    }

    /// Reads on a connection. `read` must not wait for anything else.
    pub(super) async fn read<T>(
        &self,
        read: impl AsyncFnOnce(&mut SqlConnection<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut connection = self.readers.acquire()?;
        let outcome = read(&mut SqlConnection::Sqlite(&mut connection)).await;
        self.readers.release(connection);
        outcome
    }

    /// The rows of a statement that may take long.
    pub(super) async fn scan(&self, sql: &str, args: &[Arg]) -> Result<Vec<Row>> {
        let (readers, sql, args) = (self.readers.clone(), sql.to_owned(), args.to_vec());
        off_runtime(move || {
            let mut connection = readers.acquire()?;
            let rows = at_once(SqlConnection::Sqlite(&mut connection).query(&sql, &args));
            readers.release(connection);
            rows
        })
        .await
    }
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Vec<SqliteConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self) -> Result<SqliteConnection> {
        let idle = self.lock().pop();
        idle.map_or_else(|| SqliteConnection::open_reader(&self.file), Ok)
    }

    fn release(&self, connection: SqliteConnection) {
        let mut idle = self.lock();
        if idle.len() < MAX_IDLE_READERS {
            idle.push(connection);
        }
    }
}

/// Runs what may block, beside the threads of the runtime.
async fn off_runtime<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    spawn_blocking(run).await.unwrap_or_else(|error| Err(DatabaseError::Unavailable(error.to_string())))
}

/// The output of a future that only uses a [`SqlConnection`] to SQLite, and so never waits.
fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let waits = || DatabaseError::Unavailable("an operation on SQLite waited for something".to_owned());
    future.now_or_never().unwrap_or_else(|| Err(waits()))
}
