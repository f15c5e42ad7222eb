//! Deletes stored responses and sessions that have expired. Each call deletes a bounded number of rows, so that other writers do not
//! wait long; the caller repeats it until nothing is left.

use ade_domain::Moment;

use super::{Database, Result};

const MAX_DELETED: u32 = 1_000;

impl Database {
    /// Deletes the oldest responses from before `before`, and returns how many.
    pub async fn delete_old_responses(&self, before: Moment) -> Result<u64> {
        let sql = format!(
            "DELETE FROM stored_responses WHERE (owner, key) IN (SELECT owner, key FROM stored_responses \
             WHERE created_at < $1 ORDER BY created_at LIMIT {MAX_DELETED})"
        );
        self.execute_statement(&sql, &[before.into()]).await
    }

    /// Deletes expired sessions, and returns how many.
    pub async fn delete_expired_sessions(&self, now: Moment) -> Result<u64> {
        // The expiry is checked twice: the session may have been extended since the subquery ran.
        let sql = format!(
            "DELETE FROM sessions WHERE expires_at <= $1 AND session_hash IN (SELECT session_hash FROM sessions \
             WHERE expires_at <= $1 ORDER BY expires_at LIMIT {MAX_DELETED})"
        );
        self.execute_statement(&sql, &[now.into()]).await
    }
}
