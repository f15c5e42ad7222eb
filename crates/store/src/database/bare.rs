//! The least that keeping something can cost: a transaction that inserts one row, into the same kind of database through the
//! same driver. And a place for measurements on PostgreSQL: schemas of their own in a database that is empty otherwise.
//! `ade bench` works with both; nothing else does.

use std::path::Path;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection};

use super::DatabaseError;

/// How the schemas of measurements begin.
const SCHEMA: &str = "ade_bench_";
/// Settings that figures depend on.
const SETTINGS: [&str; 5] =
    ["server_version", "fsync", "synchronous_commit", "shared_buffers", "full_page_writes"];

/// A bare table; clones are the same one.
#[derive(Debug, Clone)]
pub struct Bare(Pool);

#[derive(Debug, Clone)]
enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Bare {
    /// A file of its own in a folder, synced at each commit. Of many writers one writes, as SQLite has it.
    pub async fn in_folder(folder: &Path) -> Result<Self, DatabaseError> {
        let options = SqliteConnectOptions::new()
            .filename(folder.join("bare.sqlite3"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let table = "CREATE TABLE IF NOT EXISTS bare (id text PRIMARY KEY, body text NOT NULL) STRICT";
        sqlx::query(table).execute(&pool).await?;
        Ok(Self(Pool::Sqlite(pool)))
    }

    /// A table of its own on PostgreSQL.
    pub async fn on_postgres(url: &str, connections: u32) -> Result<Self, DatabaseError> {
        let options: PgConnectOptions = url.parse().map_err(unreadable)?;
        let pool = PgPoolOptions::new().max_connections(connections).connect_with(options).await?;
        let table = "CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY, body jsonb NOT NULL)";
        sqlx::query(table).execute(&pool).await?;
        Ok(Self(Pool::Postgres(pool)))
    }

    /// One transaction with one row.
    pub async fn insert(&self, id: &str, body: &str) -> Result<(), DatabaseError> {
        match &self.0 {
            Pool::Sqlite(pool) => {
                let mut own = pool.acquire().await?;
                let mut one = own.begin_with("BEGIN IMMEDIATE").await?;
                let query = sqlx::query("INSERT INTO bare (id, body) VALUES ($1, $2)");
                query.bind(id).bind(body).execute(&mut *one).await?;
                one.commit().await?;
            }
            Pool::Postgres(pool) => {
                let mut one = pool.begin().await?;
                let query = sqlx::query("INSERT INTO bare (id, body) VALUES ($1::uuid, $2::jsonb)");
                query.bind(id).bind(body).execute(&mut *one).await?;
                one.commit().await?;
            }
        }
        Ok(())
    }

    /// Closes it.
    pub async fn close(self) {
        match self.0 {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

/// A database for measurements on PostgreSQL.
#[derive(Debug, Clone)]
pub struct Place {
    options: PgConnectOptions,
    url: String,
    /// The settings that figures depend on, in words.
    pub settings: String,
}

fn unreadable(_: sqlx::Error) -> DatabaseError {
    DatabaseError::Unavailable(
        "its URL cannot be read: write postgres://USER:PASSWORD@HOST:5432/DATABASE".to_owned(),
    )
}

impl Place {
    /// Looks at a database; nothing if there is anything in it. Changes nothing.
    pub async fn find(url: &str) -> Result<Option<Self>, DatabaseError> {
        let options: PgConnectOptions = url.parse().map_err(unreadable)?;
        let mut link = sqlx::PgConnection::connect_with(&options).await?;
        let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'";
        let many: i64 = sqlx::query_scalar(sql).fetch_one(&mut link).await?;
        let mut settings = Vec::new();
        for name in SETTINGS {
            let sql = AssertSqlSafe(format!("SHOW {name}"));
            let value: String = sqlx::query_scalar(sql).fetch_one(&mut link).await?;
            settings.push(format!("{name} {value}"));
        }
        link.close().await?;
        Ok((many == 0).then(|| Self { options, url: url.to_owned(), settings: settings.join(", ") }))
    }

    /// Makes an empty schema with this number; the URL of the database with it, as a server is told.
    pub async fn make(&self, number: usize) -> Result<String, DatabaseError> {
        self.run(&format!("CREATE SCHEMA {SCHEMA}{number}")).await?;
        let joint = if self.url.contains('?') { '&' } else { '?' };
        Ok(format!("{}{joint}options[search_path]={SCHEMA}{number}", self.url))
    }

    /// Removes it with everything in it.
    pub async fn remove(&self, number: usize) -> Result<(), DatabaseError> {
        self.run(&format!("DROP SCHEMA IF EXISTS {SCHEMA}{number} CASCADE")).await
    }

    async fn run(&self, sql: &str) -> Result<(), DatabaseError> {
        let mut link = sqlx::PgConnection::connect_with(&self.options).await?;
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut link).await?;
        link.close().await?;
        Ok(())
    }
}
