//! The record: tasks and their reviews, people, rules, the audit log and events, in SQL. SQLite in the data folder, or
//! PostgreSQL; one implementation, two spellings.
//!
//! Everything that belongs together is committed together: state, audit entries, events and the stored answer of a request,
//! guarded by the revisions that whoever decided had seen. What was committed survives the death of the process.

mod agents;
mod archive;
mod bare;
mod blob_rows;
mod bulk;
mod commit;
mod forget;
mod jobs;
mod log;
mod people;
mod postgres;
mod requests;
mod rules;
mod shelf;
mod sql;
mod sqlite;
mod stats;
mod tasks;
mod together;
mod work;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, PgConnection, Postgres, SqlSafeStr};
use tokio::sync::oneshot;

pub use agents::{InboxMessage, MOST_MESSAGES, StoredAgent};
pub use archive::{Archive, ArchiveKind, Archived, Leaving, LeftOut};
pub use bare::{Bare, Place};
pub use blob_rows::BlobStore;
pub use bulk::{Chain, Loader, Rows};
pub use commit::{Commit, KeyedResponse, Write};
pub use jobs::{JobOutcome, JobRow};
pub use log::{AuditFilter, Event, Numbered};
pub use people::{Password, Session, StoredToken, StoredUser};
pub use rules::{DocumentKind, RulesVersion, StoredDocument};
pub use stats::{Counts, Day, UserStats};
pub use tasks::{ApprovalFilter, AsRead, Comment, StoredTask, TaskFilter};
pub use work::{LogLine, Renewed, WorkKind};

use archive::Archiving;
use blob_rows::BlobStep;
use forget::Forgetting;
use jobs::JobStep;
use log::Numbering;
use shelf::Shelf;
use sql::Link;
use sqlite::Sqlite;
use work::Doing;

/// The record; clones are the same one.
#[derive(Debug, Clone)]
pub struct Database {
    backend: Backend,
}

#[derive(Debug, Clone)]
enum Backend {
    Sqlite(Sqlite),
    Postgres(Shelf<Postgres>),
}

/// Why the record did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// It cannot answer now. What was asked may have happened.
    #[error("the record is not available: {0}")]
    Unavailable(String),
    /// Somebody else was faster: load again, and decide again.
    #[error("{what} was changed meanwhile")]
    Conflict {
        /// What.
        what: String,
    },
    /// There is one already.
    #[error("{what} exists already")]
    Exists {
        /// What.
        what: String,
    },
    /// The request was answered before, or is by somebody else right now: read what it was answered.
    #[error("the request was answered already")]
    AnsweredAlready,
    /// Something in it was not written by us.
    #[error("the record holds something that ade did not write: {0}")]
    Foreign(String),
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) if database.is_unique_violation() => {
                Self::Exists { what: database.message().to_owned() }
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Foreign(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// What a request was answered, so that its repetition is answered the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// A digest of what was asked.
    pub asked: String,
    /// The status of the answer.
    pub status: u16,
    /// Its body.
    pub body: Value,
}

/// Version, name and statements of each migration, in order. A released migration never changes.
type Migrations = [(i64, &'static str, &'static str); 1];

const SQLITE_MIGRATIONS: Migrations = [(1, "schema", include_str!("schema/sqlite.sql"))];
const POSTGRES_MIGRATIONS: Migrations = [(1, "schema", include_str!("schema/postgres.sql"))];

fn migrator(migrations: Migrations) -> Migrator {
    let migration = |(version, name, sql): (i64, &'static str, &'static str)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(migrations.into_iter().map(migration).collect())
}

impl Database {
    /// Opens the record in a data folder, and brings its tables up to date.
    pub async fn in_folder(folder: &Path) -> Result<Self, DatabaseError> {
        let sqlite = Sqlite::open(folder, &migrator(SQLITE_MIGRATIONS)).await?;
        Ok(Self { backend: Backend::Sqlite(sqlite) })
    }

    /// Opens the record on PostgreSQL, and brings its tables up to date. Any number of processes may do so at once.
    pub async fn on_postgres(url: &str) -> Result<Self, DatabaseError> {
        let pool = postgres::open(url, &migrator(POSTGRES_MIGRATIONS)).await?;
        Ok(Self { backend: Backend::Postgres(Shelf::new(pool)) })
    }

    /// Commits everything that belongs together, or nothing.
    pub async fn commit(&self, commit: Commit) -> Result<(), DatabaseError> {
        self.work(Work::Commit(Box::new(commit))).await.map(drop)
    }

    async fn work(&self, work: Work) -> Result<u64, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.work(work).await,
            Backend::Postgres(shelf) => {
                // In a task of its own: a caller that goes away must not leave a transaction open on a connection that
                // others use next.
                let shelf = shelf.clone();
                let (done, answer) = oneshot::channel();
                tokio::spawn(async move {
                    // Whoever asked may have gone; what was committed is committed.
                    let _ = done.send(with(&shelf, async |link| work_on(link, &work).await).await);
                });
                answer
                    .await
                    .unwrap_or_else(|_| Err(DatabaseError::Unavailable("a commit was lost".to_owned())))
            }
        }
    }

    /// Reads with a connection of its own.
    async fn read<T: Send>(
        &self,
        read: impl AsyncFnOnce(&mut Link<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(sqlite) => {
                with(&sqlite.readers, async |link| read(&mut Link::Sqlite(link)).await).await
            }
            Backend::Postgres(shelf) => with(shelf, async |link| read(&mut Link::Postgres(link)).await).await,
        }
    }
}

