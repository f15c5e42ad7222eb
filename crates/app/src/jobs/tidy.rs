//! What the record does not need any more, and what it will need: old answers and sessions, and parts of the log for coming months.

use ade_domain::Moment;

use super::{DAY_MS, Jobs};
use crate::Error;

impl Jobs {
    pub(super) async fn tidy(&self) -> Result<u64, Error> {
        let now = self.clock.now();
        let before = Moment::from_micros(now.micros().saturating_sub(DAY_MS * 1_000));
        let mut many = 0;
        loop {
            let forgotten =
                self.record.forget_answers(before).await? + self.record.end_old_sessions(now).await?;
            many += forgotten;
            if forgotten == 0 {
                break;
            }
        }
        let missing = self.record.prepare_months(now).await?;
        if missing > 0 {
            tracing::warn!(
                missing,
                "parts of the audit log for coming months cannot be made yet; trying again"
            );
        }
        Ok(many)
    }
}
