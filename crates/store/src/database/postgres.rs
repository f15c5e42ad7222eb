//! PostgreSQL: connecting, and running operations. Error messages never contain the password.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, Postgres};

use super::pool::ConnectionPool;
use super::sql::SqlConnection;
use super::{DatabaseError, Operation, Result};

/// Connections per process.
const MAX_CONNECTIONS: u32 = 16;
/// Prepared statements per connection; more than are in frequent use.
const STATEMENT_CACHE: usize = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses a database URL. The error only says how a URL should look, because the cause may quote the password.
fn parse_url(url: &str) -> Result<PgConnectOptions> {
    url.parse().map_err(|_| {
        DatabaseError::Unavailable(
            "invalid database URL: use postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the \
             password written as %XX"
                .to_owned(),
        )
    })
}

/// Connects, migrates the schema, and creates the partitions of the audit log for the coming months.
pub(super) async fn open(url: &str, migrator: &Migrator) -> Result<ConnectionPool<Postgres>> {
    let options = parse_url(url)?.statement_cache_capacity(STATEMENT_CACHE);
    let (host, port) = (options.get_host().to_owned(), options.get_port());
    let failed = |why: String| DatabaseError::Unavailable(format!("PostgreSQL at {host}:{port}: {why}"));
    // A single connection first: the pool would report only a timeout, and not why it cannot connect.
    let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
        .await
        .map_err(|_| failed(format!("no answer within {} seconds", CONNECT_TIMEOUT.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    migrator.run(&mut connection).await.map_err(|error| failed(error.to_string()))?;
    sqlx::query("SELECT audit_create_partitions(now())")
        .execute(&mut connection)
        .await
        .map_err(|error| failed(error.to_string()))?;
    // The work is done; an error on closing does not matter.
    let _ = connection.close().await;
    let pool = PgPoolOptions::new().max_connections(MAX_CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT);
    Ok(ConnectionPool::new(pool.connect_lazy_with(options)))
}

pub(super) async fn execute<O: Operation>(
    pool: &ConnectionPool<Postgres>,
    operation: &O,
) -> Result<O::Output> {
    let mut connection = pool.acquire().await?;
    let outcome = apply(connection.get(), operation).await;
    connection.release(outcome)
}

async fn apply<O: Operation>(connection: &mut PgConnection, operation: &O) -> Result<O::Output> {
    if operation.is_batchable()
        && let Some(output) = operation.apply_batch(&mut SqlConnection::Postgres(connection)).await?
    {
        return Ok(output);
    }
    let mut transaction = connection.begin().await?;
    let outcome = operation.apply(&mut SqlConnection::Postgres(&mut transaction)).await;
    match outcome {
        Ok(_) => transaction.commit().await?,
        // Here and not on drop, so that the connection is clean for its next user.
        Err(_) => transaction.rollback().await?,
    }
    outcome
}
