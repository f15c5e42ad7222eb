//! Which tasks this worker tries next. A claim only keeps others from trying the same; nothing depends on it.

use std::sync::Arc;

use ade_store::RecordError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{CLAIM_MS, MOST_AT_ONCE, Worker};

/// How long a task rests whose locks were not to be had, or that cannot be tried now.
const REST_MS: u64 = 1_000;

impl Worker {
    /// As many as there are free slots. Waits until one is free.
    pub(super) async fn claim(
        &self,
        places: &[String],
        slots: &Arc<Semaphore>,
    ) -> Result<Vec<(String, OwnedSemaphorePermit)>, RecordError> {
        let Ok(first) = Arc::clone(slots).acquire_owned().await else { return Ok(Vec::new()) };
        let mut free = vec![first];
        while free.len() < MOST_AT_ONCE
            && let Ok(more) = Arc::clone(slots).try_acquire_owned()
        {
            free.push(more);
        }
        let (now, most) = (self.now(), u32::try_from(free.len()).unwrap_or(u32::MAX));
        let found = self.record.claim(places, &[], &self.name, now, now.plus_ms(CLAIM_MS), most).await?;
        Ok(found.into_iter().zip(free).collect())
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
