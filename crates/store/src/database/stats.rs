//! How much there is of everything, and how people review. Counted when asked, by indexes; what is archived was counted when it
//! left, and counts on.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::people::UserId;
use ade_domain::task::State;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::sql::{Link, Row};
use super::{Database, DatabaseError};

/// Answers that the time to answer is told of.
const LAST_ANSWERS: u32 = 200;

/// How much there is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks by state, those included that are archived; states without a task are left out.
    pub tasks: BTreeMap<State, u64>,
    /// How many of them are archived.
    pub archived: u64,
    /// Requests that nobody answered yet.
    pub pending: u64,
    /// Since when the oldest of those waits.
    pub oldest_pending: Option<Moment>,
}

/// What somebody proposed, and how it reviews.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserStats {
    /// Its tasks by state, those included that are archived.
    pub tasks: BTreeMap<State, u64>,
    /// The requests to it by what became of them, those included that are archived.
    pub requests: BTreeMap<ApprovalStatus, u64>,
    /// How many answers the times are of: its last ones that are not archived.
    pub answered: u32,
    /// Seconds from request to answer on average.
    pub mean_seconds: Option<f64>,
    /// Seconds from request to answer, as many below as above.
    pub median_seconds: Option<f64>,
}

/// How tasks ended on a day that is over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Day {
    /// Which, in UTC, as `2026-11-16`.
    #[serde(skip)]
    pub day: String,
    /// Tasks that were done.
    pub completed: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were rejected.
    pub rejected: u64,
    /// Tasks that were given up.
    pub cancelled: u64,
}

/// A word of ours.
fn word<T: DeserializeOwned>(row: &Row) -> Result<T, DatabaseError> {
    let text = row.text(0)?;
    serde_json::from_value(Value::from(text)).map_err(|_| DatabaseError::Foreign(format!("the word {text}")))
}

/// How often each word stands there.
async fn grouped<T: DeserializeOwned + Ord>(
    link: &mut Link<'_>,
    sql: &str,
    args: &[super::sql::Arg],
) -> Result<BTreeMap<T, u64>, DatabaseError> {
    let rows = link.rows(sql, args).await?;
    rows.iter().map(|row| Ok((word(row)?, row.number(1)?))).collect()
}

fn add<T: Ord + Copy>(all: &mut BTreeMap<T, u64>, more: &BTreeMap<T, u64>) {
    for (word, many) in more {
        *all.entry(*word).or_default() += many;
    }
}

/// Mean and median of microseconds, in seconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a review are far below 2^52")]
fn middle(micros: &mut [u64]) -> Option<(f64, f64)> {
    micros.sort_unstable();
    let half = micros.len() / 2;
    let upper = *micros.get(half)?;
    let lower =
        if micros.len().is_multiple_of(2) { micros.get(half.checked_sub(1)?).copied()? } else { upper };
    let seconds = |micros: u64| micros as f64 / 1e6;
    let mean = seconds(micros.iter().sum()) / micros.len() as f64;
    Some((mean, f64::midpoint(seconds(lower), seconds(upper))))
}

impl Database {
    /// How much there is of everything.
    pub async fn counts(&self) -> Result<Counts, DatabaseError> {
        self.read(async |link| {
            let sql = "SELECT state, count(*)::bigint FROM tasks GROUP BY state";
            let mut tasks = grouped(link, sql, &[]).await?;
            let sql = "SELECT state, sum(count)::bigint FROM archived_counts WHERE kind = 'task' AND count > 0 GROUP BY state";
            let archived: BTreeMap<State, u64> = grouped(link, sql, &[]).await?;
            add(&mut tasks, &archived);
            let archived = archived.values().sum();
            let sql = "SELECT many, micros(oldest) FROM (SELECT count(*)::bigint AS many, min(created_at) AS oldest \
                       FROM approvals WHERE status = 'PENDING') waiting";
            let rows = link.rows(sql, &[]).await?;
            let Some(row) = rows.first() else { return Ok(Counts { tasks, archived, ..Counts::default() }) };
            Ok(Counts { tasks, archived, pending: row.number(0)?, oldest_pending: row.maybe_moment(1)? })
        })
        .await
    }

    /// The days that were counted, the newest first.
    pub async fn days(&self, limit: u32) -> Result<Vec<Day>, DatabaseError> {
        let sql = format!("SELECT day, body::text FROM daily_stats ORDER BY day DESC LIMIT {limit}");
        self.read(async |link| {
            let rows = link.rows(&sql, &[]).await?;
            rows.iter().map(|row| Ok(Day { day: row.text(0)?.to_owned(), ..row.json(1)? })).collect()
        })
        .await
    }

    /// When the first of the tasks came to an end that are still there.
    pub async fn first_end(&self) -> Result<Option<Moment>, DatabaseError> {
        self.read(async |link| {
            let sql =
                "SELECT micros(closed_at) FROM tasks WHERE closed_at IS NOT NULL ORDER BY closed_at LIMIT 1";
            link.rows(sql, &[]).await?.first().map_or(Ok(None), |row| row.maybe_moment(0))
        })
        .await
    }

    /// What somebody proposed, and how it reviews.
    pub async fn user_stats(&self, user: &UserId) -> Result<UserStats, DatabaseError> {
        let args = [user.as_str().into()];
        let times = format!(
            "SELECT micros(created_at), micros(responded_at) FROM approvals \
             WHERE reviewer_id = $1 AND responded_at IS NOT NULL ORDER BY responded_at DESC LIMIT {LAST_ANSWERS}"
        );
        self.read(async |link| {
            let sql = "SELECT state, count(*)::bigint FROM tasks WHERE author_id = $1 GROUP BY state";
            let mut tasks = grouped(link, sql, &args).await?;
            let sql = "SELECT state, count FROM archived_counts WHERE kind = 'task' AND user_id = $1 AND count > 0";
            add(&mut tasks, &grouped(link, sql, &args).await?);
            let sql = "SELECT status, count(*)::bigint FROM approvals WHERE reviewer_id = $1 GROUP BY status";
            let mut requests = grouped(link, sql, &args).await?;
            let sql =
                "SELECT state, count FROM archived_counts WHERE kind = 'approval' AND user_id = $1 AND count > 0";
            add(&mut requests, &grouped(link, sql, &args).await?);
            let rows = link.rows(&times, &args).await?;
            let took = |row: &Row| Ok(row.moment(1)?.micros().saturating_sub(row.moment(0)?.micros()));
            let mut took = rows.iter().map(took).collect::<Result<Vec<u64>, DatabaseError>>()?;
            let (mean_seconds, median_seconds) = middle(&mut took).unzip();
            let answered = u32::try_from(took.len()).unwrap_or(u32::MAX);
            Ok(UserStats { tasks, requests, answered, mean_seconds, median_seconds })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_between_two_if_there_is_an_even_number() {
        assert_eq!(middle(&mut []), None);
        assert_eq!(middle(&mut [3_000_000]), Some((3.0, 3.0)));
        assert_eq!(middle(&mut [8_000_000, 1_000_000, 3_000_000]), Some((4.0, 3.0)));
        assert_eq!(middle(&mut [9_000_000, 1_000_000, 4_000_000, 2_000_000]), Some((4.0, 3.0)));
    }
}
