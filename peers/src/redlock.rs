//! The crate `rslock` with a single server. It retries after a random part of its retry delay.

use std::time::Duration;

use rslock::{Lock, LockManager};

use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService, TTL_MS};

pub(crate) enum Redlock {
    /// All clients share one manager and its multiplexed connection.
    Shared(LockManager),
    /// Each client has its own manager.
    Own { url: String, pause: Option<Duration> },
}

pub(crate) struct RedlockClient {
    manager: LockManager,
    held: Option<Lock>,
}

impl Redlock {
    pub(crate) fn shared(url: &str, pause: Option<Duration>) -> Result<Self, BenchError> {
        Ok(Self::Shared(manager(url, pause)?))
    }

    pub(crate) fn own(url: &str, pause: Option<Duration>) -> Self {
        Self::Own { url: url.to_owned(), pause }
    }
}

/// Retries without limit: by default rslock gives up after three tries. The delay is its default unless given.
fn manager(url: &str, pause: Option<Duration>) -> Result<LockManager, BenchError> {
    let client = redis::Client::open(url).map_err(BenchError::context("parse the URL of Redis"))?;
    let mut manager = LockManager::from_clients(vec![client]);
    manager.set_retry(u32::MAX, pause.unwrap_or(Duration::from_millis(200)));
    Ok(manager)
}

impl LockService for Redlock {
    type Client = RedlockClient;

    async fn client(&self) -> Result<RedlockClient, BenchError> {
        let manager = match self {
            Self::Shared(manager) => manager.clone(),
            Self::Own { url, pause } => manager(url, *pause)?,
        };
        let mut client = RedlockClient { manager, held: None };
        // The first command opens the connection.
        let lock = format!("bench:connect:{}", crate::clock::now_ns());
        client.acquire(&lock).await?;
        client.release(&lock).await?;
        Ok(client)
    }
}

impl LockClient for RedlockClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), BenchError> {
        let ttl = Duration::from_millis(TTL_MS);
        self.held =
            Some(self.manager.lock(lock, ttl).await.map_err(BenchError::context("lock with rslock"))?);
        Ok(())
    }

    async fn release(&mut self, lock: &str) -> Result<(), BenchError> {
        // rslock does not report whether the lock was still held.
        let held = self.held.take().ok_or_else(|| BenchError::new(format!("{lock} is not held")))?;
        self.manager.unlock(&held).await;
        Ok(())
    }
}
