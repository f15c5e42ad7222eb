//! Counts of tasks and approvals, and statistics per user. They are computed on demand, from indexes; archived tasks and approvals
//! were counted when they were removed, and stay included.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::people::UserId;
use ade_domain::task::TaskState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::sql::{Arg, Row, SqlConnection, json};
use super::{Database, DatabaseError, Operation};

/// How many responses of a reviewer the response times are computed from.
const MAX_SAMPLED_RESPONSES: u32 = 200;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatabaseCounts {
    /// Tasks by state, including archived ones; states without tasks are left out.
    pub tasks: BTreeMap<TaskState, u64>,
    pub archived: u64,
    /// Approval requests without a decision.
    pub pending_approvals: u64,
    pub oldest_pending: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserStats {
    /// Tasks of the user by state, including archived ones.
    pub tasks: BTreeMap<TaskState, u64>,
    /// Approval requests to the user by status, including archived ones.
    pub approvals: BTreeMap<ApprovalStatus, u64>,
    /// How many responses the two times are computed from: the last ones that are not archived.
    pub sampled_responses: u32,
    /// Seconds from request to response.
    pub mean_seconds: Option<f64>,
    /// Seconds from request to response.
    pub median_seconds: Option<f64>,
}

/// How many tasks were closed on a day.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DailyStats {
    /// In UTC, as `2026-11-16`.
    #[serde(skip)]
    pub day: String,
    pub completed: u64,
    pub failed: u64,
    pub rejected: u64,
    pub cancelled: u64,
}

/// The second column by the first, which is the serialised form of `T`.
async fn counts_by<T: DeserializeOwned + Ord>(
    connection: &mut SqlConnection<'_>,
    sql: &str,
    args: &[Arg],
) -> Result<BTreeMap<T, u64>, DatabaseError> {
    let key = |row: &Row| {
        let text = row.text(0)?;
        let unknown = |_| DatabaseError::Corrupt(format!("unknown state {text}"));
        serde_json::from_value(Value::from(text)).map_err(unknown)
    };
    let rows = connection.query(sql, args).await?;
    rows.iter().map(|row| Ok((key(row)?, row.number(1)?))).collect()
}

fn add<T: Ord + Copy>(totals: &mut BTreeMap<T, u64>, more: &BTreeMap<T, u64>) {
    for (key, count) in more {
        *totals.entry(*key).or_default() += count;
    }
}

/// Mean and median of microseconds, in seconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a review are far below 2^52")]
fn mean_and_median(micros: &mut [u64]) -> Option<(f64, f64)> {
    micros.sort_unstable();
    let half = micros.len() / 2;
    let upper = *micros.get(half)?;
    let lower =
        if micros.len().is_multiple_of(2) { micros.get(half.checked_sub(1)?).copied()? } else { upper };
    let seconds = |micros: u64| micros as f64 / 1e6;
    let mean = seconds(micros.iter().sum()) / micros.len() as f64;
    Some((mean, f64::midpoint(seconds(lower), seconds(upper))))
}

struct StoreDailyStats {
    day: String,
    from: Moment,
    to: Moment,
}

impl Operation for StoreDailyStats {
    /// `false` if the day was counted before.
    type Output = bool;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<bool, DatabaseError> {
        let sql = "SELECT state, count(*)::bigint FROM tasks WHERE closed_at >= moment($1) AND closed_at < moment($2) \
                   GROUP BY state";
        let counts: BTreeMap<TaskState, u64> =
            counts_by(connection, sql, &[self.from.into(), self.to.into()]).await?;
        let count = |state| counts.get(&state).copied().unwrap_or_default();
        let stats = DailyStats {
            day: self.day.clone(),
            completed: count(TaskState::Completed),
            failed: count(TaskState::Failed),
            rejected: count(TaskState::Rejected),
            cancelled: count(TaskState::Cancelled),
        };
        let sql = "INSERT INTO daily_stats (day, body) VALUES ($1, $2::jsonb) ON CONFLICT DO NOTHING";
        Ok(connection.execute(sql, &[self.day.as_str().into(), json(&stats)?]).await? > 0)
    }
}

