//! How many previews people and agents may request. A preview reads data and runs programs before anybody has approved anything, so
//! it has a rate limit of its own, and only a few run at the same time, in this process and for one caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_store::Coordination;
use ade_store::coordination::RateCount;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::{Caller, Error, Result};

/// The group of endpoints that previews count for.
const GROUP: &str = "previews";
const MAX_CONCURRENT: usize = 8;
const MAX_CONCURRENT_PER_CALLER: usize = 4;
/// How long a request waits for others to finish.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(15);
const WINDOW: Duration = Duration::from_secs(60);
/// Callers whose previews are counted here. Above that, those whose minute has ended are dropped.
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
    callers: Mutex<HashMap<String, CallerPreviews>>,
}

/// The previews of one caller.
#[derive(Debug)]
struct CallerPreviews {
    concurrent: Arc<Semaphore>,
    /// When the current minute began, and the number of previews since then.
    window: (Instant, u32),
}

impl Default for PreviewLimits {
    fn default() -> Self {
        Self { concurrent: Arc::new(Semaphore::new(MAX_CONCURRENT)), callers: Mutex::default() }
    }
}

/// The agent, or the user; the bootstrap token has no name.
fn subject(caller: &Caller) -> &str {
    let user = caller.user_id().map(|user| user.as_str());
    caller.agent_id.as_deref().or(user).unwrap_or_default()
}

impl PreviewLimits {
    /// Counts a preview of a caller. Each process counts by itself as well, so that the limit holds per process while the shared
    /// counters are unavailable. The bootstrap token, which belongs to the operator, has no limit.
    pub(super) async fn count(
        &self,
        coordination: &Arc<dyn Coordination>,
        per_minute: Option<u32>,
        caller: &Caller,
    ) -> Result<()> {
        let (Some(limit), subject) = (per_minute, subject(caller)) else { return Ok(()) };
        if subject.is_empty() {
            return Ok(());
        }
        let retry_after_seconds = match self.count_locally(subject, limit, Instant::now()) {
            Some(wait) => Some(wait.as_secs().max(1)),
            None => match coordination.count_request(GROUP.to_owned(), subject.to_owned(), limit).await {
                Ok(RateCount { allowed: false, reset_at, .. }) => {
                    Some(reset_at.ms_since(coordination.now()).div_ceil(1_000).max(1))
                }
                Ok(_) | Err(_) => None,
            },
        };
        let refused = |retry_after_seconds| Error::RateLimited { group: GROUP, limit, retry_after_seconds };
        retry_after_seconds.map_or(Ok(()), |seconds| Err(refused(seconds)))
    }

    /// How long the caller must wait, if the limit is reached.
    fn count_locally(&self, subject: &str, limit: u32, now: Instant) -> Option<Duration> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = caller_entry(&mut callers, subject, now);
        let (start, count) = &mut caller.window;
        let elapsed = now.saturating_duration_since(*start);
        if elapsed >= WINDOW {
            (*start, *count) = (now, 0);
        }
        if *count >= limit {
            return Some(WINDOW.saturating_sub(elapsed));
        }
        *count += 1;
        None
    }

    /// Waits until the caller may run a preview.
    pub(super) async fn acquire(&self, caller: &Caller) -> Result<PreviewPermit> {
        self.acquire_within(caller, QUEUE_TIMEOUT).await
    }

    async fn acquire_within(&self, caller: &Caller, queue_timeout: Duration) -> Result<PreviewPermit> {
        let of_caller = {
            let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&caller_entry(&mut callers, subject(caller), Instant::now()).concurrent)
        };
        let acquire = async {
            // First that of the caller: one who waits for previews of its own takes no place from others.
            let _of_caller = of_caller.acquire_owned().await?;
            let _of_process = Arc::clone(&self.concurrent).acquire_owned().await?;
            Ok::<_, tokio::sync::AcquireError>(PreviewPermit { _of_process, _of_caller })
        };
        timeout(queue_timeout, acquire).await.ok().and_then(Result::ok).ok_or(Error::PreviewBusy)
    }
}

fn caller_entry<'a>(
    callers: &'a mut HashMap<String, CallerPreviews>,
    subject: &str,
    now: Instant,
) -> &'a mut CallerPreviews {
    if callers.len() >= MAX_CALLERS && !callers.contains_key(subject) {
        callers.retain(|_, caller| {
            let is_recent = now.saturating_duration_since(caller.window.0) < WINDOW;
            is_recent || Arc::strong_count(&caller.concurrent) > 1
        });
    }
    callers.entry(subject.to_owned()).or_insert_with(|| CallerPreviews {
        concurrent: Arc::new(Semaphore::new(MAX_CONCURRENT_PER_CALLER)),
        window: (now, 0),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ade_domain::audit::AuditActor;

    use super::*;

    fn caller(agent: &str) -> Caller {
        let caller = Caller::new(None, BTreeSet::new(), AuditActor::default());
        Caller { agent_id: Some(agent.to_owned()), ..caller }
    }

    #[test]
    fn counts_previews_of_each_caller_within_a_minute() {
        let (limits, start) = (PreviewLimits::default(), Instant::now());
        let count = |subject, seconds| limits.count_locally(subject, 2, start + Duration::from_secs(seconds));
        assert_eq!((count("ann", 0), count("ann", 10)), (None, None));
        assert_eq!(count("ann", 20), Some(Duration::from_secs(40)));
        assert_eq!(count("bob", 20), None, "callers are counted separately");
        assert_eq!(count("ann", 60), None, "the minute has ended");
    }

    #[test]
    fn drops_callers_whose_minute_has_ended() {
        let (limits, start) = (PreviewLimits::default(), Instant::now());
        for number in 0..MAX_CALLERS {
            assert_eq!(limits.count_locally(&number.to_string(), 1, start), None);
        }
        assert_eq!(limits.count_locally("late", 1, start + WINDOW), None);
        assert_eq!(limits.callers.lock().expect("not poisoned").len(), 1);
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
