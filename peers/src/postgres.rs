//! Advisory locks of PostgreSQL: `pg_advisory_lock` and `pg_advisory_unlock` of a session. Each client has its own connection
//! and prepared statements; the server hashes the name.

use tokio::task::JoinHandle;
use tokio_postgres::{NoTls, Statement};

use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService};

pub(crate) struct AdvisoryLocks {
    pub(crate) url: String,
}

pub(crate) struct AdvisoryClient {
    client: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
    connection: JoinHandle<()>,
}

impl LockService for AdvisoryLocks {
    type Client = AdvisoryClient;

    async fn client(&self) -> Result<AdvisoryClient, BenchError> {
        let connected = tokio_postgres::connect(&self.url, NoTls).await;
        let (client, connection) = connected.map_err(BenchError::context("connect to PostgreSQL"))?;
        // The queries report errors of the connection.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let prepare = BenchError::context::<tokio_postgres::Error>;
        let lock = client.prepare("SELECT pg_advisory_lock(hashtextextended($1, 0))").await;
        let unlock = client.prepare("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await;
        Ok(AdvisoryClient {
            lock: lock.map_err(prepare("prepare a statement"))?,
            unlock: unlock.map_err(prepare("prepare a statement"))?,
            client,
            connection,
        })
    }
}

impl LockClient for AdvisoryClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), BenchError> {
        let locked = self.client.query_one(&self.lock, &[&lock]).await;
        locked.map(drop).map_err(BenchError::context("lock with PostgreSQL"))
    }

    async fn release(&mut self, lock: &str) -> Result<(), BenchError> {
        let row = self.client.query_one(&self.unlock, &[&lock]).await;
        let row = row.map_err(BenchError::context("unlock with PostgreSQL"))?;
        if row.get(0) { Ok(()) } else { Err(BenchError::new(format!("{lock} is not held"))) }
    }
}

impl Drop for AdvisoryClient {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
