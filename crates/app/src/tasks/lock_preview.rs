//! The locks that applying a task will need, with their current state, for reviewers. No lock is held during a review.

use ade_domain::lock::{LockMode, LockName};
use ade_domain::task::{Config, LockPreview, TaskScope};
use ade_store::coordination::LockView;
use ade_store::{Coordination, CoordinationError};
use futures_util::future::join_all;

use super::TaskService;

impl TaskService {
    /// The locks of a config, and of its task if it exists. If coordination does not answer, they are marked unavailable.
    pub(super) async fn lock_preview(
        &self,
        config: &Config,
        scope: &TaskScope,
        task_id: Option<&str>,
    ) -> Vec<LockPreview> {
        // All at once, instead of one round trip after the other.
        let lookups = scope.locks(config, task_id).into_iter().map(|(name, mode)| async move {
            let found = match name.parse::<LockName>() {
                Ok(lock) => preview(self.context.coordination.as_ref(), lock, mode).await.map(Some),
                Err(_) => Ok(None),
            };
            (found, name, mode)
        });
        let (mut previews, mut is_logged) = (Vec::new(), false);
        for (found, name, mode) in join_all(lookups).await {
            if let (Err(error), false) = (&found, is_logged) {
                tracing::warn!(%error, "cannot preview the locks of a task");
                is_logged = true;
            }
            previews.push(found.ok().flatten().unwrap_or_else(|| LockPreview::unavailable(name, mode)));
        }
        previews
    }
}

async fn preview(
    coordination: &dyn Coordination,
    lock: LockName,
    mode: LockMode,
) -> Result<LockPreview, CoordinationError> {
    let view = coordination.lock_view(lock).await?;
    let wait_ms = expected_wait_ms(&view, mode, coordination);
    let holders = view.holders.iter().map(|held| held.holder.to_string()).collect();
    Ok(LockPreview {
        lock: view.lock.as_str().to_owned(),
        mode,
        holders,
        queue_length: view.queue_length as u64,
        expected_wait_seconds: wait_ms.div_ceil(1_000),
        unavailable: false,
    })
}

/// An estimate: the rest of the longest lease, plus the mean lease for each waiter (the default lease if nobody holds the
/// lock). Holders may renew or release early. A shared request does not wait for shared holders.
fn expected_wait_ms(view: &LockView, mode: LockMode, coordination: &dyn Coordination) -> u64 {
    if view.queue_length == 0 && view.mode.is_none_or(|held| held.is_compatible_with(mode)) {
        return 0;
    }
    let (now, holders) = (coordination.now(), view.holders.len() as u64);
    let left = view.holders.iter().map(|held| held.grant.expires_at.ms_since(now)).max().unwrap_or(0);
    let leases: u64 =
        view.holders.iter().map(|held| held.grant.expires_at.ms_since(held.grant.acquired_at)).sum();
    let mean = leases.checked_div(holders).unwrap_or(coordination.limits().default_ttl_ms);
    left.saturating_add(mean.saturating_mul(view.queue_length as u64))
}
