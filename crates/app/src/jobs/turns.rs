//! Who does which job when: whoever finds one due and free has it for as long as it renews its lease, does it, and says how it went.
//!
//! A call brings a job forward, unless it fails: then it rests as long as it must. Whoever stops gives back what it was at.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::Moment;
use ade_store::database::{JobOutcome, JobRow};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{JOBS, Job, Jobs, due_after};
use crate::Error;

/// How often somebody looks at least whether something is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often at most.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
/// How soon a job is looked at again that was called for while another process is at it.
const BUSY: Duration = Duration::from_millis(100);
/// How long whoever began a job has it for itself without being heard of.
const LEASE: Duration = Duration::from_secs(10);
/// How often it is heard of.
const BEAT: Duration = Duration::from_secs(3);
/// How long it may take to show others who is at a job.
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// How long a job may take.
const LONGEST: Duration = Duration::from_secs(120);
/// How long giving back may take when the process stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// What this process is at, and what it was called for and when.
#[derive(Default)]
struct Turns {
    running: JoinSet<()>,
    at: BTreeMap<&'static str, AbortHandle>,
    wanted: BTreeMap<&'static str, Moment>,
}

impl Jobs {
    pub(super) async fn look(
        self,
        mut calls: mpsc::Receiver<&'static str>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let (mut turns, mut fails) = (Turns::default(), false);
        'looking: loop {
            let began = Instant::now();
            let pause = match self.begin_due(&mut turns).await {
                Ok(pause) => {
                    fails = false;
                    pause
                }
                Err(error) => {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!(%error, "jobs cannot be looked for; trying again");
                    }
                    LOOK_EVERY
                }
            };
            let look_at = began + pause;
            loop {
                tokio::select! {
                    biased;
                    _ = stopped.wait_for(|stopped| *stopped) => break 'looking,
                    Some(_) = turns.running.join_next() => {
                        // Unless somebody called meanwhile, it is not due before long.
                        if !turns.wanted.is_empty() {
                            break;
                        }
                    }
                    Some(name) = calls.recv() => {
                        turns.wanted.insert(name, self.clock.now());
                        break;
                    }
                    () = sleep_until(look_at) => break,
                }
            }
            // Calls that come together are one.
            sleep_until(began + LEAST_PAUSE).await;
            while let Ok(name) = calls.try_recv() {
                turns.wanted.insert(name, self.clock.now());
            }
        }
        turns.at.retain(|_, running| !running.is_finished());
        turns.running.shutdown().await;
        if timeout(FAREWELL, self.give_back(turns.at.into_keys())).await.is_err() {
            tracing::warn!("jobs that were under way are left to others when their leases end");
        }
    }

    /// Begins whatever is due and free; when to look again.
    async fn begin_due(&self, turns: &mut Turns) -> Result<Duration, Error> {
        turns.at.retain(|_, running| !running.is_finished());
        let rows = self.record.jobs().await?;
        let rows: BTreeMap<&str, &JobRow> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
        let now = self.clock.now();
        let mut pause = LOOK_EVERY;
        for job in JOBS {
            if turns.at.contains_key(job.name) {
                continue;
            }
            let row = rows.get(job.name).copied();
            let is_free = row.and_then(|row| row.until).is_none_or(|until| until <= now);
            let is_due = row.is_none_or(|row| row.due_at <= now);
            let is_wanted = is_wanted(row, turns.wanted.get(job.name).copied());
            if !is_wanted {
                turns.wanted.remove(job.name);
            }
            if !is_free {
                pause = pause.min(if is_wanted { BUSY } else { LOOK_EVERY });
                continue;
            }
            if is_wanted && !is_due {
                self.record.bring_forward(job.name, now).await?;
            }
            if !is_due && !is_wanted {
                let due_in = row.map_or(0, |row| row.due_at.ms_since(now));
                pause = pause.min(Duration::from_millis(due_in));
            } else if self.begin(job).await? {
                let (jobs, before) = (self.clone(), row.map(|row| row.outcome.clone()));
                let run = async move { jobs.run(job, before.unwrap_or_default()).await };
                turns.at.insert(job.name, turns.running.spawn(run));
            }
        }
        Ok(pause)
    }

    /// Whether this process does it now: the lease in the record decides.
    async fn begin(&self, job: Job) -> Result<bool, Error> {
        let now = self.clock.now();
        Ok(self.record.begin_job(job.name, &self.name, now, now.plus_ms(ms(LEASE))).await?)
    }

    /// Shows others in coordination who is at a job. It must not take long: whoever does so is to be heard of in the record.
    async fn mark(&self, name: &str) {
        let locked = self.locks.coordination().lock_job(name.to_owned(), self.name.clone(), ms(LEASE));
        if !matches!(timeout(MARK_WITHIN, locked).await, Ok(Ok(true))) {
            tracing::debug!(job = name, "a job is not marked as locked");
        }
    }

    async fn unmark(&self, name: &str) {
        let unlocked = self.locks.coordination().unlock_job(name.to_owned(), self.name.clone()).await;
        if let Err(error) = unlocked {
            tracing::debug!(%error, job = name, "the lock of a job ends by itself");
        }
    }

    async fn run(&self, job: Job, before: JobOutcome) {
        let started_at = self.clock.now();
        let done = tokio::select! {
            done = timeout(LONGEST, self.work(job.name)) => match done {
                Ok(done) => done.map_err(|error| error.to_string()),
                Err(_) => Err(format!("took longer than {} s", LONGEST.as_secs())),
            },
            () = self.keep(job.name) => {
                tracing::warn!(job = job.name, "a job was not heard of in time; it is left to others");
                return;
            }
        };
        let ended_at = self.clock.now();
        let failures = if done.is_ok() { 0 } else { before.failures.saturating_add(1) };
        if let Err(error) = &done {
            tracing::error!(job = job.name, failures, %error, "a job failed; it is tried again");
        }
        let outcome = JobOutcome {
            started_at: Some(started_at),
            ended_at: Some(ended_at),
            by: Some(self.name.clone()),
            done: *done.as_ref().unwrap_or(&0),
            runs: before.runs + 1,
            failures,
            error: done.err(),
        };
        tracing::debug!(job = job.name, done = outcome.done, runs = outcome.runs, "a job was done");
        let due_at = match outcome.done {
            // What did not fit into this round is not for the next hour.
            1.. if job.name == "archive" && self.is_behind().await => ended_at,
            _ => due_after(job, failures, ended_at),
        };
        if let Err(error) = self.record.end_job(job.name, &self.name, due_at, outcome).await {
            tracing::warn!(job = job.name, %error, "the end of a job was not written; its lease ends by itself");
        }
        self.unmark(job.name).await;
    }

    /// Is heard of while a job is done; returns if that did not reach the record in time, or somebody else has it.
    async fn keep(&self, name: &str) {
        let mut good_until = Instant::now() + LEASE;
        loop {
            self.mark(name).await;
            sleep(BEAT).await;
            let asked_at = Instant::now();
            let until = self.clock.now().plus_ms(ms(LEASE));
            match timeout(
                good_until.saturating_duration_since(asked_at),
                self.record.renew_job(name, &self.name, until),
            )
            .await
            {
                Ok(Ok(true)) => good_until = asked_at + LEASE,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => tracing::warn!(job = name, %error, "the lease of a job cannot be renewed"),
            }
        }
    }

    /// What was under way is for others from now on.
    async fn give_back(&self, at: impl Iterator<Item = &'static str>) {
        let mut at = at.peekable();
        if at.peek().is_none() {
            return;
        }
        if let Err(error) = self.record.leave_jobs(&self.name).await {
            tracing::warn!(%error, "jobs that were under way are left to others when their leases end");
        }
        for name in at {
            self.unmark(name).await;
        }
    }
}

