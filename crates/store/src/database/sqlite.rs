//! SQLite: one writer that commits what waits together, and any number of readers beside it.

use std::path::Path;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite as Database};
use tokio::sync::{mpsc, oneshot};

use super::shelf::Shelf;
use super::sql::Link;
use super::{DatabaseError, Work};

/// The file in the data folder.
pub(super) const FILE: &str = "ade.sqlite3";
/// Commits that may wait; above that callers wait to be let in.
const QUEUE: usize = 1_024;
/// Commits of one transaction.
const MOST_TOGETHER: usize = 256;
const READERS: u32 = 4;
/// Pages of the log after which they are brought into the file: most of them are written to again and again until then.
const CHECKPOINT_PAGES: &str = "8000";
/// Statements that a connection keeps ready: more than are used often.
const READY: usize = 200;
pub(super) const BUSY: Duration = Duration::from_secs(5);

type Done = oneshot::Sender<Result<u64, DatabaseError>>;

#[derive(Debug, Clone)]
pub(super) struct Sqlite {
    pub(super) readers: Shelf<Database>,
    writer: mpsc::Sender<(Work, Done)>,
}

impl Sqlite {
    pub(super) async fn open(folder: &Path, migrator: &Migrator) -> Result<Self, DatabaseError> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join(FILE))
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What was answered survives a loss of power, not only the death of the process.
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .statement_cache_capacity(READY)
            .busy_timeout(BUSY);
        let mut own = options.connect().await?;
        migrator.run(&mut own).await.map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        let readers =
            SqlitePoolOptions::new().max_connections(READERS).connect_with(options.read_only(true)).await?;
        let (writer, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(write(own, waiting));
        Ok(Self { readers: Shelf::new(readers), writer })
    }

    pub(super) async fn work(&self, work: Work) -> Result<u64, DatabaseError> {
        let gone = || DatabaseError::Unavailable("the writer of the record has ended".to_owned());
        let (done, answer) = oneshot::channel();
        self.writer.send((work, done)).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// Writes until nobody is left who could ask. What waits while one transaction is synced goes into the next one.
async fn write(mut own: SqliteConnection, mut waiting: mpsc::Receiver<(Work, Done)>) {
    let mut some = Vec::with_capacity(MOST_TOGETHER);
    while waiting.recv_many(&mut some, MOST_TOGETHER).await > 0 {
        let mut outcomes = Vec::with_capacity(some.len());
        let committed = write_some(&mut own, &some, &mut outcomes).await;
        for ((_, done), outcome) in
            some.drain(..).zip(outcomes.into_iter().map(Some).chain(std::iter::repeat(None)))
        {
            let answer = match (&committed, outcome) {
                (Ok(()), Some(outcome)) => outcome,
                (Ok(()), None) => Err(DatabaseError::Unavailable("a commit was lost".to_owned())),
                (Err(error), _) => Err(error.clone()),
            };
            // Whoever asked may have gone; what was committed is committed.
            let _ = done.send(answer);
        }
    }
    if let Err(error) = own.close().await {
        tracing::warn!(%error, "the record was not closed in order");
    }
}

/// One transaction. First in the hope that nothing stands against any of them, which is nearly always so.
async fn write_some(
    own: &mut SqliteConnection,
    some: &[(Work, Done)],
    outcomes: &mut Vec<Result<u64, DatabaseError>>,
) -> Result<(), DatabaseError> {
    let mut together = own.begin_with("BEGIN IMMEDIATE").await?;
    for (work, _) in some {
        match work.apply_in_hope(&mut Link::Sqlite(&mut together)).await {
            Ok(Some(many)) => outcomes.push(Ok(many)),
            _ => {
                together.rollback().await?;
                outcomes.clear();
                return write_each(own, some, outcomes).await;
            }
        }
    }
    together.commit().await?;
    Ok(())
}

/// One transaction, in which each commit stands or falls by itself.
async fn write_each(
    own: &mut SqliteConnection,
    some: &[(Work, Done)],
    outcomes: &mut Vec<Result<u64, DatabaseError>>,
) -> Result<(), DatabaseError> {
    let mut together = own.begin_with("BEGIN IMMEDIATE").await?;
    for (work, _) in some {
        let mut one = together.begin().await?;
        let outcome = work.apply(&mut Link::Sqlite(&mut one)).await;
        match &outcome {
            Ok(_) => one.commit().await?,
            Err(_) => one.rollback().await?,
        }
        outcomes.push(outcome);
    }
    together.commit().await?;
    Ok(())
}
