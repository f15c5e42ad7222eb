//! Checkpoints of the audit log: signed heads, shared by all servers. Their signatures are verified by the reader.

use super::{Database, Result};

impl Database {
    /// Stores the signed head with this number, unless there is one already.
    pub async fn put_checkpoint(&self, number: u64, checkpoint: &str) -> Result<()> {
        let sql = "INSERT INTO audit_checkpoints (number, body) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        self.execute_statement(sql, &[number.into(), checkpoint.into()]).await.map(drop)
    }

    /// The latest checkpoints, the newest first.
    pub async fn checkpoints(&self, limit: u32) -> Result<Vec<String>> {
        let sql = "SELECT body FROM audit_checkpoints ORDER BY number DESC";
        self.fetch_page(sql, &[], limit, |row| row.get(0)).await
    }
}
