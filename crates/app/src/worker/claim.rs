//! Claiming tasks. A claim only keeps other workers from trying the same task; correctness does not depend on it.

use std::sync::Arc;

use ade_store::DatabaseError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{MAX_CLAIMS, Worker};

/// Delay before a task is tried again if its locks are held, or if it cannot be applied now.
const RETRY_DELAY_MS: u64 = 1_000;
const MAX_CLAIM_TTL_MS: u64 = 15_000;

impl Worker {
    /// Claims as many tasks as there are free slots, one of which is given.
    pub(super) async fn claim(
        &self,
        work_queues: &[String],
        slot: OwnedSemaphorePermit,
        slots: &Arc<Semaphore>,
    ) -> Result<Vec<(String, OwnedSemaphorePermit)>, DatabaseError> {
        let mut free = vec![slot];
        while free.len() < MAX_CLAIMS
            && let Ok(slot) = Arc::clone(slots).try_acquire_owned()
        {
            free.push(slot);
        }
        let (now, limit) = (self.now(), u32::try_from(free.len()).unwrap_or(u32::MAX));
        let (database, until) = (&self.context.database, self.claim_until());
        let claimed = database.claim_tasks(work_queues, &[], &self.name, now, until, limit).await?;
        Ok(claimed.into_iter().zip(free).collect())
    }

    fn claim_until(&self) -> ade_domain::Moment {
        self.now().plus_ms(self.lease_ms.min(MAX_CLAIM_TTL_MS))
    }

    /// Renews a claim until the attempt begins. The claim of a killed worker expires within one lease.
    pub(super) async fn renew_claim(&self, task_id: &str) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(self.heartbeat_interval()).await;
            match self.context.database.postpone_claim(task_id, &self.name, self.claim_until()).await {
                Ok(true) => {}
                // The attempt has begun: its lease keeps others away from now on.
                Ok(false) => return std::future::pending().await,
                Err(error) => tracing::debug!(task_id, %error, "cannot renew a claim"),
            }
        }
    }

    /// Leaves a task alone for a while, so that others come first.
    pub(super) async fn postpone(&self, task_id: &str) {
        let until = self.now().plus_ms(RETRY_DELAY_MS);
        // If this fails, the claim expires by itself.
        if let Err(error) = self.context.database.postpone_claim(task_id, &self.name, until).await {
            tracing::debug!(task_id, %error, "cannot postpone a task");
        }
    }
}
