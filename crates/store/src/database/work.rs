//! The work queue: which tasks need a worker, who works on them, whose lease has expired, and the output of running tasks.
//!
//! A claim only keeps workers from trying the same task at the same time. Attempts and leases, which guard every commit of a task,
//! make sure that nothing is applied twice.

use std::cmp::Reverse;

use ade_domain::Moment;
use ade_domain::task::{Phase, PreviewStatus, Task, TaskState};
use serde::{Deserialize, Serialize};

use super::batch::Statement;
use super::commit::{KeyedResponse, insert_response};
use super::sql::{Arg, LOCK_ROWS, SKIP_LOCKED, SqlConnection, placeholders};
use super::{Database, DatabaseError, Operation, StoredTask, TaskPosition, position_args};

/// Bytes of the log of one task in the database, for those who follow it; the whole output is a blob.
const MAX_LOG_BYTES: u64 = 1_048_576;

// The priority of a task is below the first of these.
const FORCED_PRIORITY: u64 = 1_000;
const ROLLBACK_PRIORITY: u64 = 2_000;
const PREVIEW_PRIORITY: u64 = 3_000;

/// What a task needs a worker for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    Preview,
    Apply,
    RollBack,
}

impl WorkKind {
    /// What the task needs a worker for now, if for anything.
    #[must_use]
    pub fn of(task: &StoredTask) -> Option<Self> {
        let is_rollback_requested = || {
            let execution = task.execution.as_ref();
            execution.is_some_and(|execution| execution.rollback.is_some() && execution.phase == Phase::Ended)
        };
        match task.state {
            TaskState::Approved => Some(Self::Apply),
            TaskState::Failed if is_rollback_requested() => Some(Self::RollBack),
            TaskState::Draft | TaskState::Reviewing if task.preview.status == PreviewStatus::Pending => {
                Some(Self::Preview)
            }
            _ => None,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Preview => "preview",
            Self::Apply => "apply",
            Self::RollBack => "roll_back",
        }
    }

    /// The highest is claimed first.
    pub(super) fn priority(self, task: &Task) -> u64 {
        match self {
            Self::Preview => PREVIEW_PRIORITY,
            Self::RollBack => ROLLBACK_PRIORITY,
            Self::Apply if task.forced => FORCED_PRIORITY + u64::from(task.config.priority),
            Self::Apply => task.config.priority.into(),
        }
    }

    /// The work cannot be claimed before. Of the same priority, the oldest is claimed first.
    #[must_use]
    pub fn ready_at(self, task: &Task) -> Moment {
        let since = task.entered_at.get(&task.state).copied();
        let since = since.unwrap_or_else(|| Moment::from_micros(0));
        task.apply_after.filter(|_| self == Self::Apply).map_or(since, |after| after.max(since))
    }
}

/// A piece of the output of a running task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Counts from 1.
    pub number: u64,
    pub attempt: u64,
    pub at: Moment,
    pub text: String,
}

/// The outcome of renewing the lease of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRenewal {
    /// The lease was renewed.
    Renewed,
    /// The lease was renewed, and a user has asked to stop the attempt.
    StopRequested,
    /// The attempt has ended, or another one has replaced it.
    Lost,
}

/// Ids of unclaimed tasks that are ready, in the order in which they are to be claimed. `lock` ends the statement.
async fn ready(
    connection: &mut SqlConnection<'_>,
    (queues, types): (&[String], &[String]),
    now: Moment,
    limit: u32,
    lock: &str,
) -> Result<Vec<String>, DatabaseError> {
    let of_types = match types.len() {
        0 => String::new(),
        count => format!(" AND type IN ({})", placeholders(3, count, "")),
    };
    let sql = format!(
        "SELECT task_id::text, work_priority, micros(ready_at) FROM tasks \
         WHERE work_kind IS NOT NULL AND work_queue = $1 AND ready_at <= moment($2){of_types} \
         AND (claimed_until IS NULL OR claimed_until <= moment($2)) \
         ORDER BY work_priority DESC, ready_at, task_id LIMIT {limit}{lock}"
    );
    let mut found = Vec::new();
    // One queue at a time: each is in order in the index, several together are not.
    for queue in queues {
        let mut args = vec![Arg::from(queue.as_str()), now.into()];
        args.extend(types.iter().map(|task_type| Arg::from(task_type.as_str())));
        for row in connection.query(&sql, &args).await? {
            found.push((Reverse(row.number(1)?), row.moment(2)?, row.string(0)?));
        }
    }
    found.sort();
    found.dedup();
    Ok(found.into_iter().take(limit as usize).map(|(.., task_id)| task_id).collect())
}

