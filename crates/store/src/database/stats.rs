//! Counts of tasks and approvals, and statistics per user. They are computed on demand, from indexes; archived tasks and approvals
//! were counted when they were removed, and stay included.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::UserId;
use ade_domain::task::TaskState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::sql::{Row, json};
use super::{Database, DatabaseError, Result};

/// How many responses of a reviewer the response times are computed from.
const MAX_SAMPLED_RESPONSES: u32 = 200;
/// How many closed tasks of a day the decisions are computed from.
const MAX_SAMPLED_TASKS: u32 = 2_000;

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
    /// Seconds from request to response, of the last responses that are not archived.
    pub mean_seconds: Option<f64>,
    /// The same.
    pub median_seconds: Option<f64>,
    /// Requests that wait for a decision of the user.
    pub pending: u64,
    /// Approvals and rejections that the user gave since midnight UTC.
    pub approved_today: u64,
    pub rejected_today: u64,
    /// The last decision of the user that is not archived.
    pub last_action_at: Option<Moment>,
}

/// How many tasks were closed on a day, and how reviewers decided about them.
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
    /// Tasks that reviewers decided about, among the last `MAX_SAMPLED_TASKS` that were closed.
    pub reviewed: u64,
    /// Those of them that were approved.
    pub approved: u64,
    /// From the start of their review to the decision.
    pub median_decision_micros: Option<u64>,
    /// Approval requests that waited at the end of the day; `None` if no server counted them then.
    pub backlog: Option<u64>,
}

/// The sum of the second column by the first, which is the serialised form of `T`.
fn counts_by<T: DeserializeOwned + Ord>(rows: &[Row]) -> Result<BTreeMap<T, u64>> {
    let mut counts = BTreeMap::new();
    for row in rows {
        let (key, count) = row.pair::<String, u64>()?;
        let unknown = |_| DatabaseError::Corrupt(format!("unknown state {key}"));
        *counts.entry(serde_json::from_value(key.as_str().into()).map_err(unknown)?).or_default() += count;
    }
    Ok(counts)
}

/// Whether reviewers approved a closed task, and how long they took, from when it entered its states. `None` if they did not decide:
/// it was approved automatically, or cancelled before.
fn review_decision(entered_at: &BTreeMap<TaskState, Moment>) -> Option<(bool, u64)> {
    let reviewed_at = entered_at.get(&TaskState::Reviewing)?;
    let decided = |state| entered_at.get(&state).filter(|at| *at >= reviewed_at);
    let (is_approved, at) = match (decided(TaskState::Approved), decided(TaskState::Rejected)) {
        (Some(at), _) => (true, at),
        (None, at) => (false, at?),
    };
    Some((is_approved, at.micros() - reviewed_at.micros()))
}

/// The median; of an even number, what is between the middle two.
fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    let at = |index: usize| values.get(index).copied();
    Some(u64::midpoint(at(values.len().checked_sub(1)? / 2)?, at(values.len() / 2)?))
}

/// Mean and median of microseconds, in seconds.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a review are far below 2^52")]
fn mean_and_median(micros: &mut [u64]) -> Option<(f64, f64)> {
    let seconds = |micros: u64| micros as f64 / 1e6;
    let median = median(micros)?;
    Some((seconds(micros.iter().sum()) / micros.len() as f64, seconds(median)))
}

impl Database {
    pub async fn counts(&self) -> Result<DatabaseCounts> {
        let sql = "SELECT state, count(*)::bigint FROM tasks GROUP BY state \
                   UNION ALL SELECT state, count FROM archived_counts WHERE kind = 'task' AND count > 0";
        let tasks = counts_by(&self.scan(sql, &[]).await?)?;
        let sql =
            "SELECT coalesce(sum(count), 0)::bigint FROM archived_counts WHERE kind = 'task' AND count > 0";
        let archived = self.fetch_number(sql, &[]).await?;
        let sql = "SELECT total, micros(oldest) FROM (SELECT count(*)::bigint AS total, min(created_at) AS oldest \
                   FROM approvals WHERE status = 'PENDING') AS pending";
        let pending = self.scan(sql, &[]).await?;
        let (pending_approvals, oldest_pending) = pending.first().map_or(Ok((0, None)), Row::pair)?;
        Ok(DatabaseCounts { tasks, archived, pending_approvals, oldest_pending })
    }

