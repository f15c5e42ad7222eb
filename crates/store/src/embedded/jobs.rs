//! Calls that wake workers, in this process: in memory, because whoever could be woken ends with the process, and what is due
//! stands in the record.
//!
//! Beside the state of locks: who calls or waits neither waits for locks nor delays them.

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
    CoordinationError, Job, Jobs, LONGEST_WAIT, MOST_AT_ONCE, MOST_SCHEDULED, MOST_WAITING, Moved, Reply,
    WakeAt, WakeUp, checked_lock, job_named, queue_named, queues_named,
};

/// Where calls are put up and taken from.
#[derive(Debug, Default)]
pub(super) struct Board {
    calls: Mutex<Calls>,
    called: Notify,
}

/// A call for later: the name of its queue, and what it is about.
type Later = (&'static str, String);

#[derive(Debug, Default)]
struct Calls {
    queues: HashMap<QueueName, VecDeque<String>>,
    scheduled: HashMap<Later, Moment>,
    /// The same calls in the order in which they are due.
    by_moment: BTreeSet<(Moment, Later)>,
    locks: HashMap<String, Lock>,
    /// Locks that ended are looked for when there are so many again.
    tidy_at: usize,
    now: Moment,
}

#[derive(Debug)]
struct Lock {
    holder: String,
    until: Moment,
}

/// Fewer locks than this are not worth looking for those that ended.
const FEW_LOCKS: usize = 256;

impl Board {
    fn calls(&self, clock: Moment) -> MutexGuard<'_, Calls> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.now = calls.now.max(clock);
        calls
    }
}

impl Calls {
    fn push(&mut self, queue: QueueName, about: String) {
        let waiting = self.queues.entry(queue).or_default();
        if waiting.len() >= MOST_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(about);
    }

    fn take(&mut self, queues: &[QueueName]) -> Option<Job> {
        queues.iter().find_map(|queue| {
            let about = self.queues.get_mut(queue)?.pop_front()?;
            Some(Job { queue: queue.as_written().to_owned(), about })
        })
    }

    fn schedule(&mut self, at: Moment, call: Later) -> bool {
        if self.scheduled.len() >= MOST_SCHEDULED && !self.scheduled.contains_key(&call) {
            return false;
        }
        if let Some(before) = self.scheduled.insert(call.clone(), at) {
            self.by_moment.remove(&(before, call.clone()));
        }
        self.by_moment.insert((at, call));
        true
    }

    fn unschedule(&mut self, call: Later) {
        if let Some(before) = self.scheduled.remove(&call) {
            self.by_moment.remove(&(before, call));
        }
    }

    fn push_due(&mut self) -> Result<Moved, CoordinationError> {
        let mut moved = 0;
        while moved < MOST_AT_ONCE && self.by_moment.first().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, call)) = self.by_moment.pop_first() else { break };
            self.scheduled.remove(&call);
            self.push(queue_named(call.0)?, call.1);
            moved += 1;
        }
        let next_in = self.by_moment.first().map(|(at, _)| Duration::from_millis(at.ms_since(self.now)));
        Ok(Moved { calls: moved, next_in })
    }

    fn lock(&mut self, job_id: String, holder: String, ttl: Duration) -> bool {
        let now = self.now;
        if self.locks.get(&job_id).is_some_and(|lock| lock.until > now && lock.holder != holder) {
            return false;
        }
        if self.locks.len() >= self.tidy_at.max(FEW_LOCKS) {
            self.locks.retain(|_, lock| lock.until > now);
            self.tidy_at = 2 * self.locks.len();
        }
        let until = now.plus_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self.locks.insert(job_id, Lock { holder, until });
        true
    }

    fn unlock(&mut self, job_id: &str, holder: &str) -> bool {
        let now = self.now;
        let held = self.locks.get(job_id).is_some_and(|lock| lock.until > now && lock.holder == holder);
        if held {
            self.locks.remove(job_id);
        }
        held
    }
}

impl EmbeddedCoordination {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.inner.board.calls(self.inner.now())
    }
}

