//! The scheduler: a process that finds a job due and free acquires its lease, runs it while renewing the lease, and stores the
//! outcome.
//!
//! A wake-up makes a job due earlier, unless it is failing: then its backoff applies. A process that stops releases its leases.

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::Moment;
use ade_store::database::{JobOutcome, StoredJob};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{JOBS, Job, Jobs, next_due};
use crate::Result;
use crate::retry::FailureLog;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How soon a woken job is checked again while another process runs it.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(100);
const LEASE_TTL: Duration = Duration::from_secs(10);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// How long publishing the holder of a job in coordination may take.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// How long releasing leases may take when the process stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The running jobs of this process, and the pending wake-ups with their times.
#[derive(Default)]
struct Schedule {
    tasks: JoinSet<()>,
    running: BTreeMap<&'static str, AbortHandle>,
    woken: BTreeMap<&'static str, Moment>,
}

impl Jobs {
    pub(super) async fn run_due_jobs(
        self,
        mut wake_ups: mpsc::Receiver<&'static str>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let (mut schedule, mut failures) = (Schedule::default(), FailureLog::default());
        'polling: loop {
            let started = Instant::now();
            let pause = failures.check(self.start_due(&mut schedule).await, "cannot look for due jobs");
            let next_poll = started + pause.unwrap_or(POLL_INTERVAL);
            loop {
                tokio::select! {
                    biased;
                    _ = stopped.wait_for(|stopped| *stopped) => break 'polling,
                    Some(_) = schedule.tasks.join_next() => {
                        // A finished job is due again at once only if it was woken meanwhile.
                        if !schedule.woken.is_empty() {
                            break;
                        }
                    }
                    Some(name) = wake_ups.recv() => {
                        schedule.woken.insert(name, self.context.now());
                        break;
                    }
                    () = sleep_until(next_poll) => break,
                }
            }
            // Wake-ups that arrive together are handled together.
            sleep_until(started + MIN_POLL_INTERVAL).await;
            while let Ok(name) = wake_ups.try_recv() {
                schedule.woken.insert(name, self.context.now());
            }
        }
        schedule.running.retain(|_, running| !running.is_finished());
        schedule.tasks.shutdown().await;
        if timeout(SHUTDOWN_TIMEOUT, self.release(schedule.running.into_keys())).await.is_err() {
            tracing::warn!("cannot release the leases of running jobs in time; they expire");
        }
    }

    /// Starts all jobs that are due and free; returns the time until the next poll.
    async fn start_due(&self, schedule: &mut Schedule) -> Result<Duration> {
        schedule.running.retain(|_, running| !running.is_finished());
        let rows = self.context.database.jobs().await?;
        let rows: BTreeMap<&str, &StoredJob> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
        let now = self.context.now();
        let mut pause = POLL_INTERVAL;
        for job in JOBS {
            if schedule.running.contains_key(job.name) {
                continue;
            }
            let row = rows.get(job.name).copied();
            let is_free = row.and_then(|row| row.lease_until).is_none_or(|until| until <= now);
            let is_due = row.is_none_or(|row| row.due_at <= now);
            let is_woken = is_woken(row, schedule.woken.get(job.name).copied());
            if !is_woken {
                schedule.woken.remove(job.name);
            }
            if !is_free {
                pause = pause.min(if is_woken { BUSY_POLL_INTERVAL } else { POLL_INTERVAL });
                continue;
            }
            if is_woken && !is_due {
                self.context.database.bring_job_forward(job.name, now).await?;
            }
            if !is_due && !is_woken {
                let due_in = row.map_or(0, |row| row.due_at.ms_since(now));
                pause = pause.min(Duration::from_millis(due_in));
            } else if self.acquire(job).await? {
                let (jobs, before) = (self.clone(), row.map(|row| row.outcome.clone()));
                let run = async move { jobs.run(job, before.unwrap_or_default()).await };
                schedule.running.insert(job.name, schedule.tasks.spawn(run));
            }
        }
        Ok(pause)
    }

    /// Acquires the lease of a job, which is in the database.
    async fn acquire(&self, job: Job) -> Result<bool> {
        let now = self.context.now();
        Ok(self.context.database.start_job(job.name, &self.name, now, now.plus_ms(ms(LEASE_TTL))).await?)
    }

    /// Publishes in coordination who runs a job. It is bounded in time: it must not delay the heartbeat in the database.
    async fn publish(&self, name: &str) {
        let locked = self.context.coordination.lock_job(name.to_owned(), self.name.clone(), ms(LEASE_TTL));
        if !matches!(timeout(PUBLISH_TIMEOUT, locked).await, Ok(Ok(true))) {
            tracing::debug!(job = name, "cannot publish the holder of a job");
        }
    }

    async fn unpublish(&self, name: &str) {
        let unlocked = self.context.coordination.unlock_job(name.to_owned(), self.name.clone()).await;
        if let Err(error) = unlocked {
            tracing::debug!(%error, job = name, "cannot remove the published holder of a job; it expires");
        }
    }

    async fn run(&self, job: Job, before: JobOutcome) {
        let started_at = self.context.now();
        let done = tokio::select! {
            done = timeout(JOB_TIMEOUT, self.execute(job.name)) => match done {
                Ok(done) => done.map_err(|error| error.to_string()),
                Err(_) => Err(format!("took longer than {} s", JOB_TIMEOUT.as_secs())),
            },
            () = self.renew_until_lost(job.name) => {
                tracing::warn!(job = job.name, "job lease lost; leaving the job to other processes");
                return;
            }
        };
        let ended_at = self.context.now();
        let failures = if done.is_ok() { 0 } else { before.failures.saturating_add(1) };
        if let Err(error) = &done {
            tracing::error!(job = job.name, failures, %error, "job failed; retrying");
        }
        let outcome = JobOutcome {
            started_at: Some(started_at),
            ended_at: Some(ended_at),
            by: Some(self.name.clone()),
            processed: *done.as_ref().unwrap_or(&0),
            runs: before.runs + 1,
            failures,
            error: done.err(),
        };
        tracing::debug!(job = job.name, done = outcome.processed, runs = outcome.runs, "job ended");
        let due_at = match outcome.processed {
            // The rest of a round that was cut short does not wait for the next hour.
            1.. if job.name == "archive" && self.is_behind().await => ended_at,
            _ => next_due(job, failures, ended_at),
        };
        if let Err(error) = self.context.database.finish_job(job.name, &self.name, due_at, outcome).await {
            tracing::warn!(job = job.name, %error, "cannot store the end of a job; its lease expires");
        }
        self.unpublish(job.name).await;
    }

    /// Renews the lease of a running job; returns when it could not be renewed in time, or another process has it.
    async fn renew_until_lost(&self, name: &str) {
        let mut valid_until = Instant::now() + LEASE_TTL;
        loop {
            self.publish(name).await;
            sleep(HEARTBEAT_INTERVAL).await;
            let sent_at = Instant::now();
            let until = self.context.now().plus_ms(ms(LEASE_TTL));
            let renewed = self.context.database.renew_job_lease(name, &self.name, until);
            match timeout(valid_until.saturating_duration_since(sent_at), renewed).await {
                Ok(Ok(true)) => valid_until = sent_at + LEASE_TTL,
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(error)) => tracing::warn!(job = name, %error, "cannot renew job lease; retrying"),
            }
        }
    }

    /// Releases the leases of running jobs.
    async fn release(&self, running: impl Iterator<Item = &'static str>) {
        let mut running = running.peekable();
        if running.peek().is_none() {
            return;
        }
        if let Err(error) = self.context.database.release_jobs(&self.name).await {
            tracing::warn!(%error, "cannot release the leases of running jobs; they expire");
        }
        for name in running {
            self.unpublish(name).await;
        }
    }
}

