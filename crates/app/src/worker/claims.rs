//! Which tasks this worker tries next. A claim only keeps others from trying the same; nothing depends on it.

use std::sync::Arc;

use ade_store::DatabaseError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{MOST_AT_ONCE, Worker};

/// How long a task rests whose locks were not to be had, or that cannot be tried now.
const REST_MS: u64 = 1_000;
/// How long a claim keeps others away at most without being renewed.
const CLAIM_MS: u64 = 15_000;

impl Worker {
    /// As many as there are free slots, of which one is given.
    pub(super) async fn claim(
        &self,
        places: &[String],
        first: OwnedSemaphorePermit,
        slots: &Arc<Semaphore>,
    ) -> Result<Vec<(String, OwnedSemaphorePermit)>, DatabaseError> {
        let mut free = vec![first];
        while free.len() < MOST_AT_ONCE
            && let Ok(more) = Arc::clone(slots).try_acquire_owned()
        {
            free.push(more);
        }
        let (now, most) = (self.now(), u32::try_from(free.len()).unwrap_or(u32::MAX));
        let found = self.record.claim(places, &[], &self.name, now, self.claim_until(), most).await?;
        Ok(found.into_iter().zip(free).collect())
    }

    fn claim_until(&self) -> ade_domain::Moment {
        self.now().plus_ms(self.lease_ms.min(CLAIM_MS))
    }

    /// Keeps others away from a task that is tried, as long as it takes; whoever is killed meanwhile is in nobody's way for longer
    /// than a lease.
    pub(super) async fn stay_at(&self, task_id: &str) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(self.beat()).await;
            match self.record.put_off(task_id, &self.name, self.claim_until()).await {
                Ok(true) => {}
                // It has begun: from now on its lease keeps others away.
                Ok(false) => return std::future::pending().await,
                Err(error) => tracing::debug!(task_id, %error, "a claim cannot be renewed"),
            }
        }
    }

    /// Not now: others first.
    pub(super) async fn put_off(&self, task_id: &str) {
        let until = self.now().plus_ms(REST_MS);
        // If this is not written, the claim ends by itself.
        if let Err(error) = self.record.put_off(task_id, &self.name, until).await {
            tracing::debug!(task_id, %error, "cannot put a task off");
        }
    }
}
