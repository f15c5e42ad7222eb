//! Database maintenance: deletes old events, stored responses, sessions and deliveries of webhooks, and creates the audit log
//! partitions of the next months.

use ade_domain::Moment;
use ade_domain::approval::assignment::{RULE_CHANGE_WINDOW_MS, RuleChange};
use ade_domain::webhook::delivery::RETENTION_DAYS;
use ade_store::database::Versioned;

use super::{Jobs, days_before};
use crate::Result;
use crate::changes::delete_expired;
use crate::webhooks::reseal_secrets;

impl Jobs {
    pub(super) async fn clean_up(&self) -> Result<u64> {
        let now = self.context.now();
        let before = days_before(now, 1);
        let events_before = days_before(now, u64::from(self.event_retention_days));
        let mut total = self.context.database.delete_ended_turns(now).await?;
        loop {
            let deleted = self.context.database.delete_old_responses(before).await?
                + self.context.database.delete_expired_sessions(now).await?
                + self.context.database.delete_old_events(events_before).await?;
            total += deleted;
            if deleted == 0 {
                break;
            }
        }
        total += self.clean_up_deliveries(now).await?;
        total += reseal_secrets(&self.context).await?;
        total += self.delete_rule_changes(now).await?;
        total += delete_expired(&self.context, now).await?;
        let missing = self.context.database.create_audit_partitions(now).await?;
        if missing > 0 {
            tracing::warn!(missing, "cannot create audit log partitions of the next months; retrying");
        }
        Ok(total)
    }

    /// Ends the deliveries of webhooks whose time is over, and deletes old ones.
    async fn clean_up_deliveries(&self, now: Moment) -> Result<u64> {
        let (database, mut total) = (&self.context.database, 0);
        loop {
            let expired = database.expire_deliveries(now).await?;
            let deleted = database.delete_old_deliveries(days_before(now, RETENTION_DAYS)).await?;
            total += expired + deleted;
            if expired + deleted == 0 {
                return Ok(total);
            }
        }
    }

    /// Deletes what no longer keeps anybody from automatic approval.
    async fn delete_rule_changes(&self, now: Moment) -> Result<u64> {
        let changes = self.context.database.documents::<RuleChange>().await?;
        let is_over = |change: &Versioned<RuleChange>| change.value.at.plus_ms(RULE_CHANGE_WINDOW_MS) <= now;
        let ids: Vec<String> = changes.into_iter().filter(is_over).map(|change| change.id).collect();
        self.context.database.delete_rule_changes(&ids).await?;
        Ok(ids.len() as u64)
    }
}
