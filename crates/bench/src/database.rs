//! The baseline of a database: a transaction that inserts one row, into the same kind of database through the same driver; and
//! schemas for measurements in a PostgreSQL database that is otherwise empty.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::error::{BenchError, ErrorKind};
use crate::processes;

/// A connection has the same address at both ends only on one machine, or none with a socket in the file system.
const LOCAL_BACKEND: &str =
    "SELECT pg_backend_pid() WHERE inet_client_addr() IS NOT DISTINCT FROM inet_server_addr()";
const SCHEMA_PREFIX: &str = "ade_bench_";
/// Settings that influence the results.
const SETTINGS: [&str; 5] =
    ["server_version", "fsync", "synchronous_commit", "shared_buffers", "full_page_writes"];

/// Parses a database URL. The error does not show it, because it may contain a password.
pub(crate) fn parse_url(url: &str) -> Result<PgConnectOptions, BenchError> {
    let message = "invalid database URL: use postgres://USER:PASSWORD@HOST:5432/DATABASE";
    url.parse().map_err(|_| BenchError::new(ErrorKind::Input, message))
}

/// A table with an id and a body; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct BaselineTable(Pool);

#[derive(Debug, Clone)]
enum Pool {
    Sqlite(Arc<Mutex<rusqlite::Connection>>),
    Postgres(PgPool),
}

impl BaselineTable {
    /// Creates the table in a SQLite file of its own, with the settings of a server: synced at each commit, and the same number of
    /// pages between two checkpoints. Writers take turns on one connection, and every transaction has a commit of its own.
    pub(crate) fn open_sqlite(folder: &Path) -> Result<Self, BenchError> {
        let connection = rusqlite::Connection::open(folder.join("baseline.sqlite3"))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; \
             PRAGMA wal_autocheckpoint = 8000; \
             CREATE TABLE IF NOT EXISTS baseline (id text PRIMARY KEY, body text NOT NULL) STRICT",
        )?;
        Ok(Self(Pool::Sqlite(Arc::new(Mutex::new(connection)))))
    }

    pub(crate) async fn open_postgres(url: &str, connections: u32) -> Result<Self, BenchError> {
        let pool = PgPoolOptions::new().max_connections(connections).connect_with(parse_url(url)?).await?;
        let table = "CREATE TABLE IF NOT EXISTS baseline (id uuid PRIMARY KEY, body jsonb NOT NULL)";
        sqlx::query(table).execute(&pool).await?;
        Ok(Self(Pool::Postgres(pool)))
    }

    /// Inserts one row in a transaction of its own.
    pub(crate) async fn insert(&self, id: &str, body: &str) -> Result<(), BenchError> {
        match &self.0 {
            // On the thread of its caller: nothing is faster.
            Pool::Sqlite(connection) => {
                let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
                let insert = "INSERT INTO baseline (id, body) VALUES (?1, ?2)";
                connection.prepare_cached(insert)?.execute([id, body])?;
                connection.prepare_cached("COMMIT")?.execute([])?;
            }
            Pool::Postgres(pool) => {
                let mut transaction = pool.begin().await?;
                let query = sqlx::query("INSERT INTO baseline (id, body) VALUES ($1::uuid, $2::jsonb)");
                query.bind(id).bind(body).execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn close(self) {
        match self.0 {
            Pool::Sqlite(_) => {}
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

/// A PostgreSQL database for measurements.
#[derive(Debug, Clone)]
pub(crate) struct BenchDatabase {
    options: PgConnectOptions,
    url: String,
    /// Settings of the server that influence the results, as text.
    pub(crate) settings: String,
    /// Its first process, if the server runs on this machine.
    pub(crate) postmaster: Option<u32>,
}

impl BenchDatabase {
    /// Checks a database without changing it; `None` unless it is empty.
    pub(crate) async fn open_if_empty(url: &str) -> Result<Option<Self>, BenchError> {
        let options = parse_url(url)?;
        let mut connection = PgConnection::connect_with(&options).await?;
        let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'";
        let relations: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
        let mut settings = Vec::new();
        for name in SETTINGS {
            let sql = AssertSqlSafe(format!("SHOW {name}"));
            let value: String = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
            settings.push(format!("{name} {value}"));
        }
        let postmaster = find_postmaster(&mut connection).await?;
        connection.close().await?;
        let settings = settings.join(", ");
        Ok((relations == 0).then(|| Self { options, url: url.to_owned(), settings, postmaster }))
    }

    /// Creates an empty schema, and returns a URL of the database that selects it.
    pub(crate) async fn create_schema(&self, number: usize) -> Result<String, BenchError> {
        self.execute(&format!("CREATE SCHEMA {SCHEMA_PREFIX}{number}")).await?;
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Ok(format!("{}{separator}options[search_path]={SCHEMA_PREFIX}{number}", self.url))
    }

    /// Drops a schema with everything in it.
    pub(crate) async fn drop_schema(&self, number: usize) -> Result<(), BenchError> {
        self.execute(&format!("DROP SCHEMA IF EXISTS {SCHEMA_PREFIX}{number} CASCADE")).await
    }

    async fn execute(&self, sql: &str) -> Result<(), BenchError> {
        let mut connection = PgConnection::connect_with(&self.options).await?;
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}

/// The first process of the server, which is the parent of all its processes, if it runs on this machine.
async fn find_postmaster(connection: &mut PgConnection) -> Result<Option<u32>, BenchError> {
    let backend: Option<i32> = sqlx::query_scalar(LOCAL_BACKEND).fetch_optional(connection).await?;
    let backend = backend.and_then(|pid| u32::try_from(pid).ok());
    Ok(backend.and_then(|pid| processes::parent_of_same_program(pid, "postgres")))
}
