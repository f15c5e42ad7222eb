//! Background jobs, started by time (`scheduler.rs`) and by wake-ups (`wake_ups.rs`). When each job is due, who runs it and how it
//! ended is stored in the database; wake-ups through the queues of coordination only make it sooner.
//!
//! Any number of processes may run them: a lease keeps two from running the same job at once, and every job is idempotent. A
//! failed job is retried with increasing delay, and its failure is visible in its status.

mod archive;
mod cleanup;
mod daily_stats;
mod scheduler;
mod wake_ups;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ade_domain::Moment;
use ade_store::CoordinationError;
use ade_store::database::StoredJob;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use archive::ArchiveService;

use crate::agents::AgentService;
use crate::{Context, Error, LockService, Result, TaskService};

/// Wake-ups that wait for the scheduler.
const WAKE_UP_BUFFER: usize = 64;
/// The delay before a failed job is retried doubles with each failure, up to this.
const MAX_RETRY_BACKOFF_MS: u64 = 600_000;
const DAY_MS: u64 = 86_400_000;
/// Lost workers that one run of `task_timeout` looks for.
const LOST_WORKER_LIMIT: u32 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    pub name: &'static str,
    /// A job with an interval of one day runs at midnight UTC.
    pub interval_ms: u64,
    pub description: &'static str,
}

const fn job(name: &'static str, interval_ms: u64, description: &'static str) -> Job {
    Job { name, interval_ms, description }
}

/// All jobs. A job with a queue has the name of its queue.
pub const JOBS: [Job; 8] = [
    job("agent_liveness", 5_000, "removes unregistered agents without a heartbeat"),
    job(
        "approval_timeout",
        1_000,
        "escalates overdue approval requests, expires old approvals, reassigns requests of users who left",
    ),
    job(
        "archive",
        3_600_000,
        "archives approval requests 30 days after their task ended, and tasks after 90 days",
    ),
    job("daily_stats", DAY_MS, "computes the statistics of past days, at midnight UTC"),
    job("deadlock_detect", 5_000, "reports resolved deadlocks that were not detected when they arose"),
    job(
        "index_repair",
        600_000,
        "creates the audit log partitions of the next months, deletes old events, stored responses, sessions, unconfirmed changes and deliveries of webhooks",
    ),
    job("lock_cleanup", 5_000, "reports the sweeps that end expired leases and waits of locks"),
    job("task_timeout", 1_000, "starts the recovery of tasks whose worker lost its lease"),
];

#[derive(Debug, Clone)]
pub struct Jobs {
    pub context: Context,
    pub tasks: TaskService,
    pub agents: AgentService,
    pub locks: LockService,
    /// Identifies this process as holder of leases.
    pub name: String,
    /// How long events are kept.
    pub event_retention_days: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    pub job: Job,
    /// `None` if the job has never run.
    pub row: Option<StoredJob>,
}

impl Jobs {
    /// The status of all jobs.
    pub async fn statuses(&self) -> Result<Vec<JobStatus>> {
        let rows = self.context.database.jobs().await?;
        let mut rows: BTreeMap<String, StoredJob> =
            rows.into_iter().map(|row| (row.name.clone(), row)).collect();
        Ok(JOBS.iter().map(|job| JobStatus { job: *job, row: rows.remove(job.name) }).collect())
    }

    /// Starts the loops, which run until `stopped` and then release the leases of running jobs.
    pub(crate) fn start(self, loops: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
        tracing::info!(by = self.name, "background jobs started");
        let (wake_ups, woken) = mpsc::channel(WAKE_UP_BUFFER);
        loops.spawn(self.clone().receive_wake_ups(wake_ups, stopped.clone()));
        loops.spawn(self.clone().deliver_scheduled(stopped.clone()));
        loops.spawn(self.run_due_jobs(woken, stopped.clone()));
    }

    /// Runs one job; returns the number of objects that it handled.
    async fn execute(&self, name: &str) -> Result<u64> {
        match name {
            "approval_timeout" => Ok(self.tasks.process_timeouts().await? as u64),
            "agent_liveness" => Ok(self.agents.remove_idle().await? as u64),
            "archive" => self.archives().archive_old().await,
            "daily_stats" => self.count_finished_days().await,
            "index_repair" => self.clean_up().await,
            // Lock maintenance sweeps all the time; the jobs report it.
            "lock_cleanup" | "deadlock_detect" => {
                let counts = self.locks.sweep_counts();
                if counts.is_failing.load(Ordering::Relaxed) {
                    return Err(CoordinationError("locks cannot be swept".to_owned()).into());
                }
                let count = if name == "lock_cleanup" { &counts.completed } else { &counts.deadlocks };
                Ok(count.swap(0, Ordering::Relaxed))
            }
            "task_timeout" => {
                let (database, now) = (&self.context.database, self.context.now());
                let lost = database.tasks_with_expired_lease(now, None, LOST_WORKER_LIMIT).await?;
                if !lost.is_empty() {
                    self.tasks.subscriptions().wake_recovery();
                }
                Ok(lost.len() as u64)
            }
            other => Err(Error::System(format!("unknown job {other}"))),
        }
    }
}

fn midnight(now: Moment) -> Moment {
    let day = DAY_MS * 1_000;
    Moment::from_micros(now.micros() / day * day)
}

fn days_before(moment: Moment, days: u64) -> Moment {
    Moment::from_micros(moment.micros().saturating_sub(days * DAY_MS * 1_000))
}

/// When a job that ended now is due again, after so many failures in a row.
fn next_due(job: Job, failures: u32, now: Moment) -> Moment {
    if job.interval_ms == DAY_MS && failures == 0 {
        return midnight(now).plus_ms(DAY_MS);
    }
    let first_backoff = job.interval_ms.min(60_000);
    let backoff = first_backoff.saturating_mul(1 << failures.min(20)).min(MAX_RETRY_BACKOFF_MS);
    now.plus_ms(if failures == 0 { job.interval_ms } else { backoff })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_after_failures_and_runs_daily_jobs_at_midnight() {
        let now = Moment::from_micros(1_794_744_000_000_000);
        let delay = |job: Job, failures| next_due(job, failures, now).ms_since(now);
        let frequent = job("frequent", 1_000, "");
        assert_eq!([0, 1, 2, 3].map(|failures| delay(frequent, failures)), [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(delay(frequent, 30), MAX_RETRY_BACKOFF_MS);
        let daily = job("daily", DAY_MS, "");
        assert_eq!(next_due(daily, 0, now).micros() % (DAY_MS * 1_000), 0);
        assert!(delay(daily, 0) <= DAY_MS);
        assert_eq!(delay(daily, 1), 120_000);
    }

    #[test]
    fn job_names_are_unique() {
        let names: std::collections::BTreeSet<&str> = JOBS.iter().map(|job| job.name).collect();
        assert_eq!(names.len(), JOBS.len());
    }
}
