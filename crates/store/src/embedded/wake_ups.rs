//! Wake-ups for workers, in this process: kept in memory, because every receiver ends with the process, and the database knows what is
//! due.
//!
//! They have a mutex of their own: sending and receiving neither wait for lock commands nor delay them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_keyspace::ade::ids::QueueName;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::EmbeddedCoordination;
use crate::coordination::{
    AsyncResult, MAX_MOVED_WAKE_UPS, MAX_QUEUED_WAKE_UPS, MAX_SCHEDULED_WAKE_UPS, MAX_WAIT, MovedWakeUps,
    ReceivedWakeUp, Result, WakeAt, WakeUp, WakeUpQueue, parse_job_id, parse_job_lock, parse_queue,
    parse_queues,
};

#[derive(Debug, Default)]
pub(super) struct WakeUpQueues {
    state: Mutex<WakeUpState>,
    changed: Notify,
}

/// A scheduled wake-up: the name of its queue, and what it is about.
type Scheduled = (&'static str, String);

#[derive(Debug, Default)]
struct WakeUpState {
    queues: HashMap<QueueName, VecDeque<String>>,
    scheduled: HashMap<Scheduled, Moment>,
    /// The scheduled wake-ups in the order in which they are due.
    by_moment: BTreeSet<(Moment, Scheduled)>,
    job_locks: HashMap<String, JobLock>,
    /// Expired locks are removed when there are this many locks.
    evict_at: usize,
    now: Moment,
}

#[derive(Debug)]
struct JobLock {
    holder: String,
    until: Moment,
}

/// With fewer locks than this, expired ones are not removed.
const MIN_EVICTED_LOCKS: usize = 256;

impl WakeUpQueues {
    fn lock(&self, clock: Moment) -> MutexGuard<'_, WakeUpState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = state.now.max(clock);
        state
    }
}

impl WakeUpState {
    /// Returns how many could not be scheduled.
    fn send(&mut self, wake_ups: impl Iterator<Item = (QueueName, WakeUp)>) -> usize {
        let mut rejected = 0;
        for (queue, WakeUp { subject, when, .. }) in wake_ups {
            let scheduled = (queue.as_written(), subject.clone());
            match when {
                WakeAt::At(at) if at > self.now => rejected += usize::from(!self.schedule(at, scheduled)),
                WakeAt::Now | WakeAt::At(_) => {
                    self.unschedule(scheduled);
                    self.push(queue, subject);
                }
                WakeAt::Never => self.unschedule(scheduled),
            }
        }
        rejected
    }

    fn push(&mut self, queue: QueueName, about: String) {
        let waiting = self.queues.entry(queue).or_default();
        if waiting.len() >= MAX_QUEUED_WAKE_UPS {
            waiting.pop_front();
        }
        waiting.push_back(about);
    }

    fn take(&mut self, queues: &[QueueName]) -> Option<ReceivedWakeUp> {
        queues.iter().find_map(|queue| {
            let about = self.queues.get_mut(queue)?.pop_front()?;
            Some(ReceivedWakeUp { queue: queue.as_written().to_owned(), subject: about })
        })
    }

    fn schedule(&mut self, at: Moment, wake_up: Scheduled) -> bool {
        if self.scheduled.len() >= MAX_SCHEDULED_WAKE_UPS && !self.scheduled.contains_key(&wake_up) {
            return false;
        }
        if let Some(before) = self.scheduled.insert(wake_up.clone(), at) {
            self.by_moment.remove(&(before, wake_up.clone()));
        }
        self.by_moment.insert((at, wake_up));
        true
    }

    fn unschedule(&mut self, wake_up: Scheduled) {
        if let Some(before) = self.scheduled.remove(&wake_up) {
            self.by_moment.remove(&(before, wake_up));
        }
    }

    fn push_due(&mut self) -> Result<MovedWakeUps> {
        let mut moved = 0;
        while moved < MAX_MOVED_WAKE_UPS && self.by_moment.first().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, wake_up)) = self.by_moment.pop_first() else { break };
            self.scheduled.remove(&wake_up);
            self.push(parse_queue(wake_up.0)?, wake_up.1);
            moved += 1;
        }
        let next_in = self.by_moment.first().map(|(at, _)| Duration::from_millis(at.ms_since(self.now)));
        Ok(MovedWakeUps { count: moved, next_in })
    }

    fn lock_job(&mut self, job_id: String, holder: String, ttl: Duration) -> bool {
        let now = self.now;
        if self.job_locks.get(&job_id).is_some_and(|lock| lock.until > now && lock.holder != holder) {
            return false;
        }
        if self.job_locks.len() >= self.evict_at.max(MIN_EVICTED_LOCKS) {
            self.job_locks.retain(|_, lock| lock.until > now);
            self.evict_at = 2 * self.job_locks.len();
        }
        let until = now.plus_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self.job_locks.insert(job_id, JobLock { holder, until });
        true
    }

    fn unlock_job(&mut self, job_id: &str, holder: &str) -> bool {
        let is_held = |lock: &JobLock| lock.until > self.now && lock.holder == holder;
        self.job_locks.get(job_id).is_some_and(is_held) && self.job_locks.remove(job_id).is_some()
    }
}