impl Jobs for EmbeddedCoordination {
    fn call(&self, made: Vec<WakeUp>) -> Reply<'_, usize> {
        Box::pin(async move {
            let named = made.into_iter().map(|call| Ok((queue_named(&call.queue)?, call.about, call.when)));
            let named = named.collect::<Result<Vec<_>, CoordinationError>>()?;
            let mut without_room = 0;
            {
                let mut calls = self.calls();
                for (queue, about, when) in named {
                    match when {
                        WakeAt::At(at) if at > calls.now => {
                            without_room += usize::from(!calls.schedule(at, (queue.as_written(), about)));
                        }
                        WakeAt::Now | WakeAt::At(_) => {
                            calls.unschedule((queue.as_written(), about.clone()));
                            calls.push(queue, about);
                        }
                        WakeAt::NotAnyMore => calls.unschedule((queue.as_written(), about)),
                    }
                }
            }
            self.inner.board.called.notify_waiters();
            Ok(without_room)
        })
    }

    fn woken(&self, queues: Vec<String>, at_most: Duration) -> Reply<'_, Option<Job>> {
        Box::pin(async move {
            let queues = queues_named(&queues)?;
            let waiting = async {
                loop {
                    // Before the look, so that a call that comes just after it is heard.
                    let mut called = pin!(self.inner.board.called.notified());
                    called.as_mut().enable();
                    let taken = self.calls().take(&queues);
                    if let Some(job) = taken {
                        return job;
                    }
                    called.await;
                }
            };
            Ok(timeout(at_most.min(LONGEST_WAIT), waiting).await.ok())
        })
    }

    fn wake_scheduled(&self) -> Reply<'_, Moved> {
        Box::pin(async move {
            let moved = self.calls().push_due()?;
            if moved.calls > 0 {
                self.inner.board.called.notify_waiters();
            }
            Ok(moved)
        })
    }

    fn lock_job(&self, job_id: String, holder: String, ttl_ms: u64) -> Reply<'_, bool> {
        Box::pin(async move {
            let (_, ttl) = checked_lock(&job_id, ttl_ms)?;
            Ok(self.calls().lock(job_id, holder, ttl))
        })
    }

    fn unlock_job(&self, job_id: String, holder: String) -> Reply<'_, bool> {
        Box::pin(async move {
            job_named(&job_id)?;
            Ok(self.calls().unlock(&job_id, &holder))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_jobs_that_ended_do_not_gather() {
        let mut calls = Calls::default();
        for job in 0..10 * FEW_LOCKS {
            calls.now = calls.now.plus_ms(1);
            assert!(calls.lock(job.to_string(), "ann".to_owned(), Duration::from_millis(10)));
        }
        assert!(calls.locks.len() <= FEW_LOCKS, "{}", calls.locks.len());
        assert!(calls.lock("long".to_owned(), "ann".to_owned(), Duration::from_secs(60)));
        calls.now = calls.now.plus_ms(1_000);
        for job in 0..2 * FEW_LOCKS {
            assert!(calls.lock(job.to_string(), "ben".to_owned(), Duration::from_millis(1)));
        }
        assert!(
            !calls.lock("long".to_owned(), "ben".to_owned(), Duration::from_millis(1)),
            "what lasts stays"
        );
    }

    #[test]
    fn calls_for_later_are_bounded() {
        let mut calls = Calls::default();
        let at = |number: usize| Moment::default().plus_ms(1 + number as u64);
        for number in 0..MOST_SCHEDULED {
            assert!(calls.schedule(at(number), ("apply", number.to_string())));
        }
        assert!(!calls.schedule(at(0), ("apply", "one more".to_owned())));
        assert!(
            calls.schedule(at(MOST_SCHEDULED), ("apply", "0".to_owned())),
            "one that is known may change"
        );
        calls.now = at(MOST_SCHEDULED);
        let moved = Moved { calls: MOST_AT_ONCE, next_in: Some(Duration::ZERO) };
        assert_eq!(calls.push_due(), Ok(moved), "and more are due at once");
        assert_eq!(calls.scheduled.len(), MOST_SCHEDULED - MOST_AT_ONCE);
        assert_eq!(calls.by_moment.len(), calls.scheduled.len());
        calls.unschedule(("apply", "0".to_owned()));
        calls.unschedule(("apply", "nobody knows it".to_owned()));
        assert_eq!(calls.scheduled.len(), MOST_SCHEDULED - MOST_AT_ONCE - 1);
        assert_eq!(calls.by_moment.len(), calls.scheduled.len());
    }
}
