//! Jobs: work that repeats without anybody asking. When each is due, who is at it and how it went are facts in the record; calls
//! through the queues of coordination only make it sooner.
//!
//! Any number of processes may run them: a lease keeps them from doing the same at once, and every job is made so that doing it
//! twice does no harm. One that fails is tried again, later each time, and everybody can see it.

mod archive;
mod tidy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::{Clock, Moment};
use ade_store::record::{JobOutcome, JobRow};
use ade_store::{Blobs, Record};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub use archive::{Archives, Restored};

use crate::agents::{AgentError, AgentService};
use crate::notices::Notice;
use crate::{Error, LockService, Reviews};

/// How often somebody looks whether something is due.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long whoever began a job has it for itself.
const LEASE: Duration = Duration::from_secs(120);
/// A failing job is tried again after its usual time, then twice as long each time, but never later than this.
const LONGEST_REST_MS: u64 = 600_000;
const DAY_MS: u64 = 86_400_000;

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// What it is called.
    pub name: &'static str,
    /// How often, in milliseconds; a day means at midnight UTC.
    pub every_ms: u64,
    /// What it does.
    pub about: &'static str,
}

const fn job(name: &'static str, every_ms: u64, about: &'static str) -> Job {
    Job { name, every_ms, about }
}

/// Every job there is. Those with a queue of their own have its name.
pub const JOBS: [Job; 8] = [
    job("agent_liveness", 5_000, "forgets agents that were known only by name and went silent"),
    job(
        "approval_timeout",
        1_000,
        "escalates what nobody answered, ends approvals that grew old, moves what leavers left",
    ),
    job(
        "archive",
        3_600_000,
        "moves requests of tasks that ended 30 days ago, and tasks after 90, into archives",
    ),
    job("daily_stats", DAY_MS, "counts the day that is over, at midnight UTC"),
    job("deadlock_detect", 5_000, "ends cycles of holders who wait for each other that were left over"),
    job(
        "index_repair",
        600_000,
        "makes parts of the audit log for coming months, forgets old answers and sessions",
    ),
    job("lock_cleanup", 5_000, "ends leases and waits that are over, mends what was left over of locks"),
    job("task_timeout", 1_000, "calls workers for tasks whose worker was not heard of until its lease ended"),
];

/// What jobs work with.
#[derive(Clone)]
pub struct Jobs {
    /// The record.
    pub record: Record,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// Reviews.
    pub reviews: Reviews,
    /// Agents.
    pub agents: AgentService,
    /// Locks.
    pub locks: LockService,
    /// Where archives are kept.
    pub blobs: Blobs,
    /// Who this process is among others.
    pub name: String,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a job stands, also one that was never done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub job: Job,
    /// How it stands; nothing if it was never begun.
    pub row: Option<JobRow>,
}

impl Jobs {
    /// Every job, and how it stands.
    ///
    /// # Errors
    /// The record is away.
    pub async fn standing(&self) -> Result<Vec<Standing>, Error> {
        let rows = self.record.jobs().await?;
        let mut rows: BTreeMap<String, JobRow> =
            rows.into_iter().map(|row| (row.name.clone(), row)).collect();
        Ok(JOBS.iter().map(|job| Standing { job: *job, row: rows.remove(job.name) }).collect())
    }

    /// Begins to look for what is due, until the set is dropped.
    pub fn start(self, loops: &mut JoinSet<()>) {
        let called = self.clone();
        loops.spawn(async move { called.listen().await });
        loops.spawn(async move { self.look().await });
    }

    /// Calls through the queues make a job due at once.
    async fn listen(self) {
        let queued = ["lock_cleanup", "approval_timeout", "task_timeout", "deadlock_detect", "archive"];
        let queues: Vec<String> = queued.iter().map(|name| (*name).to_owned()).collect();
        loop {
            let call = self.locks.coordination().woken(queues.clone(), Duration::from_secs(30)).await;
            let brought = match call {
                Ok(None) => continue,
                Ok(Some(call)) => self.record.bring_forward(&call.queue, self.clock.now()).await,
                Err(error) => {
                    tracing::debug!(%error, "calls for jobs cannot be heard; what is due is done anyway");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            if let Err(error) = brought {
                tracing::debug!(%error, "a job cannot be brought forward; it is done when it is due");
            }
        }
    }

    async fn look(self) {
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running = JoinSet::new();
        let mut next: BTreeMap<&'static str, Instant> = BTreeMap::new();
        let mut failing = false;
        loop {
            tick.tick().await;
            while running.try_join_next().is_some() {}
            // Calls that were scheduled for later; a hint that nobody passes on costs nothing but time.
            if let Err(error) = self.locks.coordination().wake_scheduled().await {
                tracing::trace!(%error, "scheduled calls cannot be made now");
            }
            for job in JOBS {
                if next.get(job.name).is_some_and(|at| *at > Instant::now()) {
                    continue;
                }
                // Others may have it, and may be gone: looked at again soon, whatever comes of it.
                let soon = Duration::from_millis(job.every_ms.min(1_000));
                next.insert(job.name, Instant::now() + soon);
                match self.begin(job).await {
                    Ok(true) => {
                        let jobs = self.clone();
                        running.spawn(async move { jobs.run(job).await });
                        failing = false;
                    }
                    Ok(false) => failing = false,
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            tracing::error!(%error, "jobs cannot be looked for; trying again");
                        }
                    }
                }
            }
        }
    }

