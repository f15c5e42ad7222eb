//! The bare minimum: `SET key value NX PX`, then a script that deletes the key if it still has the value. Nothing can be
//! cheaper and still be a lock on Redis. It knows no waiting: whoever finds it taken asks again after a pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use tokio::time::sleep;

use crate::failure::Failure;
use crate::peer::{Client, Peer, TTL_MS};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Where the values of the next client begin: every acquisition of every client has a value of its own.
static CLIENTS: AtomicU64 = AtomicU64::new(1 << 40);

/// How clients reach the server.
pub(crate) enum Bare {
    /// All share one multiplexed connection.
    Shared { connection: MultiplexedConnection, pause: Duration },
    /// Each has one.
    Own { client: redis::Client, pause: Duration },
}

pub(crate) struct BareClient {
    connection: MultiplexedConnection,
    script: Script,
    value: u64,
    pause: Duration,
}

impl Bare {
    pub(crate) async fn shared(url: &str, pause: Duration) -> Result<Self, Failure> {
        let connection = connect(&open(url)?).await?;
        Ok(Self::Shared { connection, pause })
    }

    pub(crate) fn own(url: &str, pause: Duration) -> Result<Self, Failure> {
        Ok(Self::Own { client: open(url)?, pause })
    }
}

fn open(url: &str) -> Result<redis::Client, Failure> {
    redis::Client::open(url).map_err(Failure::of("read the URL of Redis"))
}

async fn connect(client: &redis::Client) -> Result<MultiplexedConnection, Failure> {
    client.get_multiplexed_async_connection().await.map_err(Failure::of("connect to Redis"))
}

impl Peer for Bare {
    type Client = BareClient;

    async fn client(&self) -> Result<BareClient, Failure> {
        let (connection, pause) = match self {
            Self::Shared { connection, pause } => (connection.clone(), *pause),
            Self::Own { client, pause } => (connect(client).await?, *pause),
        };
        let value = CLIENTS.fetch_add(1 << 40, Ordering::Relaxed);
        Ok(BareClient { connection, script: Script::new(COMPARE_AND_DELETE), value, pause })
    }
}

impl Client for BareClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), Failure> {
        self.value += 1;
        loop {
            let mut set = redis::cmd("SET");
            set.arg(lock).arg(self.value).arg("NX").arg("PX").arg(TTL_MS);
            match set.query_async(&mut self.connection).await.map_err(Failure::of("set a lock"))? {
                Value::Okay => return Ok(()),
                _ => sleep(self.pause).await,
            }
        }
    }

    async fn release(&mut self, lock: &str) -> Result<(), Failure> {
        let mut call = self.script.key(lock);
        let deleted: u64 = call
            .arg(self.value)
            .invoke_async(&mut self.connection)
            .await
            .map_err(Failure::of("delete a lock"))?;
        if deleted == 1 { Ok(()) } else { Err(Failure::new(format!("{lock} was lost"))) }
    }
}
