//! Facts about the whole database, and turns: which process may do something that all of them notice.

use ade_domain::Moment;

use super::{Database, Result};

/// Prefix of the names of turns in the table of leases.
const TURN: &str = "turn:";

impl Database {
    pub async fn has_marker(&self, name: &str) -> Result<bool> {
        Ok(self.fetch_number("SELECT count(*)::bigint FROM markers WHERE name = $1", &[name.into()]).await?
            > 0)
    }

    pub async fn put_marker(&self, name: &str) -> Result<()> {
        let sql = "INSERT INTO markers (name) VALUES ($1) ON CONFLICT DO NOTHING";
        self.execute_statement(sql, &[name.into()]).await.map(drop)
    }

    /// Takes a turn until `until`; `false` if a turn of this name has not ended yet.
    pub async fn take_turn(&self, name: &str, now: Moment, until: Moment) -> Result<bool> {
        let sql = "INSERT INTO leases (name, holder, expires_at) VALUES ($1, '', $2) \
                   ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at \
                   WHERE leases.expires_at <= $3";
        let args = [format!("{TURN}{name}").into(), until.into(), now.into()];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    /// Deletes the turns that have ended, and returns how many.
    pub async fn delete_ended_turns(&self, now: Moment) -> Result<u64> {
        let sql = format!("DELETE FROM leases WHERE name LIKE '{TURN}%' AND expires_at <= $1");
        self.execute_statement(&sql, &[now.into()]).await
    }
}
