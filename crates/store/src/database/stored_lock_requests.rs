//! Lock requests that arrived while Redis was unavailable. They are promises and never grants: no lock is held because of a row here.
//!
//! One process at a time executes them, under a lease. Since it may die between executing a request and storing the outcome, a request
//! must be harmless if executed twice: an acquire is known by its request key, a release by its fencing tokens.

use ade_domain::Moment;
use ade_domain::lock::{FencingToken, Holder, LockName, LockRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::batch::Statement;
use super::sql::{Arg, Row, json_text};
use super::{Database, DatabaseError, Result};

/// The lease of the process that executes the stored requests.
const DRAIN_LEASE: &str = "lock-requests";
/// Requests that one statement changes.
const BATCH_SIZE: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredLockCommand {
    /// Waits for its locks with a ticket.
    Acquire(LockRequest),
    Release {
        holder: Holder,
        held: Vec<(LockName, FencingToken)>,
    },
}

impl StoredLockCommand {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Release { .. } => "release",
        }
    }

    fn agent_id(&self) -> &str {
        match self {
            Self::Acquire(request) => request.holder.agent_id(),
            Self::Release { holder, .. } => holder.agent_id(),
        }
    }
}

/// How a stored request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredLockOutcome {
    /// Redis has executed it: an acquire waits or is granted there, or has ended there.
    Executed,
    /// Its deadline passed before Redis was back.
    TimedOut,
    Cancelled,
    /// Redis did not let it wait.
    Refused(StoredRefusal),
    /// Its row cannot be read, so that nobody can execute it. Who asks for it gets that error.
    Unreadable,
}

/// Why Redis did not let an acquire wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredRefusal {
    QueueFull { lock: LockName, queue_length: usize },
    CircuitOpen { lock: LockName, retry_at: Moment },
}

impl StoredLockOutcome {
    /// A name alone is stored without quotes.
    fn to_text(&self) -> Result<String> {
        let text = json_text(self)?;
        let name = text.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
        Ok(name.map_or_else(|| text.clone(), str::to_owned))
    }

    fn parse(text: &str) -> Result<Self> {
        let name = || serde_json::from_value(Value::from(text));
        let parsed = if text.starts_with('{') { serde_json::from_str(text) } else { name() };
        let corrupt = |error| DatabaseError::Corrupt(format!("outcome {text:?} of a lock request: {error}"));
        parsed.map_err(corrupt)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLockRequest {
    /// The ticket of an acquire.
    pub key: String,
    pub command: StoredLockCommand,
    pub arrived_at: Moment,
    /// When an acquire stops waiting.
    pub deadline: Option<Moment>,
    /// How often it was executed without success.
    pub attempts: u64,
    /// `None` while it is pending.
    pub outcome: Option<StoredLockOutcome>,
}

/// What waits to be executed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingLockRequests {
    /// In the order in which they are executed.
    pub requests: Vec<StoredLockRequest>,
    /// The keys of rows that cannot be read, with the reasons.
    pub unreadable: Vec<(String, DatabaseError)>,
}

/// How many requests are pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredRequestCounts {
    pub pending: u64,
    /// Those that were never executed.
    pub untried: u64,
}

const SELECT: &str = "SELECT request_key, micros(arrived_at), micros(deadline), attempts, outcome, body \
                      FROM stored_lock_requests";

fn stored_request(row: &Row) -> Result<StoredLockRequest> {
    let outcome: Option<String> = row.get(4)?;
    Ok(StoredLockRequest {
        key: row.get(0)?,
        arrived_at: row.get(1)?,
        deadline: row.get(2)?,
        attempts: row.get(3)?,
        outcome: outcome.as_deref().map(StoredLockOutcome::parse).transpose()?,
        command: row.json(5)?,
    })
}

