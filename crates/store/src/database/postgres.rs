//! Connecting to PostgreSQL. What is said when that fails never contains the password.

use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use super::DatabaseError;

/// Connections of one server.
const MOST_CONNECTIONS: u32 = 16;
/// Statements that a connection keeps ready: more than are used often.
const READY: usize = 200;
/// How long a caller waits for one.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Connects, brings the tables up to date, and makes the parts of the audit log for the months to come.
pub(super) async fn open(url: &str, migrator: &Migrator) -> Result<PgPool, DatabaseError> {
    // What is wrong with it could quote it: only how it should look is said.
    let options: PgConnectOptions = url.parse().map_err(|_| {
        DatabaseError::Unavailable(
            "its URL cannot be read: write postgres://USER:PASSWORD@HOST:5432/DATABASE, and special characters of the \
             password as %XX"
                .to_owned(),
        )
    })?;
    let options = options.statement_cache_capacity(READY);
    let (host, port) = (options.get_host().to_owned(), options.get_port());
    let failed = |why: String| DatabaseError::Unavailable(format!("PostgreSQL at {host}:{port}: {why}"));
    // One connection by itself first: a pool that cannot connect says only that it waited.
    let mut first = tokio::time::timeout(CONNECT_WITHIN, options.connect())
        .await
        .map_err(|_| failed(format!("no answer within {} seconds", CONNECT_WITHIN.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    migrator.run(&mut first).await.map_err(|error| failed(error.to_string()))?;
    sqlx::query("SELECT audit_create_partitions(now())")
        .execute(&mut first)
        .await
        .map_err(|error| failed(error.to_string()))?;
    // What it was for is done; how it ends does not matter.
    let _ = sqlx::Connection::close(first).await;
    let pool = PgPoolOptions::new().max_connections(MOST_CONNECTIONS).acquire_timeout(CONNECT_WITHIN);
    Ok(pool.connect_lazy_with(options))
}