impl Database {
    pub async fn counts(&self) -> Result<DatabaseCounts, DatabaseError> {
        self.read(async |connection| {
            let sql = "SELECT state, count(*)::bigint FROM tasks GROUP BY state";
            let mut tasks = counts_by(connection, sql, &[]).await?;
            let sql = "SELECT state, sum(count)::bigint FROM archived_counts WHERE kind = 'task' AND count > 0 GROUP BY state";
            let archived: BTreeMap<TaskState, u64> = counts_by(connection, sql, &[]).await?;
            add(&mut tasks, &archived);
            let archived = archived.values().sum();
            let sql = "SELECT total, micros(oldest) FROM (SELECT count(*)::bigint AS total, min(created_at) AS oldest \
                       FROM approvals WHERE status = 'PENDING') AS pending";
            let counts = DatabaseCounts { tasks, archived, ..DatabaseCounts::default() };
            let Some(row) = connection.query_first(sql, &[]).await? else { return Ok(counts) };
            Ok(DatabaseCounts { pending_approvals: row.number(0)?, oldest_pending: row.optional_moment(1)?, ..counts })
        })
        .await
    }

    /// Counts the tasks that were closed on a day and stores the result; `false` if that was done before.
    pub async fn store_daily_stats(
        &self,
        day: &str,
        from: Moment,
        to: Moment,
    ) -> Result<bool, DatabaseError> {
        self.execute(StoreDailyStats { day: day.to_owned(), from, to }).await
    }

    /// The stored days, the newest first.
    pub async fn daily_stats(&self, limit: u32) -> Result<Vec<DailyStats>, DatabaseError> {
        let sql = "SELECT day, body::text FROM daily_stats ORDER BY day DESC";
        self.fetch_page(sql, &[], limit, |row| Ok(DailyStats { day: row.string(0)?, ..row.json(1)? })).await
    }

    /// When the first of the tasks that are not archived was closed.
    pub async fn first_closed_at(&self) -> Result<Option<Moment>, DatabaseError> {
        let sql =
            "SELECT micros(closed_at) FROM tasks WHERE closed_at IS NOT NULL ORDER BY closed_at LIMIT 1";
        self.fetch_first(sql, &[], |row| row.moment(0)).await
    }

    pub async fn user_stats(&self, user: &UserId) -> Result<UserStats, DatabaseError> {
        let args = [user.as_str().into()];
        let times = format!(
            "SELECT micros(created_at), micros(responded_at) FROM approvals \
             WHERE reviewer_id = $1 AND responded_at IS NOT NULL ORDER BY responded_at DESC LIMIT {MAX_SAMPLED_RESPONSES}"
        );
        self.read(async |connection| {
            let sql = "SELECT state, count(*)::bigint FROM tasks WHERE author_id = $1 GROUP BY state";
            let mut tasks = counts_by(connection, sql, &args).await?;
            let sql = "SELECT state, count FROM archived_counts WHERE kind = 'task' AND user_id = $1 AND count > 0";
            add(&mut tasks, &counts_by(connection, sql, &args).await?);
            let sql = "SELECT status, count(*)::bigint FROM approvals WHERE reviewer_id = $1 GROUP BY status";
            let mut requests = counts_by(connection, sql, &args).await?;
            let sql =
                "SELECT state, count FROM archived_counts WHERE kind = 'approval' AND user_id = $1 AND count > 0";
            add(&mut requests, &counts_by(connection, sql, &args).await?);
            let rows = connection.query(&times, &args).await?;
            let elapsed = |row: &Row| Ok(row.moment(1)?.micros().saturating_sub(row.moment(0)?.micros()));
            let mut elapsed = rows.iter().map(elapsed).collect::<Result<Vec<u64>, DatabaseError>>()?;
            let (mean_seconds, median_seconds) = mean_and_median(&mut elapsed).unzip();
            let answered = u32::try_from(elapsed.len()).unwrap_or(u32::MAX);
            Ok(UserStats { tasks, approvals: requests, sampled_responses: answered, mean_seconds, median_seconds })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(mean_and_median(&mut []), None);
        assert_eq!(mean_and_median(&mut [3_000_000]), Some((3.0, 3.0)));
        assert_eq!(mean_and_median(&mut [8_000_000, 1_000_000, 3_000_000]), Some((4.0, 3.0)));
        assert_eq!(mean_and_median(&mut [9_000_000, 1_000_000, 4_000_000, 2_000_000]), Some((4.0, 3.0)));
    }
}
