//! Connections that were used a moment ago, at hand for whoever is next.
//!
//! A pool asks a connection how it is before it gives it out and after it comes back: three trips for one statement. What
//! came back whole a moment ago is handed on without that; what lay for longer, or was left in the middle of something, goes
//! through the pool, which looks at it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::DatabaseError;

/// How long a connection lies before somebody looks whether it is still good.
const FRESH: Duration = Duration::from_secs(1);
/// How long a connection stays here before the pool decides whether it has become too old.
const STAYS: Duration = Duration::from_secs(60);

/// The shelf; clones are the same one.
#[derive(Debug)]
pub(super) struct Shelf<D: Database> {
    pool: Pool<D>,
    /// As many as the pool has connections: whoever has one of these finds one here or there.
    places: Arc<Semaphore>,
    lying: Arc<Lying<D>>,
}

impl<D: Database> Clone for Shelf<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), places: self.places.clone(), lying: self.lying.clone() }
    }
}

#[derive(Debug)]
struct Lying<D: Database>(Mutex<Vec<Kept<D>>>);

#[derive(Debug)]
struct Kept<D: Database> {
    connection: PoolConnection<D>,
    since: Instant,
    taken: Instant,
}

/// A connection in use. Dropped in the middle of something it goes to the pool, which looks at it.
#[derive(Debug)]
pub(super) struct Held<D: Database> {
    connection: PoolConnection<D>,
    taken: Instant,
    lying: Arc<Lying<D>>,
    _place: OwnedSemaphorePermit,
}

impl<D: Database> Lying<D> {
    fn all(&self) -> Vec<Kept<D>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<D: Database> Drop for Lying<D> {
    fn drop(&mut self) {
        // The pool would want to look at each of them, for which there may be nobody any more who runs that.
        for kept in self.all() {
            drop(kept.connection.detach());
        }
    }
}

impl<D: Database> Shelf<D> {
    /// Before a pool that nobody else uses.
    pub(super) fn new(pool: Pool<D>) -> Self {
        let most = usize::try_from(pool.options().get_max_connections()).unwrap_or(Semaphore::MAX_PERMITS);
        Self { pool, places: Arc::new(Semaphore::new(most)), lying: Arc::new(Lying(Mutex::default())) }
    }

    /// A connection.
    pub(super) async fn take(&self) -> Result<Held<D>, DatabaseError> {
        let waited = timeout(self.pool.options().get_acquire_timeout(), self.places.clone().acquire_owned());
        let busy = || DatabaseError::Unavailable("all connections to the record are in use".to_owned());
        let place = waited.await.map_err(|_| busy())?.map_err(|_| busy())?;
        let now = Instant::now();
        let last = self.lying.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(Kept { connection, since, taken }) = last
            && now.duration_since(since) < FRESH
            && now.duration_since(taken) < STAYS
        {
            return Ok(Held { connection, taken, lying: self.lying.clone(), _place: place });
        }
        let connection = self.pool.acquire().await?;
        Ok(Held { connection, taken: now, lying: self.lying.clone(), _place: place })
    }

    /// One connection broke: so may have all others.
    pub(super) fn distrust(&self) {
        drop(self.lying.all());
    }
}

impl<D: Database> Held<D> {
    pub(super) fn link(&mut self) -> &mut D::Connection {
        &mut self.connection
    }

    /// It came back whole.
    pub(super) fn give_back(self) {
        let Self { connection, taken, lying, _place: place, .. } = self;
        let kept = Kept { connection, since: Instant::now(), taken };
        lying.0.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        // Only now, so that whoever waits for the place finds it.
        drop(place);
    }
}
