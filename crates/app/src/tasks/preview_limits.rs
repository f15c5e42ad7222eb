//! How many previews people and agents may request. A preview reads data and runs programs before anybody has approved anything, so
//! it has a rate limit of its own, and only a few run at the same time, in this process and for one caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_store::Coordination;
use ade_store::coordination::Counting;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::{Caller, Error, Result};

/// The group of endpoints that previews count for.
const GROUP: &str = "previews";
const MAX_CONCURRENT: usize = 8;
const MAX_CONCURRENT_PER_CALLER: usize = 4;
/// How long a request waits for others to finish.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(15);
/// Callers whose permits are kept. Above that, those who run no preview are dropped.
const MAX_CALLERS: usize = 10_000;

/// Permission to run one preview.
#[derive(Debug)]
pub(super) struct PreviewPermit {
    _of_process: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) struct PreviewLimits {
    concurrent: Arc<Semaphore>,
    /// By user, and by sponsor.
    callers: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for PreviewLimits {
    fn default() -> Self {
        Self { concurrent: Arc::new(Semaphore::new(MAX_CONCURRENT)), callers: Mutex::default() }
    }
}

/// The user, or all agents of a sponsor together, so that more agents do not mean more previews; none for the bootstrap token.
fn subject(caller: &Caller) -> Option<String> {
    let kind = if caller.agent_id.is_some() { "agents" } else { "user" };
    caller.user_id().map(|user| format!("{kind}:{user}"))
}

impl PreviewLimits {
    /// Counts a preview of a caller. The bootstrap token, which belongs to the operator, has no limit.
    pub(super) async fn count(
        coordination: &Arc<dyn Coordination>,
        per_minute: Option<u32>,
        caller: &Caller,
    ) -> Result<()> {
        let (Some(limit), Some(subject)) = (per_minute, subject(caller)) else { return Ok(()) };
        let count = coordination.count_request(GROUP.to_owned(), subject, limit, Counting::InBlocks).await?;
        if count.allowed {
            return Ok(());
        }
        let retry_after_seconds = count.reset_at.ms_since(coordination.now()).div_ceil(1_000).max(1);
        Err(Error::RateLimited { group: GROUP, limit, retry_after_seconds })
    }

    /// Waits until the caller may run a preview.
    pub(super) async fn acquire(&self, caller: &Caller) -> Result<PreviewPermit> {
        self.acquire_within(caller, QUEUE_TIMEOUT).await
    }

    async fn acquire_within(&self, caller: &Caller, queue_timeout: Duration) -> Result<PreviewPermit> {
        let of_caller = self.permits_of(caller);
        let acquire = async {
            // First that of the caller: one who waits for previews of its own takes no place from others.
            let _of_caller = of_caller.acquire_owned().await?;
            let _of_process = Arc::clone(&self.concurrent).acquire_owned().await?;
            Ok::<_, tokio::sync::AcquireError>(PreviewPermit { _of_process, _of_caller })
        };
        timeout(queue_timeout, acquire).await.ok().and_then(Result::ok).ok_or(Error::PreviewBusy)
    }

    fn permits_of(&self, caller: &Caller) -> Arc<Semaphore> {
        let subject = subject(caller).unwrap_or_default();
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= MAX_CALLERS && !callers.contains_key(&subject) {
            callers.retain(|_, concurrent| Arc::strong_count(concurrent) > 1);
        }
        let new = || Arc::new(Semaphore::new(MAX_CONCURRENT_PER_CALLER));
        Arc::clone(callers.entry(subject).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ade_domain::audit::AuditActor;
    use ade_domain::independence::AccountHistory;
    use ade_domain::people::{User, UserId};

    use super::*;

    fn caller(user: &str) -> Caller {
        let user = User {
            user_id: UserId::new(user),
            name: user.to_owned(),
            roles: BTreeSet::new(),
            manager_id: None,
            team: None,
            email: None,
            active: true,
            history: AccountHistory::default(),
        };
        Caller::new(Some(user), BTreeSet::new(), AuditActor::default())
    }

    #[test]
    fn keeps_the_permits_of_callers_with_previews_only() {
        let limits = PreviewLimits::default();
        let running = limits.permits_of(&caller("busy"));
        for number in 1..MAX_CALLERS {
            drop(limits.permits_of(&caller(&number.to_string())));
        }
        drop(limits.permits_of(&caller("late")));
        assert_eq!(limits.callers.lock().expect("not poisoned").len(), 2);
        assert!(Arc::ptr_eq(&running, &limits.permits_of(&caller("busy"))));
    }

    #[test]
    fn agents_of_one_sponsor_share_their_limit() {
        let agent = |id: &str| Caller { agent_id: Some(id.to_owned()), ..caller("pat") };
        assert_eq!(subject(&agent("one")), subject(&agent("other")));
        assert_ne!(subject(&agent("one")), subject(&caller("pat")), "the sponsor goes on");
    }

    #[tokio::test]
    async fn bounds_concurrent_previews_per_caller_and_process() {
        let limits = PreviewLimits::default();
        let acquire = async |caller: &Caller| limits.acquire_within(caller, Duration::ZERO).await;
        let (one, other) = (caller("one"), caller("other"));
        let mut permits = Vec::new();
        for _ in 0..MAX_CONCURRENT_PER_CALLER {
            permits.push(acquire(&one).await.expect("free"));
        }
        assert_eq!(acquire(&one).await.err(), Some(Error::PreviewBusy));
        for _ in MAX_CONCURRENT_PER_CALLER..MAX_CONCURRENT {
            permits.push(acquire(&other).await.expect("others go on"));
        }
        assert_eq!(acquire(&caller("third")).await.err(), Some(Error::PreviewBusy));
        permits.pop();
        assert!(acquire(&caller("third")).await.is_ok());
    }
}
