//! Background jobs: when each is due, which process runs it, and how it went. A lease keeps a job to one process at a time; since a
//! lease can expire while its holder is still running, every job must be harmless if run twice.

use ade_domain::Moment;
use serde::{Deserialize, Serialize};

use super::sql::{Row, json};
use super::{Database, Result};

/// In bytes; longer error messages are cut.
const MAX_ERROR_LEN: usize = 2_048;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredJob {
    pub name: String,
    pub due_at: Moment,
    /// The process that runs it.
    pub holder: Option<String>,
    /// No other process starts it before.
    pub lease_until: Option<Moment>,
    pub outcome: JobOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOutcome {
    pub started_at: Option<Moment>,
    pub ended_at: Option<Moment>,
    /// The process of the last run.
    pub by: Option<String>,
    /// How many items the last run processed.
    pub processed: u64,
    pub runs: u64,
    /// Failed runs since the last successful one.
    pub failures: u32,
    /// Why the last run failed; `None` if it succeeded.
    pub error: Option<String>,
}

impl Database {
    /// Starts a job if it is due and no other process runs it; `false` otherwise.
    pub async fn start_job(&self, name: &str, holder: &str, now: Moment, until: Moment) -> Result<bool> {
        let args = [name.into(), holder.into(), now.into(), until.into(), json(&JobOutcome::default())?];
        // A job that was never started is due.
        let sql = "INSERT INTO jobs (name, holder, due_at, lease_until, body) \
                   VALUES ($1, $2, $3, $4, $5) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until \
                   WHERE jobs.due_at <= $3 AND (jobs.lease_until IS NULL OR jobs.lease_until <= $3)";
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    /// Stores the outcome of a run, and when the job is due again. Does nothing if another process has taken the job over.
    pub async fn finish_job(
        &self,
        name: &str,
        holder: &str,
        due_at: Moment,
        mut outcome: JobOutcome,
    ) -> Result<()> {
        if let Some(error) = &mut outcome.error {
            error.truncate(error.floor_char_boundary(MAX_ERROR_LEN));
        }
        let args = [name.into(), holder.into(), due_at.into(), json(&outcome)?];
        let sql = "UPDATE jobs SET holder = NULL, lease_until = NULL, due_at = $3, body = $4 \
                   WHERE name = $1 AND holder = $2";
        self.execute_statement(sql, &args).await.map(drop)
    }

    /// Makes a job due earlier. Does nothing if it is due before `due_at` anyway.
    pub async fn bring_job_forward(&self, name: &str, due_at: Moment) -> Result<()> {
        let sql = "UPDATE jobs SET due_at = $2 WHERE name = $1 AND due_at > $2";
        self.execute_statement(sql, &[name.into(), due_at.into()]).await.map(drop)
    }

    /// Extends the lease of a running job; `false` if another process has taken it over.
    pub async fn renew_job_lease(&self, name: &str, holder: &str, until: Moment) -> Result<bool> {
        let sql = "UPDATE jobs SET lease_until = $3 WHERE name = $1 AND holder = $2";
        Ok(self.execute_statement(sql, &[name.into(), holder.into(), until.into()]).await? > 0)
    }

    /// Releases all jobs of a process that shuts down, so that others can start them.
    pub async fn release_jobs(&self, holder: &str) -> Result<()> {
        let sql = "UPDATE jobs SET holder = NULL, lease_until = NULL WHERE holder = $1";
        self.execute_statement(sql, &[holder.into()]).await.map(drop)
    }

    /// Every job that was ever started, by name.
    pub async fn jobs(&self) -> Result<Vec<StoredJob>> {
        let sql = "SELECT name, micros(due_at), holder, micros(lease_until), body FROM jobs ORDER BY name";
        let job = |row: &Row| {
            Ok(StoredJob {
                name: row.get(0)?,
                due_at: row.get(1)?,
                holder: row.get(2)?,
                lease_until: row.get(3)?,
                outcome: row.json(4)?,
            })
        };
        self.fetch_all(sql, &[], job).await
    }
}