/// Whether a wake-up still applies: not if the job was started after it, and not while the job backs off.
fn is_woken(row: Option<&StoredJob>, woken_at: Option<Moment>) -> bool {
    let outcome = row.map(|row| &row.outcome);
    let is_failing = outcome.is_some_and(|outcome| outcome.failures > 0);
    let started_at = outcome.and_then(|outcome| outcome.started_at);
    woken_at.is_some_and(|woken_at| !is_failing && started_at.is_none_or(|started| started < woken_at))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_applies_unless_the_job_started_since_or_backs_off() {
        let at = |ms| Moment::from_micros(1_794_744_000_000_000).plus_ms(ms);
        let row = |started_ms: Option<u64>, failures| StoredJob {
            name: "frequent".to_owned(),
            due_at: at(1_000),
            holder: None,
            lease_until: None,
            outcome: JobOutcome { started_at: started_ms.map(at), failures, ..JobOutcome::default() },
        };
        assert!(!is_woken(None, None) && !is_woken(Some(&row(Some(0), 0)), None), "no wake-up");
        assert!(is_woken(None, Some(at(5))) && is_woken(Some(&row(None, 0)), Some(at(5))), "never ran");
        assert!(is_woken(Some(&row(Some(4), 0)), Some(at(5))));
        assert!(!is_woken(Some(&row(Some(6), 0)), Some(at(5))), "a later run has handled the wake-up");
        assert!(!is_woken(Some(&row(Some(4), 1)), Some(at(5))), "wake-ups do not shorten the backoff");
    }
}