/// Whether a call is still to be followed: it is not, if the job was begun after it, or fails and rests.
fn is_wanted(row: Option<&JobRow>, called_at: Option<Moment>) -> bool {
    let outcome = row.map(|row| &row.outcome);
    let rests = outcome.is_some_and(|outcome| outcome.failures > 0);
    let begun = outcome.and_then(|outcome| outcome.started_at);
    called_at.is_some_and(|called_at| !rests && begun.is_none_or(|begun| begun < called_at))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_followed_unless_the_job_was_begun_since_or_rests() {
        let at = |ms| Moment::from_micros(1_794_744_000_000_000).plus_ms(ms);
        let row = |started_ms: Option<u64>, failures| JobRow {
            name: "often".to_owned(),
            due_at: at(1_000),
            holder: None,
            until: None,
            outcome: JobOutcome { started_at: started_ms.map(at), failures, ..JobOutcome::default() },
        };
        assert!(!is_wanted(None, None) && !is_wanted(Some(&row(Some(0), 0)), None), "nobody called");
        assert!(
            is_wanted(None, Some(at(5))) && is_wanted(Some(&row(None, 0)), Some(at(5))),
            "it was never done"
        );
        assert!(is_wanted(Some(&row(Some(4), 0)), Some(at(5))));
        assert!(
            !is_wanted(Some(&row(Some(6), 0)), Some(at(5))),
            "whoever began then has seen what was there"
        );
        assert!(!is_wanted(Some(&row(Some(4), 1)), Some(at(5))), "calls do not shorten its rest");
    }
}
