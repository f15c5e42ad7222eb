//! Database maintenance: deletes old stored responses and sessions, and creates the audit log partitions of the next months.

use super::{Jobs, days_before};
use crate::Result;

impl Jobs {
    pub(super) async fn clean_up(&self) -> Result<u64> {
        let now = self.context.now();
        let before = days_before(now, 1);
        let mut total = 0;
        loop {
            let deleted = self.context.database.delete_old_responses(before).await?
                + self.context.database.delete_expired_sessions(now).await?;
            total += deleted;
            if deleted == 0 {
                break;
            }
        }
        let missing = self.context.database.create_audit_partitions(now).await?;
        if missing > 0 {
            tracing::warn!(missing, "cannot create audit log partitions of the next months; retrying");
        }
        Ok(total)
    }
}
