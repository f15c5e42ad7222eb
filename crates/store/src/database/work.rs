//! The work queue: which tasks need a worker, who works on them, whose lease has expired, and the output of running tasks.
//!
//! A claim only keeps workers from trying the same task at the same time. Attempts and leases, which guard every commit of a task,
//! make sure that nothing is applied twice.

use std::cmp::Reverse;

use ade_domain::Moment;
use ade_domain::people::UserId;
use ade_domain::task::{Phase, PreviewStatus, Task, TaskState};
use serde::{Deserialize, Serialize};

use super::batch::{Returning, Statement};
use super::commit::{KeyedResponse, insert_response};
use super::sql::{Arg, LOCK_ROWS, Row, SKIP_LOCKED, Select, SqlConnection, uuid};
use super::{Database, Operation, Result, StoredTask, TaskPosition, position_args, rows};

/// Bytes of the log of one task in the database, for those who follow it; the whole output is a blob.
const MAX_LOG_BYTES: u64 = 1_048_576;

/// How often a worker looks for other tasks, if others were faster.
const MAX_CLAIM_ROUNDS: u32 = 5;

// The priority of a task is below the first of these.
const FORCED_PRIORITY: i64 = 1_000;
const ROLLBACK_PRIORITY: i64 = 2_000;
const PREVIEW_PRIORITY: i64 = 3_000;

/// What a task needs a worker for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "snake_case")]
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
            _ if task.restored => None,
            TaskState::Approved => Some(Self::Apply),
            TaskState::Failed if is_rollback_requested() => Some(Self::RollBack),
            TaskState::Draft | TaskState::Reviewing if task.preview.status == PreviewStatus::Pending => {
                Some(Self::Preview)
            }
            _ => None,
        }
    }

    /// The highest is claimed first.
    pub(super) fn priority(self, task: &Task) -> i64 {
        match self {
            Self::Preview => PREVIEW_PRIORITY,
            Self::RollBack => ROLLBACK_PRIORITY,
            Self::Apply if task.forced => FORCED_PRIORITY + i64::from(task.config.priority),
            Self::Apply => task.config.priority.into(),
        }
    }

    /// The work cannot be claimed before. Of the same priority, the oldest is claimed first.
    #[must_use]
    pub fn ready_at(self, task: &Task) -> Moment {
        let since = task.entered_at.get(&task.state).copied();
        let since = since.unwrap_or_else(|| Moment::from_micros(0));
        let waits = [task.apply_after, task.held_until].into_iter().flatten().filter(|_| self == Self::Apply);
        waits.fold(since, Moment::max)
    }
}

fn log_line(row: &Row) -> Result<LogLine> {
    Ok(LogLine { number: row.get(0)?, attempt: row.get(1)?, at: row.get(2)?, text: row.get(3)? })
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

/// Claims the current revision of a task, unless it is not ready or somebody has claimed it. A claim of an outdated
/// revision, whose commit was not seen yet, does not end that of a newer one.
const CLAIM: &str = "INSERT INTO task_claims (task_id, revision, claimed_by, claimed_until) \
                     SELECT task_id, revision, $2, $3 FROM tasks WHERE task_id = $1 AND work_kind IS NOT NULL AND ready_at <= $4 \
                     ON CONFLICT (task_id) DO UPDATE SET revision = excluded.revision, \
                     claimed_by = excluded.claimed_by, claimed_until = excluded.claimed_until \
                     WHERE task_claims.revision < excluded.revision \
                     OR task_claims.claimed_until <= $4";

/// An unclaimed task with work that is ready. The smallest is claimed first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadyTask {
    priority: Reverse<u64>,
    ready_at: Moment,
    pub task_id: String,
    pub author_id: UserId,
}

/// Which ready tasks to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadyFilter<'a> {
    pub queue: &'a str,
    /// Only tasks of these types; empty for all.
    pub types: &'a [String],
    pub excluded_authors: &'a [UserId],
    /// Only what comes after this one.
    pub after: Option<&'a ReadyTask>,
}

/// Deletes the claim of a task that is deleted too.
pub(super) fn delete_claim(task_id: &str) -> Statement {
    Statement::new("DELETE FROM task_claims WHERE task_id = $1", [uuid(task_id)])
}

