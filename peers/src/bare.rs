//! The baseline: `SET key value NX PX`, then a compare-and-delete script, which is the cheapest possible lock on Redis. It has
//! no queue: a client that finds the lock held retries after a pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use tokio::time::sleep;

use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService, TTL_MS};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// First value of the next client: every acquisition of every client has a different value.
static NEXT_CLIENT_VALUE: AtomicU64 = AtomicU64::new(1 << 40);

pub(crate) enum Bare {
    /// All clients share one multiplexed connection.
    Shared { connection: MultiplexedConnection, pause: Duration },
    /// Each client has its own connection.
    Own { client: redis::Client, pause: Duration },
}

pub(crate) struct BareClient {
    connection: MultiplexedConnection,
    script: Script,
    value: u64,
    pause: Duration,
}

impl Bare {
    pub(crate) async fn shared(url: &str, pause: Duration) -> Result<Self, BenchError> {
        let connection = connect(&open(url)?).await?;
        Ok(Self::Shared { connection, pause })
    }

    pub(crate) fn own(url: &str, pause: Duration) -> Result<Self, BenchError> {
        Ok(Self::Own { client: open(url)?, pause })
    }
}

fn open(url: &str) -> Result<redis::Client, BenchError> {
    redis::Client::open(url).map_err(BenchError::context("parse the URL of Redis"))
}

async fn connect(client: &redis::Client) -> Result<MultiplexedConnection, BenchError> {
    client.get_multiplexed_async_connection().await.map_err(BenchError::context("connect to Redis"))
}

impl LockService for Bare {
    type Client = BareClient;

    async fn client(&self) -> Result<BareClient, BenchError> {
        let (connection, pause) = match self {
            Self::Shared { connection, pause } => (connection.clone(), *pause),
            Self::Own { client, pause } => (connect(client).await?, *pause),
        };
        let value = NEXT_CLIENT_VALUE.fetch_add(1 << 40, Ordering::Relaxed);
        Ok(BareClient { connection, script: Script::new(COMPARE_AND_DELETE), value, pause })
    }
}

impl LockClient for BareClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), BenchError> {
        self.value += 1;
        loop {
            let mut set = redis::cmd("SET");
            set.arg(lock).arg(self.value).arg("NX").arg("PX").arg(TTL_MS);
            match set.query_async(&mut self.connection).await.map_err(BenchError::context("set a lock"))? {
                Value::Okay => return Ok(()),
                _ => sleep(self.pause).await,
            }
        }
    }

    async fn release(&mut self, lock: &str) -> Result<(), BenchError> {
        let mut call = self.script.key(lock);
        let deleted: u64 = call
            .arg(self.value)
            .invoke_async(&mut self.connection)
            .await
            .map_err(BenchError::context("delete a lock"))?;
        if deleted == 1 { Ok(()) } else { Err(BenchError::new(format!("{lock} is no longer held"))) }
    }
}