impl Database {
    /// Stores a pending request; `false` if its key is known already, then nothing changes.
    pub async fn store_lock_request(&self, request: &StoredLockRequest) -> Result<bool> {
        let body = json_text(&request.command)?;
        let sql = "INSERT INTO stored_lock_requests \
                   (request_key, kind, agent_id, arrived_at, deadline, attempts, body) \
                   VALUES ($1, $2, $3, $4, $5, 0, $6) ON CONFLICT (request_key) DO NOTHING";
        let args = [
            request.key.as_str().into(),
            request.command.kind().into(),
            request.command.agent_id().into(),
            request.arrived_at.into(),
            Arg::Time(request.deadline),
            body.into(),
        ];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    /// Makes a request that has ended pending again, with a new arrival and deadline; `false` if it is pending.
    pub async fn store_lock_request_again(&self, request: &StoredLockRequest) -> Result<bool> {
        let sql = "UPDATE stored_lock_requests SET outcome = NULL, ended_at = NULL, attempts = 0, \
                   arrived_at = $2, deadline = $3 WHERE request_key = $1 AND outcome IS NOT NULL";
        let args = [request.key.as_str().into(), request.arrived_at.into(), Arg::Time(request.deadline)];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    pub async fn stored_lock_request(&self, key: &str) -> Result<Option<StoredLockRequest>> {
        let sql = format!("{SELECT} WHERE request_key = $1");
        self.fetch_first(&sql, &[key.into()], stored_request).await
    }

    /// Pending requests: releases first, then acquires, each in the order of arrival.
    pub async fn pending_lock_requests(&self, limit: u32) -> Result<PendingLockRequests> {
        let sql = format!("{SELECT} WHERE outcome IS NULL ORDER BY kind DESC, arrived_at, request_key");
        let rows = self.fetch_page(&sql, &[], limit, |row| Ok((row.get(0)?, stored_request(row)))).await?;
        let mut pending = PendingLockRequests::default();
        for (key, request) in rows {
            match request {
                Ok(request) => pending.requests.push(request),
                Err(error) => pending.unreadable.push((key, error)),
            }
        }
        Ok(pending)
    }

    pub async fn count_stored_lock_requests(&self) -> Result<StoredRequestCounts> {
        let sql = "SELECT count(*)::bigint, coalesce(sum(CASE WHEN attempts = 0 THEN 1 ELSE 0 END), 0)::bigint \
                   FROM stored_lock_requests WHERE outcome IS NULL";
        let counts = self.fetch_first(sql, &[], |row| {
            let (pending, untried) = row.pair()?;
            Ok(StoredRequestCounts { pending, untried })
        });
        Ok(counts.await?.unwrap_or_default())
    }

    /// How many requests are pending in all, and of one agent.
    pub async fn count_pending_of_agent(&self, agent_id: &str) -> Result<(u64, u64)> {
        let sql = "SELECT count(*)::bigint, coalesce(sum(CASE WHEN agent_id = $1 THEN 1 ELSE 0 END), 0)::bigint \
                   FROM stored_lock_requests WHERE outcome IS NULL";
        Ok(self.fetch_first(sql, &[agent_id.into()], Row::pair).await?.unwrap_or_default())
    }

    /// Ends a pending request; `false` if it has ended already.
    pub async fn end_lock_request(
        &self,
        key: &str,
        outcome: &StoredLockOutcome,
        now: Moment,
    ) -> Result<bool> {
        let sql = "UPDATE stored_lock_requests SET outcome = $2, ended_at = $3 \
                   WHERE request_key = $1 AND outcome IS NULL";
        let outcome = outcome.to_text()?;
        Ok(self.execute_statement(sql, &[key.into(), outcome.into(), now.into()]).await? > 0)
    }

    /// Notes that requests were executed without success; they stay pending.
    pub async fn count_lock_request_attempts(&self, keys: &[String]) -> Result<()> {
        for keys in keys.chunks(BATCH_SIZE) {
            let sql = "UPDATE stored_lock_requests SET attempts = attempts + 1 WHERE request_key = $1";
            let count = |key: &String| Statement::new(sql, [key.as_str().into()]);
            self.execute(keys.iter().map(count).collect::<Vec<_>>()).await?;
        }
        Ok(())
    }

    /// Deletes requests that ended before a time, and returns how many.
    pub async fn delete_ended_lock_requests(&self, before: Moment) -> Result<u64> {
        let sql = "DELETE FROM stored_lock_requests WHERE outcome IS NOT NULL AND ended_at < $1";
        self.execute_statement(sql, &[before.into()]).await
    }

    /// Takes or keeps the lease of the process that executes stored requests; `false` while another process has it.
    pub async fn lease_lock_requests(&self, holder: &str, now: Moment, until: Moment) -> Result<bool> {
        let sql = "INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, $3) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                   WHERE leases.holder = excluded.holder OR leases.expires_at <= $4";
        let args = [DRAIN_LEASE.into(), holder.into(), until.into(), now.into()];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    /// Gives up the lease, so that another process can take it at once.
    pub async fn release_lock_requests(&self, holder: &str) -> Result<()> {
        let sql = "DELETE FROM leases WHERE name = $1 AND holder = $2";
        self.execute_statement(sql, &[DRAIN_LEASE.into(), holder.into()]).await.map(drop)
    }
}