/// The first ready tasks of a queue, in order. `lock` ends the statement.
async fn ready(
    connection: &mut SqlConnection<'_>,
    ReadyFilter { queue, types, excluded_authors, after }: ReadyFilter<'_>,
    now: Moment,
    limit: u32,
    lock: &str,
) -> Result<Vec<ReadyTask>> {
    let mut select =
        Select::new("SELECT task_id::text, work_priority, micros(ready_at), author_id FROM tasks");
    select.and("work_kind IS NOT NULL AND work_queue = ? AND ready_at <= ?", [queue.into(), now.into()]);
    // For each task in turn, and not as a join: only the first tasks are read.
    let claimed_until = "(SELECT c.claimed_until FROM task_claims c WHERE c.task_id = tasks.task_id AND c.revision = tasks.revision)";
    select.and(&format!("coalesce({claimed_until}, ready_at) <= ?"), [now.into()]);
    if !types.is_empty() {
        select.and_in("type", types.iter().map(|task_type| task_type.as_str().into()));
    }
    for author in excluded_authors {
        select.and("author_id <> ?", [author.as_str().into()]);
    }
    if let Some(ReadyTask { priority: Reverse(priority), ready_at, task_id, .. }) = after {
        let later =
            "(work_priority < ? OR (work_priority = ? AND (ready_at > ? OR (ready_at = ? AND task_id > ?))))";
        let (priority, ready_at) = (Arg::from(*priority), Arg::from(*ready_at));
        select.and(later, [priority.clone(), priority, ready_at.clone(), ready_at, uuid(task_id)]);
    }
    let order = format!(" ORDER BY work_priority DESC, ready_at, task_id LIMIT {limit}{lock}");
    let rows = connection.query(&(select.sql + &order), &select.args).await?;
    let task = |row: &Row| {
        let (priority, author_id) = (Reverse(row.get(1)?), UserId::new(row.get::<String>(3)?));
        Ok(ReadyTask { priority, ready_at: row.get(2)?, task_id: row.get(0)?, author_id })
    };
    rows.iter().map(task).collect()
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

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Vec<String>> {
        for _ in 0..MAX_CLAIM_ROUNDS {
            let mut found = Vec::new();
            // One queue at a time: each is in order in the index, several together are not.
            for queue in &self.queues {
                let filter = ReadyFilter { queue, types: &self.types, ..ReadyFilter::default() };
                found.extend(ready(connection, filter, self.now, self.limit, SKIP_LOCKED).await?);
            }
            found.sort();
            found.dedup();
            found.truncate(self.limit as usize);
            let mut claimed = Vec::new();
            for ReadyTask { task_id, .. } in &found {
                let args = [uuid(task_id), self.by.as_str().into(), self.until.into(), self.now.into()];
                if connection.execute(CLAIM, &args).await? > 0 {
                    claimed.push(task_id.clone());
                }
            }
            // If others have just claimed all of them, there may be more.
            if found.is_empty() || !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        Ok(Vec::new())
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

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<bool> {
        let task_id = || uuid(&self.task_id);
        // Locks the row, so that concurrent writers get different numbers.
        let running = format!(
            "SELECT 1::bigint FROM tasks WHERE task_id = $1 AND attempt = $2 AND lease_until IS NOT NULL{LOCK_ROWS}"
        );
        if connection.query_first(&running, &[task_id(), self.attempt.into()]).await?.is_none() {
            return Ok(false);
        }
        let response = self.response.as_ref().map(insert_response).transpose()?;
        connection.execute_each(response.as_slice()).await?;
        let so_far = "SELECT coalesce(max(number), 0)::bigint, coalesce(sum(length(text)), 0)::bigint FROM task_logs \
                      WHERE task_id = $1";
        let row = connection.query_first(so_far, &[task_id()]).await?;
        let (last, bytes) = row.map_or(Ok((0, 0)), |row| row.pair())?;
        if bytes < MAX_LOG_BYTES {
            let mut text = self.text.clone();
            if bytes + text.len() as u64 >= MAX_LOG_BYTES {
                text.push_str("\n(log truncated: further output is not shown here)\n");
            }
            let line = LogLine { number: last + 1, attempt: self.attempt, at: self.at, text };
            connection.execute_each(&[rows::log_line(&self.task_id, &line).insert("")]).await?;
        }
        Ok(true)
    }
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
    ) -> Result<Vec<String>> {
        let (queues, types, by) = (queues.to_vec(), types.to_vec(), by.to_owned());
        self.execute(ClaimTasks { queues, types, by, now, until, limit }).await
    }

    /// The first unclaimed tasks with work in a queue, in order.
    pub async fn ready_tasks(
        &self,
        filter: ReadyFilter<'_>,
        now: Moment,
        limit: u32,
    ) -> Result<Vec<ReadyTask>> {
        self.read(async |connection| ready(connection, filter, now, limit, "").await).await
    }

    /// Claims a task until `until`; `false` if it is no longer ready or somebody else has claimed it.
    pub async fn claim_task(&self, task_id: &str, by: &str, now: Moment, until: Moment) -> Result<bool> {
        let args = [uuid(task_id), by.into(), until.into(), now.into()];
        Ok(self.execute_statement(CLAIM, &args).await? > 0)
    }

    /// Keeps a claimed task from being claimed by anybody before `until`; `false` if the claim is lost.
    pub async fn postpone_claim(&self, task_id: &str, by: &str, until: Moment) -> Result<bool> {
        let sql = "UPDATE task_claims SET claimed_until = $3 WHERE task_id = $1 AND claimed_by = $2 \
                   AND revision = (SELECT t.revision FROM tasks t WHERE t.task_id = $1)";
        Ok(self.execute_statement(sql, &[uuid(task_id), by.into(), until.into()]).await? > 0)
    }

    /// Extends the lease of an attempt. It never becomes shorter.
    pub async fn renew_lease(&self, task_id: &str, attempt: u64, until: Moment) -> Result<LeaseRenewal> {
        let sql = "UPDATE tasks SET lease_until = CASE WHEN lease_until > $3 THEN lease_until ELSE $3 END \
                   WHERE task_id = $1 AND attempt = $2 AND lease_until IS NOT NULL \
                   RETURNING body::jsonb->'execution'->>'stop'";
        let update = Returning(Statement::new(sql, [uuid(task_id), attempt.into(), until.into()]));
        Ok(match self.execute(update).await? {
            None => LeaseRenewal::Lost,
            Some(row) if row.get::<Option<String>>(0)?.is_some() => LeaseRenewal::StopRequested,
            Some(_) => LeaseRenewal::Renewed,
        })
    }

    /// Whether a user has asked to stop this attempt, and it is the current one.
    pub async fn is_stop_requested(&self, task_id: &str, attempt: u64) -> Result<bool> {
        let sql = "SELECT 1::bigint FROM tasks WHERE task_id = $1 AND attempt = $2 \
                   AND body::jsonb->'execution'->>'stop' IS NOT NULL";
        Ok(self.fetch_number(sql, &[uuid(task_id), attempt.into()]).await? > 0)
    }

    /// When the lease of the current attempt expires; `None` if no attempt is running.
    pub async fn lease_expiry(&self, task_id: &str) -> Result<Option<Moment>> {
        let sql = "SELECT micros(lease_until) FROM tasks WHERE task_id = $1";
        let lease = self.fetch_first(sql, &[uuid(task_id)], |row| row.get(0)).await?;
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
    ) -> Result<bool> {
        let (task_id, text) = (task_id.to_owned(), text.to_owned());
        self.execute(AppendLog { task_id, attempt, at, text, response }).await
    }

    /// The last lines of the log of a task, in order.
    pub async fn task_log_end(&self, task_id: &str, limit: u32) -> Result<Vec<LogLine>> {
        let sql =
            "SELECT number, attempt, micros(at), text FROM task_logs WHERE task_id = $1 ORDER BY number DESC";
        let mut lines = self.fetch_page(sql, &[uuid(task_id)], limit, log_line).await?;
        lines.reverse();
        Ok(lines)
    }

    /// The log of a task after the line number `after`.
    pub async fn task_log(&self, task_id: &str, after: u64, limit: u32) -> Result<Vec<LogLine>> {
        let sql = "SELECT number, attempt, micros(at), text FROM task_logs WHERE task_id = $1 AND number > $2 \
                   ORDER BY number";
        self.fetch_page(sql, &[uuid(task_id), after.into()], limit, log_line).await
    }

    /// Tasks whose lease has expired, the longest expired first, after the last one of the page before: expiry and task id.
    pub async fn tasks_with_expired_lease(
        &self,
        now: Moment,
        after: Option<&TaskPosition>,
        limit: u32,
    ) -> Result<Vec<TaskPosition>> {
        let sql = "SELECT micros(lease_until), task_id::text FROM tasks WHERE lease_until <= $1 \
                   AND (lease_until > $2 OR (lease_until = $2 AND task_id > $3)) \
                   ORDER BY lease_until, task_id";
        let [at, id] = position_args(after);
        self.fetch_page(sql, &[now.into(), at, id], limit, Row::pair).await
    }

    /// How many tasks have work, by queue; the longest queues first.
    pub async fn queued_work(&self, limit: u32) -> Result<Vec<(String, u64)>> {
        let sql = "SELECT work_queue, count(*)::bigint AS length FROM tasks WHERE work_kind IS NOT NULL \
                   GROUP BY work_queue ORDER BY length DESC, work_queue";
        self.scan(&format!("{sql} LIMIT {limit}"), &[]).await?.iter().map(Row::pair).collect()
    }
}
