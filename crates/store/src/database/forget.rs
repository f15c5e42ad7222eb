//! What the record forgets: answers that nobody asks for again, and sessions that have ended. A bounded number at a time, so that
//! nobody waits long behind it; whoever wants more asks again.

use ade_domain::Moment;

use super::sql::Link;
use super::{Database, DatabaseError, Work};

/// Rows that are deleted at a time.
const AT_ONCE: u32 = 1_000;

/// What is forgotten.
#[derive(Debug, Clone, Copy)]
pub(super) enum Forgetting {
    /// Answers from before.
    Answers(Moment),
    /// Sessions that have ended by then.
    Sessions(Moment),
}

impl Forgetting {
    /// How many there were.
    pub(super) async fn apply(self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        let (sql, moment) = match self {
            Self::Answers(before) => (
                "DELETE FROM stored_responses WHERE (owner, key) IN \
                 (SELECT owner, key FROM stored_responses WHERE created_at < moment($1) ORDER BY created_at LIMIT ",
                before,
            ),
            // Looked at once more: one may have been used meanwhile.
            Self::Sessions(now) => (
                "DELETE FROM sessions WHERE expires_at <= moment($1) AND session_hash IN \
                 (SELECT session_hash FROM sessions WHERE expires_at <= moment($1) ORDER BY expires_at LIMIT ",
                now,
            ),
        };
        link.run(&format!("{sql}{AT_ONCE})"), &[moment.into()]).await
    }
}

impl Database {
    /// Deletes the oldest answers from before `before`, at most a thousand; how many.
    pub async fn forget_answers(&self, before: Moment) -> Result<u64, DatabaseError> {
        self.work(Work::Forget(Forgetting::Answers(before))).await
    }

    /// Deletes sessions that have ended, at most a thousand; how many.
    pub async fn end_old_sessions(&self, now: Moment) -> Result<u64, DatabaseError> {
        self.work(Work::Forget(Forgetting::Sessions(now))).await
    }
}
