//! Callers that were authenticated a moment ago, for the time in which the database is unavailable: they keep and acquire locks. Never
//! used while the database answers, never for longer than five minutes, never after this process saw that the caller may have lost a
//! right, and never for decisions, administration or tasks.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::permission::Scope;
use ade_store::Database;
use ade_store::database::RememberedRights;
use tokio::time::Instant;

use crate::Caller;

/// For how long a caller counts as recent.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);
const MAX_CALLERS: usize = 10_000;
/// What a recent caller may do: all of it is decided by the lock store.
const SCOPES: [Scope; 2] = [Scope::Lock, Scope::Read];

/// Clones share the callers.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentCallers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By the hash of the token.
    callers: HashMap<String, RecentCaller>,
}

#[derive(Debug)]
struct RecentCaller {
    caller: Caller,
    seen_at: Instant,
    /// The revocations that this process had noted when it read the caller.
    revocations: u64,
}

impl RecentCallers {
    pub(super) fn remember(&self, token_hash: &str, caller: &Caller, revocations: u64) {
        self.remember_at(Instant::now(), token_hash, caller, revocations);
    }

    fn remember_at(&self, seen_at: Instant, token_hash: &str, caller: &Caller, revocations: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.callers.len() >= MAX_CALLERS && !state.callers.contains_key(token_hash) {
            state.callers.retain(|_, recent| recent.seen_at.elapsed() < MAX_AGE);
            if state.callers.len() >= MAX_CALLERS {
                return;
            }
        }
        let recent = RecentCaller { caller: caller.clone(), seen_at, revocations };
        state.callers.insert(token_hash.to_owned(), recent);
    }

    pub(super) fn forget(&self, token_hash: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).callers.remove(token_hash);
    }

    /// A caller that was seen recently, with nothing but the right to use locks.
    pub(super) fn get(
        &self,
        token_hash: &str,
        actor: AuditActor,
        now: Moment,
        database: &Database,
    ) -> Option<Caller> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = state.callers.get(token_hash).filter(|recent| recent.seen_at.elapsed() < MAX_AGE)?;
        if database.is_revoked(rights(&recent.caller), recent.revocations) {
            return None;
        }
        if recent.caller.token_expires_at.is_some_and(|expires_at| expires_at <= now) {
            return None;
        }
        let mut caller = recent.caller.clone();
        let AuditActor { user_id, agent_id, token_id, .. } = caller.audit_actor;
        caller.audit_actor = AuditActor { user_id, agent_id, token_id, ..actor };
        caller.scopes = &caller.scopes & &BTreeSet::from(SCOPES);
        // Without roles there is nothing that an administrator may and others may not.
        if let Some(user) = &mut caller.user {
            user.roles.clear();
        }
        caller.is_unverified = true;
        Some(caller)
    }
}

fn rights(caller: &Caller) -> RememberedRights<'_> {
    RememberedRights {
        user: caller.user_id(),
        agent: caller.agent_id.as_deref(),
        token: caller.audit_actor.token_id.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use ade_store::database::Revocation;
    use ade_testkit::test_keys;
    use tempfile::TempDir;

    use super::*;

    fn caller() -> Caller {
        let scopes = Scope::ALL.into_iter().collect();
        Caller {
            token_expires_at: Some(Moment::from_micros(10)),
            ..Caller::new(
                None,
                scopes,
                AuditActor { token_id: Some("t".to_owned()), ..AuditActor::default() },
            )
        }
    }

    async fn database(folder: &TempDir) -> Database {
        Database::open_sqlite(folder.path(), test_keys()).await.expect("opens")
    }

    fn get(callers: &RecentCallers, now: u64, database: &Database) -> Option<Caller> {
        callers.get("hash", AuditActor::default(), Moment::from_micros(now), database)
    }

    #[tokio::test]
    async fn remembers_callers_for_locks_for_five_minutes() {
        let folder = tempfile::tempdir().expect("folder");
        let (callers, database) = (RecentCallers::default(), &database(&folder).await);
        assert!(get(&callers, 0, database).is_none());
        callers.remember("hash", &caller(), 0);
        let known = get(&callers, 9, database).expect("recent");
        assert_eq!(known.scopes, BTreeSet::from(SCOPES));
        assert_eq!((known.audit_actor.token_id.as_deref(), known.is_unverified), (Some("t"), true));
        assert!(get(&callers, 10, database).is_none(), "the token has expired");
        let seen = |ago: Duration| Instant::now().checked_sub(ago).expect("the machine runs for longer");
        callers.remember_at(seen(MAX_AGE / 2), "hash", &caller(), 0);
        assert!(get(&callers, 9, database).is_some());
        callers.remember_at(seen(MAX_AGE), "hash", &caller(), 0);
        assert!(get(&callers, 9, database).is_none(), "too long ago");
    }

    #[tokio::test]
    async fn forgets_only_callers_who_may_have_lost_a_right() {
        let folder = tempfile::tempdir().expect("folder");
        let (callers, database) = (RecentCallers::default(), &database(&folder).await);
        callers.remember("hash", &caller(), database.revocations());
        database.note_revocation(Revocation::Token("other".to_owned()));
        assert!(get(&callers, 0, database).is_some(), "somebody else");
        let before = database.revocations();
        database.note_revocation(Revocation::Token("t".to_owned()));
        assert!(get(&callers, 0, database).is_none());
        callers.remember("hash", &caller(), before);
        assert!(get(&callers, 0, database).is_none(), "it was read before the revocation");
        callers.remember("hash", &caller(), database.revocations());
        assert!(get(&callers, 0, database).is_some());
        callers.forget("hash");
        assert!(get(&callers, 0, database).is_none());
    }
}
