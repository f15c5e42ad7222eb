//! A record on either database, for scenarios that run on both. One database server for all of them, with a database for each.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::people::UserId;
use ade_store::database::{Commit, Database, DatabaseError, Write};
use ade_testkit::Postgres;
use sqlx::Connection;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use uuid::Uuid;

static SERVER: OnceCell<Arc<Postgres>> = OnceCell::const_new();

pub(crate) async fn server() -> Arc<Postgres> {
    SERVER.get_or_init(|| async { Arc::new(Postgres::start().expect("starts")) }).await.clone()
}

/// A record, and what would end with it.
pub(crate) struct Opened {
    pub(crate) record: Database,
    pub(crate) folder: Option<TempDir>,
    /// The database and its URL.
    pub(crate) database: Option<(String, String)>,
}

pub(crate) async fn on_sqlite() -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    let record = Database::in_folder(folder.path()).await.expect("opens");
    Opened { record, folder: Some(folder), database: None }
}

pub(crate) async fn on_postgres() -> Opened {
    let name = format!("t{}", Uuid::now_v7().simple());
    let url = server().await.create_database(&name).expect("created");
    let record = Database::on_postgres(&url).await.expect("opens");
    Opened { record, folder: None, database: Some((name, url)) }
}

impl Opened {
    /// The same once more, as another process would open it.
    pub(crate) async fn again(&self) -> Database {
        match (&self.folder, &self.database) {
            (Some(folder), _) => Database::in_folder(folder.path()).await.expect("opens"),
            (None, Some((_, url))) => Database::on_postgres(url).await.expect("opens"),
            (None, None) => unreachable!("it was opened somewhere"),
        }
    }
}

impl Opened {
    /// Past the record.
    pub(crate) async fn sql(&self, sql: &str) {
        match (&self.folder, &self.database) {
            (Some(folder), _) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new();
                let options = options.filename(folder.path().join("ade.sqlite3"));
                let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut link).await.expect("done");
            }
            (None, Some((name, _))) => drop(server().await.psql(name, sql).expect("done")),
            (None, None) => unreachable!("it was opened somewhere"),
        }
    }
}

/// Each scenario is a test on SQLite and one on PostgreSQL.
macro_rules! on_both {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(crate::opened::on_sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(crate::opened::on_postgres().await).await;
            })+
        }
    };
}

pub(crate) use on_both;

pub(crate) fn id() -> String {
    Uuid::now_v7().to_string()
}

/// So many seconds after noon of 15 November 2026.
pub(crate) fn at(second: u64) -> Moment {
    Moment::from_micros(1_794_744_000_000_120 + second * 1_000_000)
}

pub(crate) fn person(name: &str) -> UserId {
    UserId::new(name)
}

pub(crate) async fn write(record: &Database, writes: Vec<Write>) -> Result<(), DatabaseError> {
    record.commit(Commit { writes, ..Commit::default() }).await
}
