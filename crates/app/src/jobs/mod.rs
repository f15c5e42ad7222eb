//! Jobs: work that repeats without anybody asking, by time (`turns.rs`) and by call (`calls.rs`). When each is due, who is at it and
//! how it went are facts in the record; calls through the queues of coordination only make it sooner.
//!
//! Any number of processes may run them: a lease keeps them from doing the same at once, and every job is made so that doing it
//! twice does no harm. One that fails is tried again, later each time, and everybody can see it.

mod archive;
mod calls;
mod days;
mod tidy;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use ade_domain::{Clock, Moment};
use ade_store::database::JobRow;
use ade_store::{Blobs, Database};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use archive::{Archives, Restored};

use crate::agents::{AgentError, AgentService};
use crate::notices::LockNotice;
use crate::{Error, LockService, TaskService};

/// Calls that wait until the loop takes them.
const MOST_CALLS: usize = 64;
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
    job("daily_stats", DAY_MS, "counts the days that are over, at midnight UTC"),
    job("deadlock_detect", 5_000, "ends cycles of holders who wait for each other that were left over"),
    job(
        "index_repair",
        600_000,
        "makes parts of the audit log for coming months, forgets old answers and sessions",
    ),
    job("lock_cleanup", 5_000, "ends leases and waits that are over, mends what was left over of locks"),
    job(
        "task_timeout",
        1_000,
        "calls whoever settles tasks whose worker was not heard of until its lease ended",
    ),
];

/// What jobs work with.
#[derive(Clone)]
pub struct Jobs {
    /// The record.
    pub record: Database,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// Reviews.
    pub reviews: TaskService,
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
    pub async fn standing(&self) -> Result<Vec<Standing>, Error> {
        let rows = self.record.jobs().await?;
        let mut rows: BTreeMap<String, JobRow> =
            rows.into_iter().map(|row| (row.name.clone(), row)).collect();
        Ok(JOBS.iter().map(|job| Standing { job: *job, row: rows.remove(job.name) }).collect())
    }

    /// Begins to do what is due, when it is due and when somebody calls, until it is told to stop; then what was begun is left to others.
    pub(crate) fn start(self, loops: &mut JoinSet<()>, stopped: &watch::Receiver<bool>) {
        tracing::info!(by = self.name, "jobs are done");
        let (calls, called) = mpsc::channel(MOST_CALLS);
        loops.spawn(self.clone().listen(calls, stopped.clone()));
        loops.spawn(self.clone().move_calls(stopped.clone()));
        loops.spawn(self.look(called, stopped.clone()));
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
            "daily_stats" => self.count_days().await,
            "index_repair" => self.tidy().await,
            "lock_cleanup" | "deadlock_detect" => {
                let found = self.locks.coordination().sweep().await.map_err(|error| away(&error))?;
                found.iter().for_each(|one| self.locks.notices().tell(LockNotice::Deadlock(one)));
                Ok(found.len() as u64)
            }
            "task_timeout" => {
                let silent = self.record.silent(self.clock.now(), None, 100).await?;
                if !silent.is_empty() {
                    self.reviews.call_recovery();
                }
                Ok(silent.len() as u64)
            }
            other => Err(away(&format!("nobody knows the job {other}"))),
        }
    }
}

fn away(error: &impl std::fmt::Display) -> Error {
    Error::Record(ade_store::DatabaseError::Unavailable(error.to_string()))
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
