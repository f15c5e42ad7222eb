//! Work that repeats: when it is due, who is at it, and how it went. One process at a time, as far as a lease can tell; each job
//! is made so that two at once would do no harm.

use ade_domain::Moment;
use serde::{Deserialize, Serialize};

use super::sql::{Link, json};
use super::{Database, DatabaseError, Work};

/// Bytes of an error that is kept.
const LONGEST_ERROR: usize = 2_048;

/// A job, as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its name.
    pub name: String,
    /// When it is due.
    pub due_at: Moment,
    /// Who is at it.
    pub holder: Option<String>,
    /// Until when nobody else begins it.
    pub until: Option<Moment>,
    /// How it went so far.
    pub outcome: JobOutcome,
}

/// How a job went so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOutcome {
    /// When it was last begun.
    pub started_at: Option<Moment>,
    /// When it last ended.
    pub ended_at: Option<Moment>,
    /// Who did it.
    pub by: Option<String>,
    /// How much there was to do the last time.
    pub done: u64,
    /// How often it was done.
    pub runs: u64,
    /// How often it failed since it last worked.
    pub failures: u32,
    /// Why it failed the last time, unless it worked since.
    pub error: Option<String>,
}

/// What changes the rows of jobs.
#[derive(Debug, Clone)]
pub(super) enum JobStep {
    Begin { name: String, holder: String, now: Moment, until: Moment },
    End { name: String, holder: String, due_at: Moment, outcome: JobOutcome },
    Bring { name: String, due_at: Moment },
    Renew { name: String, holder: String, until: Moment },
    Leave { holder: String },
}

impl JobStep {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        match self {
            Self::Begin { name, holder, now, until } => {
                let args = [name.as_str().into(), (*now).into(), json(&JobOutcome::default())?];
                let sql = "INSERT INTO jobs (name, due_at, body) VALUES ($1, moment($2), $3::jsonb) \
                           ON CONFLICT DO NOTHING";
                link.run(sql, &args).await?;
                let args = [name.as_str().into(), holder.as_str().into(), (*now).into(), (*until).into()];
                let sql = "UPDATE jobs SET holder = $2, lease_until = moment($4) WHERE name = $1 \
                           AND due_at <= moment($3) AND (lease_until IS NULL OR lease_until <= moment($3))";
                link.run(sql, &args).await
            }
            Self::End { name, holder, due_at, outcome } => {
                let args = [name.as_str().into(), holder.as_str().into(), (*due_at).into(), json(outcome)?];
                let sql = "UPDATE jobs SET holder = NULL, lease_until = NULL, due_at = moment($3), body = $4::jsonb \
                           WHERE name = $1 AND holder = $2";
                link.run(sql, &args).await
            }
            Self::Bring { name, due_at } => {
                let sql = "UPDATE jobs SET due_at = moment($2) WHERE name = $1 AND due_at > moment($2)";
                link.run(sql, &[name.as_str().into(), (*due_at).into()]).await
            }
            Self::Renew { name, holder, until } => {
                let sql = "UPDATE jobs SET lease_until = moment($3) WHERE name = $1 AND holder = $2";
                link.run(sql, &[name.as_str().into(), holder.as_str().into(), (*until).into()]).await
            }
            Self::Leave { holder } => {
                let sql = "UPDATE jobs SET holder = NULL, lease_until = NULL WHERE holder = $1";
                link.run(sql, &[holder.as_str().into()]).await
            }
        }
    }
}

impl Database {
    /// Begins a job that is due, unless somebody is at it; whether it was begun.
    pub async fn begin_job(
        &self,
        name: &str,
        holder: &str,
        now: Moment,
        until: Moment,
    ) -> Result<bool, DatabaseError> {
        let (name, holder) = (name.to_owned(), holder.to_owned());
        Ok(self.work(Work::Job(JobStep::Begin { name, holder, now, until })).await? > 0)
    }

    /// Says how a job went, and when it is due again. Nothing, if somebody else took it over meanwhile.
    pub async fn end_job(
        &self,
        name: &str,
        holder: &str,
        due_at: Moment,
        mut outcome: JobOutcome,
    ) -> Result<(), DatabaseError> {
        if let Some(error) = &mut outcome.error {
            error.truncate(error.floor_char_boundary(LONGEST_ERROR));
        }
        let (name, holder) = (name.to_owned(), holder.to_owned());
        self.work(Work::Job(JobStep::End { name, holder, due_at, outcome })).await.map(drop)
    }

    /// A job is due earlier than it was.
    pub async fn bring_forward(&self, name: &str, due_at: Moment) -> Result<(), DatabaseError> {
        self.work(Work::Job(JobStep::Bring { name: name.to_owned(), due_at })).await.map(drop)
    }

    /// Whoever is at a job has it for itself until then; whether it still had it.
    pub async fn renew_job(&self, name: &str, holder: &str, until: Moment) -> Result<bool, DatabaseError> {
        let (name, holder) = (name.to_owned(), holder.to_owned());
        Ok(self.work(Work::Job(JobStep::Renew { name, holder, until })).await? > 0)
    }

    /// Whoever leaves is at no job any more: what it was at is due for others.
    pub async fn leave_jobs(&self, holder: &str) -> Result<(), DatabaseError> {
        self.work(Work::Job(JobStep::Leave { holder: holder.to_owned() })).await.map(drop)
    }

    /// Every job that was ever begun, by name.
    pub async fn jobs(&self) -> Result<Vec<JobRow>, DatabaseError> {
        self.read(async |link| {
            let sql =
                "SELECT name, micros(due_at), holder, micros(lease_until), body::text FROM jobs ORDER BY name";
            let rows = link.rows(sql, &[]).await?;
            rows.iter()
                .map(|row| {
                    Ok(JobRow {
                        name: row.text(0)?.to_owned(),
                        due_at: row.moment(1)?,
                        holder: row.maybe_text(2)?.map(str::to_owned),
                        until: row.maybe_moment(3)?,
                        outcome: row.json(4)?,
                    })
                })
                .collect()
        })
        .await
    }
}
