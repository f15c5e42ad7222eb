//! PostgreSQL's advisory locks: `pg_advisory_lock` and `pg_advisory_unlock` of a session, a connection for each client,
//! statements prepared, the name hashed by the server as its documentation suggests.

use tokio::task::JoinHandle;
use tokio_postgres::{NoTls, Statement};

use crate::failure::Failure;
use crate::peer::{Client, Peer};

pub(crate) struct Advisory {
    pub(crate) url: String,
}

pub(crate) struct AdvisoryClient {
    client: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
    connection: JoinHandle<()>,
}

impl Peer for Advisory {
    type Client = AdvisoryClient;

    async fn client(&self) -> Result<AdvisoryClient, Failure> {
        let connected = tokio_postgres::connect(&self.url, NoTls).await;
        let (client, connection) = connected.map_err(Failure::of("connect to PostgreSQL"))?;
        // What goes wrong on the connection shows in the queries.
        let connection = tokio::spawn(async move { drop(connection.await) });
        let prepare = Failure::of::<tokio_postgres::Error>;
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

impl Client for AdvisoryClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), Failure> {
        let locked = self.client.query_one(&self.lock, &[&lock]).await;
        locked.map(drop).map_err(Failure::of("lock with PostgreSQL"))
    }

    async fn release(&mut self, lock: &str) -> Result<(), Failure> {
        let row = self.client.query_one(&self.unlock, &[&lock]).await;
        let row = row.map_err(Failure::of("unlock with PostgreSQL"))?;
        if row.get(0) { Ok(()) } else { Err(Failure::new(format!("{lock} was not held"))) }
    }
}

impl Drop for AdvisoryClient {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
