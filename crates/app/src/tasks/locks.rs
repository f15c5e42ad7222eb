//! Which locks carrying a task out will need, and how they stand: shown to reviewers. Nothing is held while people think.

use ade_domain::lock::{LockName, Mode};
use ade_domain::task::{Config, LockPreview, ResourceMode};
use ade_store::coordination::LockView;
use ade_store::{Coordination, CoordinationError};
use futures_util::future::join_all;

use super::TaskService;

impl TaskService {
    /// The locks of a config, and of the task if there is one already. Where nobody can look, it says so.
    pub(super) async fn lock_preview(&self, config: &Config, task_id: Option<&str>) -> Vec<LockPreview> {
        // All at once: whoever submits should not wait once for each lock.
        let looks = config.locks(task_id).into_iter().map(|(name, mode)| async move {
            let found = match (self.locks.as_deref(), name.parse::<LockName>()) {
                (Some(locks), Ok(lock)) => look(locks, lock, mode).await.map(Some),
                _ => Ok(None),
            };
            (found, name, mode)
        });
        let (mut previews, mut told) = (Vec::new(), false);
        for (found, name, mode) in join_all(looks).await {
            if let (Err(error), false) = (&found, told) {
                tracing::warn!(%error, "locks of a task cannot be looked at");
                told = true;
            }
            previews.push(found.ok().flatten().unwrap_or_else(|| LockPreview::unavailable(name, mode)));
        }
        previews
    }
}

async fn look(
    locks: &dyn Coordination,
    lock: LockName,
    mode: ResourceMode,
) -> Result<LockPreview, CoordinationError> {
    let view = locks.look(lock).await?;
    let wait_ms = expected_wait_ms(&view, mode, locks);
    let holders = view.holders.iter().map(|held| held.holder.to_string()).collect();
    Ok(LockPreview {
        lock: view.lock.as_str().to_owned(),
        mode,
        holders,
        waiting: view.queue_length as u64,
        expected_wait_seconds: wait_ms.div_ceil(1_000),
        unavailable: false,
    })
}

/// An estimate: the longest lease that is left, and for each who waits the mean of the present leases, from being granted to
/// their end; the usual lease if nobody holds it. Holders may renew, or give back early. Whoever shares with those who share
/// does not wait.
fn expected_wait_ms(view: &LockView, mode: ResourceMode, locks: &dyn Coordination) -> u64 {
    let wanted = match mode {
        ResourceMode::Exclusive => Mode::Exclusive,
        ResourceMode::Shared => Mode::Shared,
    };
    if view.queue_length == 0 && view.mode.is_none_or(|held| held.goes_with(wanted)) {
        return 0;
    }
    let (now, many) = (locks.now(), view.holders.len() as u64);
    let left = view.holders.iter().map(|held| held.grant.expires_at.ms_since(now)).max().unwrap_or(0);
    let leases: u64 =
        view.holders.iter().map(|held| held.grant.expires_at.ms_since(held.grant.acquired_at)).sum();
    let mean = leases.checked_div(many).unwrap_or(locks.rules().default_ttl_ms);
    left.saturating_add(mean.saturating_mul(view.queue_length as u64))
}