    /// Counts the tasks that were closed within a time, which is at most a day.
    pub async fn closed_tasks(&self, from: Moment, to: Moment) -> Result<DailyStats> {
        let within = "FROM tasks WHERE closed_at >= $1 AND closed_at < $2";
        let args = [from.into(), to.into()];
        let sql = format!("SELECT state, count(*)::bigint {within} GROUP BY state");
        let counts: BTreeMap<TaskState, u64> = counts_by(&self.scan(&sql, &args).await?)?;
        let count = |state| counts.get(&state).copied().unwrap_or_default();
        let sql = format!(
            "SELECT (body::jsonb->'entered_at')::text {within} ORDER BY closed_at DESC LIMIT {MAX_SAMPLED_TASKS}"
        );
        let rows = self.scan(&sql, &args).await?;
        let times = rows.iter().map(|row| row.json(0)).collect::<Result<Vec<_>>>()?;
        let decisions: Vec<(bool, u64)> = times.iter().filter_map(review_decision).collect();
        let mut elapsed: Vec<u64> = decisions.iter().map(|(_, elapsed)| *elapsed).collect();
        Ok(DailyStats {
            completed: count(TaskState::Completed),
            failed: count(TaskState::Failed),
            rejected: count(TaskState::Rejected),
            cancelled: count(TaskState::Cancelled),
            reviewed: decisions.len() as u64,
            approved: decisions.iter().filter(|(is_approved, _)| *is_approved).count() as u64,
            median_decision_micros: median(&mut elapsed),
            ..DailyStats::default()
        })
    }

    /// How many approval requests wait for a decision.
    pub async fn pending_approvals(&self) -> Result<u64> {
        self.fetch_number("SELECT count(*)::bigint FROM approvals WHERE status = 'PENDING'", &[]).await
    }

    /// Stores the statistics of a day that is over; `false` if that was done before.
    pub async fn store_daily_stats(&self, stats: &DailyStats) -> Result<bool> {
        let sql = "INSERT INTO daily_stats (day, body) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        Ok(self.execute_statement(sql, &[stats.day.as_str().into(), json(stats)?]).await? > 0)
    }

    /// The stored days, the newest first.
    pub async fn daily_stats(&self, limit: u32) -> Result<Vec<DailyStats>> {
        let sql = "SELECT day, body FROM daily_stats ORDER BY day DESC";
        self.fetch_page(sql, &[], limit, |row| Ok(DailyStats { day: row.get(0)?, ..row.json(1)? })).await
    }

    /// When the first of the tasks that are not archived was closed.
    pub async fn first_closed_at(&self) -> Result<Option<Moment>> {
        let sql =
            "SELECT micros(closed_at) FROM tasks WHERE closed_at IS NOT NULL ORDER BY closed_at LIMIT 1";
        self.fetch_first(sql, &[], |row| row.get(0)).await
    }