impl EmbeddedCoordination {
    fn wake_ups(&self) -> MutexGuard<'_, WakeUpState> {
        self.inner.wake_ups.lock(self.inner.now())
    }
}

impl WakeUpQueue for EmbeddedCoordination {
    fn send_wake_ups(&self, wake_ups: Vec<WakeUp>) -> AsyncResult<'_, usize> {
        Box::pin(async move {
            let queues =
                wake_ups.iter().map(|wake_up| parse_queue(&wake_up.queue)).collect::<Result<Vec<_>>>()?;
            let rejected = self.wake_ups().send(queues.into_iter().zip(wake_ups));
            self.inner.wake_ups.changed.notify_waiters();
            Ok(rejected)
        })
    }

    fn receive_wake_up(
        &self,
        queues: Vec<String>,
        max_wait: Duration,
    ) -> AsyncResult<'_, Option<ReceivedWakeUp>> {
        Box::pin(async move {
            let queues = parse_queues(&queues)?;
            let receive = async {
                loop {
                    // Before the queues are read, so that a wake-up in between is not missed.
                    let mut changed = pin!(self.inner.wake_ups.changed.notified());
                    changed.as_mut().enable();
                    let received = self.wake_ups().take(&queues);
                    if let Some(wake_up) = received {
                        return wake_up;
                    }
                    changed.await;
                }
            };
            Ok(timeout(max_wait.min(MAX_WAIT), receive).await.ok())
        })
    }

    fn move_due_wake_ups(&self) -> AsyncResult<'_, MovedWakeUps> {
        Box::pin(async move {
            let moved = self.wake_ups().push_due()?;
            if moved.count > 0 {
                self.inner.wake_ups.changed.notify_waiters();
            }
            Ok(moved)
        })
    }

    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let (_, ttl) = parse_job_lock(&job_id, ttl_ms)?;
            Ok(self.wake_ups().lock_job(job_id, holder, ttl))
        })
    }

    fn unlock_job(&self, job_id: String, holder: String) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            parse_job_id(&job_id)?;
            Ok(self.wake_ups().unlock_job(&job_id, &holder))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_expired_job_locks() {
        let mut state = WakeUpState::default();
        for job in 0..10 * MIN_EVICTED_LOCKS {
            state.now = state.now.plus_ms(1);
            assert!(state.lock_job(job.to_string(), "ann".to_owned(), Duration::from_millis(10)));
        }
        assert!(state.job_locks.len() <= MIN_EVICTED_LOCKS, "{}", state.job_locks.len());
        assert!(state.lock_job("long".to_owned(), "ann".to_owned(), Duration::from_secs(60)));
        state.now = state.now.plus_ms(1_000);
        for job in 0..2 * MIN_EVICTED_LOCKS {
            assert!(state.lock_job(job.to_string(), "ben".to_owned(), Duration::from_millis(1)));
        }
        assert!(
            !state.lock_job("long".to_owned(), "ben".to_owned(), Duration::from_millis(1)),
            "a lock that has not expired stays"
        );
    }

    #[test]
    fn bounds_the_number_of_scheduled_wake_ups() {
        let mut state = WakeUpState::default();
        let at = |number: usize| Moment::default().plus_ms(1 + number as u64);
        for number in 0..MAX_SCHEDULED_WAKE_UPS {
            assert!(state.schedule(at(number), ("apply", number.to_string())));
        }
        assert!(!state.schedule(at(0), ("apply", "one more".to_owned())));
        assert!(
            state.schedule(at(MAX_SCHEDULED_WAKE_UPS), ("apply", "0".to_owned())),
            "a scheduled one can be rescheduled"
        );
        state.now = at(MAX_SCHEDULED_WAKE_UPS);
        let moved = MovedWakeUps { count: MAX_MOVED_WAKE_UPS, next_in: Some(Duration::ZERO) };
        assert_eq!(state.push_due(), Ok(moved), "more are due at once");
        assert_eq!(state.scheduled.len(), MAX_SCHEDULED_WAKE_UPS - MAX_MOVED_WAKE_UPS);
        assert_eq!(state.by_moment.len(), state.scheduled.len());
        state.unschedule(("apply", "0".to_owned()));
        state.unschedule(("apply", "unknown".to_owned()));
        assert_eq!(state.scheduled.len(), MAX_SCHEDULED_WAKE_UPS - MAX_MOVED_WAKE_UPS - 1);
        assert_eq!(state.by_moment.len(), state.scheduled.len());
    }
}
