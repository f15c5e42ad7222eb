//! A pool of connections to PostgreSQL that hands out recently used connections without testing them first.
//!
//! sqlx tests a connection before it hands it out and after it was returned: three round trips for one statement. A connection
//! that was returned intact a moment ago is reused without these tests. A connection that was idle for longer, or was dropped
//! in the middle of a statement, goes through the sqlx pool, which tests it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::{DatabaseError, Result};

/// How long a connection may be idle and still be reused without a test.
const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(1);
/// How long a connection bypasses the sqlx pool, which closes connections that are too old.
const MAX_UNTESTED_AGE: Duration = Duration::from_secs(60);

/// A connection pool; clones share it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionPool {
    pool: PgPool,
    /// One permit for each connection of `pool`: the owner of a permit finds a connection, idle here or in `pool`.
    permits: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
}

#[derive(Debug)]
struct IdleConnections(Mutex<Vec<IdleConnection>>);

#[derive(Debug)]
struct IdleConnection {
    connection: PoolConnection<Postgres>,
    idle_since: Instant,
    tested_at: Instant,
}

/// A connection in use. If it is dropped without [`release`](Self::release), it goes to the sqlx pool, which tests it.
#[derive(Debug)]
pub(super) struct PooledConnection {
    connection: PoolConnection<Postgres>,
    tested_at: Instant,
    idle: Arc<IdleConnections>,
    permit: OwnedSemaphorePermit,
}

impl IdleConnections {
    fn lock(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        // Returning them to the sqlx pool would spawn a test for each, and the runtime may be shutting down.
        for idle in self.lock().drain(..) {
            drop(idle.connection.detach());
        }
    }
}

impl ConnectionPool {
    /// Wraps a pool that nobody else uses.
    pub(super) fn new(pool: PgPool) -> Self {
        let max = usize::try_from(pool.options().get_max_connections()).unwrap_or(Semaphore::MAX_PERMITS);
        let idle = Arc::new(IdleConnections(Mutex::default()));
        Self { pool, permits: Arc::new(Semaphore::new(max)), idle }
    }

    pub(super) async fn acquire(&self) -> Result<PooledConnection> {
        let limit = self.pool.options().get_acquire_timeout();
        let busy = || DatabaseError::Unavailable(format!("no connection became free within {limit:?}"));
        let permit = timeout(limit, self.permits.clone().acquire_owned());
        let permit = permit.await.map_err(|_| busy())?.map_err(|_| busy())?;
        let now = Instant::now();
        let last = self.idle.lock().pop();
        if let Some(IdleConnection { connection, idle_since, tested_at }) = last
            && now.duration_since(idle_since) < MAX_UNTESTED_IDLE
            && now.duration_since(tested_at) < MAX_UNTESTED_AGE
        {
            return Ok(PooledConnection { connection, tested_at, idle: self.idle.clone(), permit });
        }
        let connection = self.pool.acquire().await?;
        Ok(PooledConnection { connection, tested_at: now, idle: self.idle.clone(), permit })
    }
}

impl PooledConnection {
    pub(super) fn get(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Returns the connection to the pool, and the outcome of its use to the caller. After a lost connection all idle ones are
    /// suspect, and tested before they are used again.
    pub(super) fn release<T>(self, outcome: Result<T>) -> Result<T> {
        let Self { connection, tested_at, idle, permit } = self;
        if matches!(outcome, Err(DatabaseError::Unavailable(_))) {
            drop(connection);
            idle.lock().clear();
        } else {
            let returned = IdleConnection { connection, idle_since: Instant::now(), tested_at };
            idle.lock().push(returned);
        }
        // Last, so that the next caller finds the connection.
        drop(permit);
        outcome
    }
}