    /// `today` is the last midnight in UTC.
    pub async fn user_stats(&self, user: &UserId, today: Moment) -> Result<UserStats> {
        let args = [user.as_str().into()];
        let times = format!(
            "SELECT micros(created_at), micros(responded_at) FROM approvals \
             WHERE reviewer_id = $1 AND responded_at IS NOT NULL ORDER BY responded_at DESC LIMIT {MAX_SAMPLED_RESPONSES}"
        );
        let sql = "SELECT state, count(*)::bigint FROM tasks WHERE author_id = $1 GROUP BY state UNION ALL \
                       SELECT state, count FROM archived_counts WHERE kind = 'task' AND user_id = $1 AND count > 0";
        let tasks = counts_by(&self.scan(sql, &args).await?)?;
        let sql = "SELECT status, count(*)::bigint FROM approvals WHERE reviewer_id = $1 GROUP BY status UNION ALL \
                       SELECT state, count FROM archived_counts WHERE kind = 'approval' AND user_id = $1 AND count > 0";
        let approvals = counts_by(&self.scan(sql, &args).await?)?;
        let rows = self.scan(&times, &args).await?;
        let elapsed = |row: &Row| Ok(row.get::<u64>(1)?.saturating_sub(row.get(0)?));
        let mut elapsed = rows.iter().map(elapsed).collect::<Result<Vec<u64>>>()?;
        let (mean_seconds, median_seconds) = mean_and_median(&mut elapsed).unzip();
        // Not what an administrator decided for the user, nor what followed somebody else.
        let own = "reviewer_id = $1 AND responded_at IS NOT NULL AND body::jsonb->>'reviewed_by' = $1";
        let sql = format!(
            "SELECT body::jsonb->>'response_action', count(*)::bigint FROM approvals WHERE {own} AND responded_at >= $2 \
                 AND (body::jsonb->>'response_action') IS NOT NULL GROUP BY body::jsonb->>'response_action'"
        );
        let (mut approved_today, mut rejected_today) = (0, 0);
        for row in self.scan(&sql, &[user.as_str().into(), today.into()]).await? {
            match row.pair::<String, u64>()? {
                (action, count) if action == DecisionKind::Approve.as_str() => approved_today = count,
                (action, count) if action == DecisionKind::Reject.as_str() => rejected_today = count,
                _ => {}
            }
        }
        let sql = format!(
            "SELECT micros(responded_at) FROM approvals WHERE {own} ORDER BY responded_at DESC LIMIT 1"
        );
        let last = self.scan(&sql, &args).await?;
        let last_action_at = last.first().map(|row| row.get(0)).transpose()?;
        let pending = approvals.get(&ApprovalStatus::Pending).copied().unwrap_or_default();
        Ok(UserStats {
            tasks,
            approvals,
            mean_seconds,
            median_seconds,
            pending,
            approved_today,
            rejected_today,
            last_action_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_ends_with_the_decision_after_it() {
        use TaskState::{Approved, Cancelled, Completed, Rejected, Reviewing, Submitted};
        let decision = |times: &[(TaskState, u64)]| {
            let times = times.iter().map(|(state, at)| (*state, Moment::from_micros(*at)));
            review_decision(&times.collect())
        };
        assert_eq!(
            decision(&[(Submitted, 1), (Reviewing, 2), (Approved, 5), (Completed, 9)]),
            Some((true, 3))
        );
        assert_eq!(decision(&[(Reviewing, 2), (Rejected, 4)]), Some((false, 2)));
        assert_eq!(decision(&[(Reviewing, 2), (Approved, 3), (Rejected, 8)]), Some((true, 1)), "revoked");
        assert_eq!(decision(&[(Approved, 2), (Reviewing, 3), (Rejected, 8)]), Some((false, 5)), "went stale");
        assert_eq!(decision(&[(Submitted, 1), (Approved, 2), (Completed, 3)]), None, "automatically");
        assert_eq!(decision(&[(Reviewing, 2), (Cancelled, 3)]), None);
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(mean_and_median(&mut []), None);
        assert_eq!(mean_and_median(&mut [3_000_000]), Some((3.0, 3.0)));
        assert_eq!(mean_and_median(&mut [8_000_000, 1_000_000, 3_000_000]), Some((4.0, 3.0)));
        assert_eq!(mean_and_median(&mut [9_000_000, 1_000_000, 4_000_000, 2_000_000]), Some((4.0, 3.0)));
    }
}
