//! Daily statistics: each past day is counted once, also days at whose end no server was running.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_store::database::DailyStats;

use super::{DAY_MS, Jobs, days_before, midnight};
use crate::Result;

/// Older days cannot be counted any more: their tasks are archived.
const MAX_DAYS: u64 = 90;
/// Until when after midnight the requests that wait are those of the end of the day.
const BACKLOG_DELAY_MS: u64 = 3_600_000;

impl Jobs {
    /// Counts all past days that are not counted yet; returns how many.
    pub(super) async fn count_finished_days(&self) -> Result<u64> {
        let today = midnight(self.context.now());
        let counted =
            self.context.database.daily_stats(u32::try_from(2 * MAX_DAYS).unwrap_or(u32::MAX)).await?;
        let counted: BTreeSet<String> = counted.into_iter().map(|day| day.day).collect();
        let first_end = self.context.database.first_closed_at().await?;
        let mut days = 0;
        for back in (1..=MAX_DAYS).rev() {
            let from = days_before(today, back);
            let (day, to) = (name(from), from.plus_ms(DAY_MS));
            // Days before the first task ended are left out. Yesterday and days after a counted one are always counted.
            let is_relevant = first_end.is_some_and(|first| first < to)
                || counted.iter().next().is_some_and(|first| *first < day);
            if (is_relevant || back == 1) && !counted.contains(&day) {
                let is_recent = back == 1 && self.context.now() < to.plus_ms(BACKLOG_DELAY_MS);
                let database = &self.context.database;
                let backlog = if is_recent { Some(database.pending_approvals().await?) } else { None };
                let stats = DailyStats { day, backlog, ..database.closed_tasks(from, to).await? };
                days += u64::from(database.store_daily_stats(&stats).await?);
            }
        }
        Ok(days)
    }
}

fn name(midnight: Moment) -> String {
    midnight.timestamp().strftime("%Y-%m-%d").to_string()
}
