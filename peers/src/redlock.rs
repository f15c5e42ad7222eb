//! The crate `rslock`, with the one server that there is. It asks again after a random part of its retry delay.

use std::time::Duration;

use rslock::{Lock, LockManager};

use crate::failure::Failure;
use crate::peer::{Client, Peer, TTL_MS};

/// How clients reach the server.
pub(crate) enum Redlock {
    /// All share one manager, and so one multiplexed connection.
    Shared(LockManager),
    /// Each has one.
    Own { url: String, pause: Option<Duration> },
}

pub(crate) struct RedlockClient {
    manager: LockManager,
    held: Option<Lock>,
}

impl Redlock {
    pub(crate) fn shared(url: &str, pause: Option<Duration>) -> Result<Self, Failure> {
        Ok(Self::Shared(manager(url, pause)?))
    }

    pub(crate) fn own(url: &str, pause: Option<Duration>) -> Self {
        Self::Own { url: url.to_owned(), pause }
    }
}

/// Its own delay unless told otherwise, but as many tries as it takes: by default it gives up after three.
fn manager(url: &str, pause: Option<Duration>) -> Result<LockManager, Failure> {
    let client = redis::Client::open(url).map_err(Failure::of("read the URL of Redis"))?;
    let mut manager = LockManager::from_clients(vec![client]);
    manager.set_retry(u32::MAX, pause.unwrap_or(Duration::from_millis(200)));
    Ok(manager)
}

impl Peer for Redlock {
    type Client = RedlockClient;

    async fn client(&self) -> Result<RedlockClient, Failure> {
        let manager = match self {
            Self::Shared(manager) => manager.clone(),
            Self::Own { url, pause } => manager(url, *pause)?,
        };
        let mut client = RedlockClient { manager, held: None };
        // It connects with the first command.
        let first = format!("bench:connect:{}", crate::clock::now_ns());
        client.acquire(&first).await?;
        client.release(&first).await?;
        Ok(client)
    }
}

impl Client for RedlockClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), Failure> {
        let ttl = Duration::from_millis(TTL_MS);
        self.held = Some(self.manager.lock(lock, ttl).await.map_err(Failure::of("lock with rslock"))?);
        Ok(())
    }

    async fn release(&mut self, lock: &str) -> Result<(), Failure> {
        // It does not tell whether the lock was still held.
        let held = self.held.take().ok_or_else(|| Failure::new(format!("{lock} is not held")))?;
        self.manager.unlock(&held).await;
        Ok(())
    }
}