/// With a connection at hand. What breaks is not used again, and neither are those that lay beside it.
async fn with<D: sqlx::Database, T>(
    shelf: &Shelf<D>,
    work: impl AsyncFnOnce(&mut D::Connection) -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
    let mut held = shelf.take().await?;
    let done = work(held.link()).await;
    if matches!(done, Err(DatabaseError::Unavailable(_))) {
        drop(held);
        shelf.distrust();
    } else {
        held.give_back();
    }
    done
}

async fn work_on(link: &mut PgConnection, work: &Work) -> Result<u64, DatabaseError> {
    if let Work::Commit(commit) = work
        && commit.fits_together()
        && commit.apply_together(&mut Link::Postgres(link)).await?
    {
        return Ok(0);
    }
    let mut transaction = link.begin().await?;
    match work.apply(&mut Link::Postgres(&mut transaction)).await {
        Ok(many) => {
            transaction.commit().await?;
            Ok(many)
        }
        Err(error) => {
            // Here and not when it is dropped: whoever has the connection next finds it as it should be.
            transaction.rollback().await?;
            Err(error)
        }
    }
}

/// What changes the record, in a transaction of its own.
#[derive(Debug)]
enum Work {
    Commit(Box<Commit>),
    Number(Numbering),
    Forget(Forgetting),
    Do(Doing),
    Job(JobStep),
    Archive(Archiving),
    Blobs(BlobStep),
}

impl Work {
    /// In the hope that nothing stands against it, which costs least; nothing if it was not done. What it leaves behind then:
    /// see [`Link::run_together`].
    async fn apply_in_hope(&self, link: &mut Link<'_>) -> Result<Option<u64>, DatabaseError> {
        match self {
            Self::Commit(commit) if commit.fits_together() => {
                Ok(commit.apply_together(link).await?.then_some(0))
            }
            work => work.apply(link).await.map(Some),
        }
    }

    async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        match self {
            Self::Commit(commit) => commit.apply(link).await.map(|()| 0),
            Self::Number(numbering) => numbering.apply(link).await,
            Self::Forget(forgetting) => forgetting.apply(link).await,
            Self::Do(doing) => doing.apply(link).await,
            Self::Job(step) => step.apply(link).await,
            Self::Archive(archiving) => archiving.apply(link).await,
            Self::Blobs(step) => step.apply(link).await,
        }
    }
}
