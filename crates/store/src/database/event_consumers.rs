//! Consumers of events: how far each has read, and which process reads for it at the moment.
//!
//! A lease keeps a consumer to one process at a time. Since a lease can expire while its holder is still working, whatever a consumer
//! does with an event must be harmless if done twice.

use ade_domain::Moment;

use super::batch::{Returning, Statement};
use super::sql::Row;
use super::{Database, Result};

/// The consumer that turns events into deliveries of webhooks and e-mail.
pub const WEBHOOK_CONSUMER: &str = "webhooks";

impl Database {
    /// Takes or keeps the lease of a consumer until a time, and returns its position; `None` if another process has it. A consumer
    /// that does not exist yet starts at `start`.
    pub async fn lease_consumer(
        &self,
        name: &str,
        holder: &str,
        start: u64,
        now: Moment,
        until: Moment,
    ) -> Result<Option<u64>> {
        let sql = "INSERT INTO event_consumers (name, position, holder, lease_until) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until \
                   WHERE event_consumers.holder = excluded.holder OR event_consumers.lease_until IS NULL \
                   OR event_consumers.lease_until <= $5 RETURNING position";
        let args = [name.into(), start.into(), holder.into(), until.into(), now.into()];
        let row = self.execute(Returning(Statement::new(sql, args))).await?;
        row.as_ref().map(|row| row.get(0)).transpose()
    }

    /// Moves a consumer forward and keeps its lease; `false` if another process has taken it over.
    pub async fn advance_consumer(
        &self,
        name: &str,
        holder: &str,
        position: u64,
        until: Moment,
    ) -> Result<bool> {
        let sql = "UPDATE event_consumers SET position = $3, lease_until = $4 \
                   WHERE name = $1 AND holder = $2 AND position <= $3";
        let args = [name.into(), holder.into(), position.into(), until.into()];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    /// Gives up the lease, so that another process continues at once.
    pub async fn release_consumer(&self, name: &str, holder: &str) -> Result<()> {
        let sql =
            "UPDATE event_consumers SET holder = NULL, lease_until = NULL WHERE name = $1 AND holder = $2";
        self.execute_statement(sql, &[name.into(), holder.into()]).await.map(drop)
    }

    /// Name and position of every consumer, by name.
    pub async fn consumers(&self) -> Result<Vec<(String, u64)>> {
        let sql = "SELECT name, position FROM event_consumers ORDER BY name";
        self.fetch_all(sql, &[], |row: &Row| Ok((row.get(0)?, row.get(1)?))).await
    }
}
