//! Agents for which users were allowed to act a moment ago, for the time in which the database is unavailable. Forgotten after five
//! minutes, and whenever this process sees that somebody lost a right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::people::UserId;
use tokio::time::Instant;

const MAX_AGE: Duration = Duration::from_secs(5 * 60);
const MAX_AGENTS: usize = 10_000;

/// Clones share the agents.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentAgents(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    seen_at: HashMap<(UserId, String), Instant>,
    /// The revocations that this process had seen when it stored the agents.
    revocations: u64,
}

impl RecentAgents {
    pub(super) fn remember(&self, user: &UserId, agent: &str, revocations: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget_revoked(revocations);
        if state.seen_at.len() >= MAX_AGENTS {
            state.seen_at.retain(|_, seen_at| seen_at.elapsed() < MAX_AGE);
        }
        if state.seen_at.len() < MAX_AGENTS {
            state.seen_at.insert((user.clone(), agent.to_owned()), Instant::now());
        }
    }

    pub(super) fn contains(&self, user: &UserId, agent: &str, revocations: u64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget_revoked(revocations);
        let seen_at = state.seen_at.get(&(user.clone(), agent.to_owned()));
        seen_at.is_some_and(|seen_at| seen_at.elapsed() < MAX_AGE)
    }
}

impl State {
    fn forget_revoked(&mut self, revocations: u64) {
        if self.revocations != revocations {
            self.seen_at.clear();
            self.revocations = revocations;
        }
    }
}