    /// Whether this process does it now. Where coordination is away, the lease in the record is enough.
    async fn begin(&self, job: Job) -> Result<bool, Error> {
        let now = self.clock.now();
        let until = now.plus_ms(u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX));
        if !self.record.begin_job(job.name, &self.name, now, until).await? {
            return Ok(false);
        }
        let ttl_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        let locked = self.locks.coordination().lock_job(job.name.to_owned(), self.name.clone(), ttl_ms).await;
        if let Err(error) = locked {
            tracing::debug!(%error, job = job.name, "a job is not marked as locked");
        }
        Ok(true)
    }

    async fn run(&self, job: Job) {
        let before = self.record.jobs().await.unwrap_or_default();
        let before = before.into_iter().find(|row| row.name == job.name).map(|row| row.outcome);
        let before = before.unwrap_or_default();
        let started_at = self.clock.now();
        let done = match timeout(LEASE, self.work(job.name)).await {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err(format!("took longer than {} s", LEASE.as_secs())),
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
        let unlocked = self.locks.coordination().unlock_job(job.name.to_owned(), self.name.clone()).await;
        if let Err(error) = unlocked {
            tracing::debug!(%error, job = job.name, "the lock of a job ends by itself");
        }
    }

    /// How much there was to do.
    async fn work(&self, name: &str) -> Result<u64, Error> {
        match name {
            "approval_timeout" => Ok(self.reviews.work_off().await? as u64),
            "agent_liveness" => match self.agents.forget_idle().await {
                Ok(many) => Ok(many as u64),
                Err(AgentError::Refused(error)) => Err(error),
                Err(error) => Err(away(&error)),
            },
            "archive" => self.archives().archive_old().await,
            "daily_stats" => self.count_yesterday().await,
            "index_repair" => self.tidy().await,
            "lock_cleanup" | "deadlock_detect" => {
                let found = self.locks.coordination().sweep().await.map_err(|error| away(&error))?;
                found.iter().for_each(|one| self.locks.notices().tell(Notice::Deadlock(one)));
                Ok(found.len() as u64)
            }
            "task_timeout" => {
                let silent = self.record.silent(self.clock.now(), None, 100).await?;
                if !silent.is_empty() {
                    self.reviews.call_workers();
                }
                Ok(silent.len() as u64)
            }
            other => Err(away(&format!("nobody knows the job {other}"))),
        }
    }

    async fn count_yesterday(&self) -> Result<u64, Error> {
        let now = self.clock.now();
        let today = midnight(now);
        let yesterday = Moment::from_micros(today.micros().saturating_sub(DAY_MS * 1_000));
        let day = yesterday.timestamp().strftime("%Y-%m-%d").to_string();
        Ok(u64::from(self.record.count_day(&day, yesterday, today).await?))
    }
}

fn away(error: &impl std::fmt::Display) -> Error {
    Error::Record(ade_store::RecordError::Unavailable(error.to_string()))
}

fn midnight(now: Moment) -> Moment {
    let day = DAY_MS * 1_000;
    Moment::from_micros(now.micros() / day * day)
}

/// When a job is due that ended now, after so many failures in a row.
fn due_after(job: Job, failures: u32, now: Moment) -> Moment {
    if job.every_ms == DAY_MS && failures == 0 {
        return midnight(now).plus_ms(DAY_MS);
    }
    let least = job.every_ms.min(60_000);
    let rest = least.saturating_mul(1 << failures.min(20)).min(LONGEST_REST_MS);
    now.plus_ms(if failures == 0 { job.every_ms } else { rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_job_rests_longer_each_time_and_a_daily_one_waits_for_midnight() {
        let now = Moment::from_micros(1_794_744_000_000_000);
        let rests = |job: Job, failures| due_after(job, failures, now).ms_since(now);
        let often = job("often", 1_000, "");
        assert_eq!([0, 1, 2, 3].map(|failures| rests(often, failures)), [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(rests(often, 30), LONGEST_REST_MS);
        let daily = job("daily", DAY_MS, "");
        assert_eq!(due_after(daily, 0, now).micros() % (DAY_MS * 1_000), 0);
        assert!(rests(daily, 0) <= DAY_MS);
        assert_eq!(rests(daily, 1), 120_000);
    }

    #[test]
    fn each_job_is_listed_once() {
        let names: std::collections::BTreeSet<&str> = JOBS.iter().map(|job| job.name).collect();
        assert_eq!(names.len(), JOBS.len());
    }
}