struct ClaimTasks {
    queues: Vec<String>,
    types: Vec<String>,
    by: String,
    now: Moment,
    until: Moment,
    limit: u32,
}

impl Operation for ClaimTasks {
    type Output = Vec<String>;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Vec<String>, DatabaseError> {
        let of = (self.queues.as_slice(), self.types.as_slice());
        let task_ids = ready(connection, of, self.now, self.limit, SKIP_LOCKED).await?;
        for task_id in &task_ids {
            let args = [task_id.as_str().into(), self.by.as_str().into(), self.until.into()];
            let sql = "UPDATE tasks SET claimed_by = $2, claimed_until = moment($3) WHERE task_id = $1::uuid";
            connection.execute(sql, &args).await?;
        }
        Ok(task_ids)
    }
}

struct RenewLease {
    task_id: String,
    attempt: u64,
    until: Moment,
}

impl Operation for RenewLease {
    type Output = LeaseRenewal;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<LeaseRenewal, DatabaseError> {
        let task_id = || Arg::from(self.task_id.as_str());
        let sql = "UPDATE tasks SET lease_until = CASE WHEN lease_until > moment($3) THEN lease_until \
                   ELSE moment($3) END \
                   WHERE task_id = $1::uuid AND attempt = $2 AND lease_until IS NOT NULL";
        if connection.execute(sql, &[task_id(), self.attempt.into(), self.until.into()]).await? == 0 {
            return Ok(LeaseRenewal::Lost);
        }
        let sql = "SELECT body->'execution'->>'stop' FROM tasks WHERE task_id = $1::uuid";
        let row = connection.query_first(sql, &[task_id()]).await?;
        let stop = row.as_ref().map(|row| row.optional_text(0)).transpose()?.flatten();
        Ok(if stop.is_some() { LeaseRenewal::StopRequested } else { LeaseRenewal::Renewed })
    }
}

struct AppendLog {
    task_id: String,
    attempt: u64,
    at: Moment,
    text: String,
    response: Option<KeyedResponse>,
}

impl Operation for AppendLog {
    /// Whether the attempt is running.
    type Output = bool;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<bool, DatabaseError> {
        let task_id = || Arg::from(self.task_id.as_str());
        // Locks the row, so that concurrent writers get different numbers.
        let running = format!(
            "SELECT 1::bigint FROM tasks WHERE task_id = $1::uuid AND attempt = $2 AND lease_until IS NOT NULL{LOCK_ROWS}"
        );
        if connection.query_first(&running, &[task_id(), self.attempt.into()]).await?.is_none() {
            return Ok(false);
        }
        let response = self.response.as_ref().map(insert_response).transpose()?;
        connection.execute_each(response.as_slice()).await?;
        let so_far = "SELECT coalesce(max(number), 0)::bigint, coalesce(sum(length(text)), 0)::bigint FROM task_logs \
                      WHERE task_id = $1::uuid";
        let (last, bytes) = match connection.query_first(so_far, &[task_id()]).await? {
            Some(row) => (row.number(0)?, row.number(1)?),
            None => (0, 0),
        };
        if bytes < MAX_LOG_BYTES {
            let mut text = self.text.clone();
            if bytes + text.len() as u64 >= MAX_LOG_BYTES {
                text.push_str("\n(log truncated: further output is not shown here)\n");
            }
            let line = LogLine { number: last + 1, attempt: self.attempt, at: self.at, text };
            connection.execute_each(&[insert_log_line(&self.task_id, &line, "")]).await?;
        }
        Ok(true)
    }
}

/// `suffix` says what happens to a line that is there already.
pub(super) fn insert_log_line(task_id: &str, line: &LogLine, suffix: &str) -> Statement {
    let LogLine { number, attempt, at, text } = line;
    let args = [task_id.into(), (*number).into(), (*attempt).into(), (*at).into(), text.as_str().into()];
    let sql = "INSERT INTO task_logs (task_id, number, attempt, at, text) VALUES ($1::uuid, $2, $3, moment($4), $5)";
    Statement::new(format!("{sql}{suffix}"), args)
}

impl Database {
    /// Claims up to `limit` tasks with work in some queues until `until`, only of some types unless `types` is empty. Returns their
    /// ids: the highest priority first, then the oldest.
    pub async fn claim_tasks(
        &self,
        queues: &[String],
        types: &[String],
        by: &str,
        now: Moment,
        until: Moment,
        limit: u32,
    ) -> Result<Vec<String>, DatabaseError> {
        let (queues, types, by) = (queues.to_vec(), types.to_vec(), by.to_owned());
        self.execute(ClaimTasks { queues, types, by, now, until, limit }).await
    }

