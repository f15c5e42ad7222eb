//! How tasks ended, day by day: each day once, when it is over, also those at whose end nobody was there to count.

use std::collections::BTreeSet;

use ade_domain::Moment;

use super::{DAY_MS, Jobs, midnight};
use crate::Error;

/// Days back that are counted late: before that, tasks have left the record for archives.
const MOST_DAYS: u64 = 90;

impl Jobs {
    /// Counts every day that is over and was not counted; how many.
    pub(super) async fn count_days(&self) -> Result<u64, Error> {
        let today = midnight(self.clock.now());
        let counted = self.record.days(u32::try_from(2 * MOST_DAYS).unwrap_or(u32::MAX)).await?;
        let counted: BTreeSet<String> = counted.into_iter().map(|day| day.day).collect();
        let first = self.record.first_end().await?;
        let mut many = 0;
        for back in (1..=MOST_DAYS).rev() {
            let from = days_before(today, back);
            let (day, to) = (name(from), from.plus_ms(DAY_MS));
            // Before anything ended there is nothing to be told; the last day and those after a counted one are, also if nothing did.
            let known = first.is_some_and(|first| first < to)
                || counted.iter().next().is_some_and(|first| *first < day);
            if (known || back == 1) && !counted.contains(&day) {
                many += u64::from(self.record.count_day(&day, from, to).await?);
            }
        }
        Ok(many)
    }
}

fn days_before(today: Moment, days: u64) -> Moment {
    Moment::from_micros(today.micros().saturating_sub(days * DAY_MS * 1_000))
}

fn name(midnight: Moment) -> String {
    midnight.timestamp().strftime("%Y-%m-%d").to_string()
}
