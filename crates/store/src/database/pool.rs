//! A pool of connections to PostgreSQL that hands out recently used connections without testing them first.
//!
//! sqlx tests a connection before it hands it out and after it was returned: three round trips for one statement. A connection
//! that was returned intact a moment ago is reused without these tests. A connection that was idle for longer, or was dropped
//! in the middle of a statement, goes through the sqlx pool, which tests it.
//!
//! A server that stops answering must not keep its callers: a statement that takes long waits only while the server answers a check on
//! another connection. While it does not, everything fails at once except one check at a time, so that it is not flooded when it is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::{DatabaseError, Result};

/// How long a connection may be idle and still be reused without a test.
const MAX_UNTESTED_IDLE: Duration = Duration::from_secs(1);
/// How long a connection bypasses the sqlx pool, which closes connections that are too old.
const MAX_UNTESTED_AGE: Duration = Duration::from_secs(60);

/// After this time a statement, or the wait for a connection, depends on whether the server answers.
const SLOW: Duration = Duration::from_secs(2);
/// One check of the server as a whole.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// The result of a check is used for this time.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A connection pool; clones share it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionPool {
    pool: PgPool,
    server: Arc<ServerCheck>,
    /// One permit for each connection of `pool`: the owner of a permit finds a connection, idle here or in `pool`.
    permits: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
}

/// What is known about the server.
#[derive(Debug)]
struct ServerCheck {
    options: PgConnectOptions,
    is_down: AtomicBool,
    /// When it was checked last, and whether it answered. Held during a check: there is one at a time.
    last: AsyncMutex<Option<(Instant, bool)>>,
}

impl ServerCheck {
    /// Whether the server answers. Opens a connection of its own, because those of the pool may all be in use.
    async fn answers(&self) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, answered)) = *last
            && at.elapsed() < CHECK_INTERVAL
        {
            return answered;
        }
        let check = async {
            let mut connection = self.options.connect().await?;
            connection.ping().await?;
            connection.close().await
        };
        let answered = matches!(timeout(CHECK_TIMEOUT, check).await, Ok(Ok(())));
        *last = Some((Instant::now(), answered));
        if self.is_down.swap(!answered, Ordering::SeqCst) == answered {
            if answered {
                tracing::info!("PostgreSQL answers again");
            } else {
                tracing::error!("PostgreSQL does not answer; requests that need it fail until it does");
            }
        }
        answered
    }

    /// Whether the server is known to be down. One caller checks it again now and then; the others do not wait for that.
    async fn is_known_down(&self) -> bool {
        let is_checked = || {
            self.last
                .try_lock()
                .map_or(true, |last| last.is_some_and(|(at, _)| at.elapsed() < CHECK_INTERVAL))
        };
        self.is_down.load(Ordering::SeqCst) && (is_checked() || !self.answers().await)
    }
}

fn no_answer() -> DatabaseError {
    DatabaseError::Unavailable("PostgreSQL does not answer".to_owned())
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
    server: Arc<ServerCheck>,
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
    pub(super) fn new(pool: PgPool, options: PgConnectOptions) -> Self {
        let max = usize::try_from(pool.options().get_max_connections()).unwrap_or(Semaphore::MAX_PERMITS);
        let idle = Arc::new(IdleConnections(Mutex::default()));
        let server = ServerCheck { options, is_down: AtomicBool::new(false), last: AsyncMutex::new(None) };
        Self { pool, server: Arc::new(server), permits: Arc::new(Semaphore::new(max)), idle }
    }

    /// Waits for the outcome for as long as the server answers. Without an answer, what was sent may nevertheless be committed.
    pub(super) async fn while_answering<T>(&self, outcome: impl Future<Output = Result<T>>) -> Result<T> {
        let mut outcome = std::pin::pin!(outcome);
        loop {
            match timeout(SLOW, &mut outcome).await {
                Ok(outcome) => return outcome,
                Err(_) if self.server.answers().await => {}
                Err(_) => return Err(no_answer()),
            }
        }
    }

    pub(super) async fn acquire(&self) -> Result<PooledConnection> {
        if self.server.is_known_down().await {
            return Err(no_answer());
        }
        self.while_answering(self.acquire_free()).await
    }

    async fn acquire_free(&self) -> Result<PooledConnection> {
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
            let (idle, server) = (self.idle.clone(), self.server.clone());
            return Ok(PooledConnection { connection, tested_at, idle, server, permit });
        }
        let connection = self.pool.acquire().await?;
        let (idle, server) = (self.idle.clone(), self.server.clone());
        Ok(PooledConnection { connection, tested_at: now, idle, server, permit })
    }
}

impl PooledConnection {
    pub(super) fn get(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Returns the connection to the pool, and the outcome of its use to the caller. After a lost connection all idle ones are
    /// suspect, and tested before they are used again.
    pub(super) fn release<T>(self, outcome: Result<T>) -> Result<T> {
        let Self { connection, tested_at, idle, server, permit } = self;
        if matches!(outcome, Err(DatabaseError::Unavailable(_))) {
            let suspects =
                idle.lock().drain(..).map(|idle| idle.connection).chain([connection]).collect::<Vec<_>>();
            if server.is_down.load(Ordering::SeqCst) {
                // Closed: the test of the sqlx pool would wait for the server.
                suspects.into_iter().for_each(|connection| drop(connection.detach()));
            }
        } else {
            let returned = IdleConnection { connection, idle_since: Instant::now(), tested_at };
            idle.lock().push(returned);
        }
        // Last, so that the next caller finds the connection.
        drop(permit);
        outcome
    }
}