    /// The id of the task that a claim would return first. Does not claim it.
    pub async fn next_ready_task(
        &self,
        queues: &[String],
        types: &[String],
        now: Moment,
    ) -> Result<Option<String>, DatabaseError> {
        let of = (queues, types);
        self.read(async |connection| Ok(ready(connection, of, now, 1, "").await?.into_iter().next())).await
    }

    /// Keeps a claimed task from being claimed by anybody before `until`; `false` if the claim is lost.
    pub async fn postpone_claim(
        &self,
        task_id: &str,
        by: &str,
        until: Moment,
    ) -> Result<bool, DatabaseError> {
        let sql = "UPDATE tasks SET claimed_until = moment($3) WHERE task_id = $1::uuid AND claimed_by = $2";
        Ok(self.execute_statement(sql, [task_id.into(), by.into(), until.into()]).await? > 0)
    }

    /// Extends the lease of an attempt. It never becomes shorter.
    pub async fn renew_lease(
        &self,
        task_id: &str,
        attempt: u64,
        until: Moment,
    ) -> Result<LeaseRenewal, DatabaseError> {
        self.execute(RenewLease { task_id: task_id.to_owned(), attempt, until }).await
    }

    /// Whether a user has asked to stop this attempt, and it is the current one.
    pub async fn is_stop_requested(&self, task_id: &str, attempt: u64) -> Result<bool, DatabaseError> {
        let sql = "SELECT 1::bigint FROM tasks WHERE task_id = $1::uuid AND attempt = $2 \
                   AND body->'execution'->>'stop' IS NOT NULL";
        Ok(self.fetch_number(sql, &[task_id.into(), attempt.into()]).await? > 0)
    }

    /// When the lease of the current attempt expires; `None` if no attempt is running.
    pub async fn lease_expiry(&self, task_id: &str) -> Result<Option<Moment>, DatabaseError> {
        let sql = "SELECT micros(lease_until) FROM tasks WHERE task_id = $1::uuid";
        let lease = self.fetch_first(sql, &[task_id.into()], |row| row.optional_moment(0)).await?;
        Ok(lease.flatten())
    }

    /// Appends output of an attempt to the log of its task, and stores the response to the worker. `false` if the attempt has ended,
    /// or another one has replaced it.
    pub async fn append_task_log(
        &self,
        task_id: &str,
        attempt: u64,
        at: Moment,
        text: &str,
        response: Option<KeyedResponse>,
    ) -> Result<bool, DatabaseError> {
        let (task_id, text) = (task_id.to_owned(), text.to_owned());
        self.execute(AppendLog { task_id, attempt, at, text, response }).await
    }

    /// The log of a task after the line number `after`.
    pub async fn task_log(
        &self,
        task_id: &str,
        after: u64,
        limit: u32,
    ) -> Result<Vec<LogLine>, DatabaseError> {
        let sql = "SELECT number, attempt, micros(at), text FROM task_logs WHERE task_id = $1::uuid AND number > $2 \
                   ORDER BY number";
        let line = |row: &super::Row| {
            let (number, attempt, at) = (row.number(0)?, row.number(1)?, row.moment(2)?);
            Ok(LogLine { number, attempt, at, text: row.string(3)? })
        };
        self.fetch_page(sql, &[task_id.into(), after.into()], limit, line).await
    }

    /// Tasks whose lease has expired, the longest expired first, after the last one of the page before: expiry and task id.
    pub async fn tasks_with_expired_lease(
        &self,
        now: Moment,
        after: Option<&TaskPosition>,
        limit: u32,
    ) -> Result<Vec<TaskPosition>, DatabaseError> {
        let sql = "SELECT micros(lease_until), task_id::text FROM tasks WHERE lease_until <= moment($1) \
                   AND (lease_until > moment($2) OR (lease_until = moment($2) AND task_id > $3::uuid)) \
                   ORDER BY lease_until, task_id";
        let [at, id] = position_args(after);
        self.fetch_page(sql, &[now.into(), at, id], limit, |row| Ok((row.moment(0)?, row.string(1)?))).await
    }

    /// How many tasks have work, by queue; the longest queues first.
    pub async fn queued_work(&self, limit: u32) -> Result<Vec<(String, u64)>, DatabaseError> {
        let sql = "SELECT work_queue, count(*)::bigint AS length FROM tasks WHERE work_kind IS NOT NULL \
                   GROUP BY work_queue ORDER BY length DESC, work_queue";
        self.fetch_page(sql, &[], limit, |row| Ok((row.string(0)?, row.number(1)?))).await
    }
}
