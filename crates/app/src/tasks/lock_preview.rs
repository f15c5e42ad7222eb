//! The locks that applying a task will need, with their current state, for reviewers. No lock is held during a review.

use ade_domain::lock::{LockMode, LockName};
use ade_domain::task::{Config, LockPreview, TaskScope};
use ade_store::Coordination;
use ade_store::coordination::LockView;

use super::TaskService;

impl TaskService {
    /// The locks of a config, and of its task if it exists. If coordination does not answer, they are marked unavailable.
    pub(super) async fn lock_preview(
        &self,
        config: &Config,
        scope: &TaskScope,
        task_id: Option<&str>,
    ) -> Vec<LockPreview> {
        let wanted: Vec<(String, LockMode)> = scope.locks(config, task_id).into_iter().collect();
        let named = wanted.iter().filter_map(|(name, mode)| Some((name.parse::<LockName>().ok()?, *mode)));
        let (locks, modes): (Vec<_>, Vec<_>) = named.unzip();
        let coordination = self.context.coordination.as_ref();
        let views = coordination.peek_locks(locks).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot preview the locks of a task");
            Vec::new()
        });
        let mut found =
            views.iter().zip(modes).map(|(view, mode)| preview(view, mode, coordination)).peekable();
        let preview_of = |(name, mode): (String, LockMode)| {
            found.next_if(|found| found.lock == name).unwrap_or_else(|| LockPreview::unavailable(name, mode))
        };
        wanted.into_iter().map(preview_of).collect()
    }
}

fn preview(view: &LockView, mode: LockMode, coordination: &dyn Coordination) -> LockPreview {
    let wait_ms = expected_wait_ms(view, mode, coordination);
    LockPreview {
        lock: view.lock.as_str().to_owned(),
        mode,
        holders: view.holders.iter().map(|held| held.holder.to_string()).collect(),
        queue_length: view.queue_length as u64,
        expected_wait_seconds: wait_ms.div_ceil(1_000),
        unavailable: false,
    }
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
