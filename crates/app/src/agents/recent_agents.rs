//! Agents for which users were allowed to act a moment ago, for the time in which the database is unavailable. Forgotten after five
//! minutes, and when this process sees that the user or the agent may have lost a right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::people::UserId;
use ade_store::Database;
use ade_store::database::RememberedRights;
use tokio::time::Instant;

const MAX_AGE: Duration = Duration::from_secs(5 * 60);
const MAX_AGENTS: usize = 10_000;

/// Clones share the agents.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentAgents(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    agents: HashMap<(UserId, String), RecentAgent>,
}

#[derive(Debug)]
struct RecentAgent {
    seen_at: Instant,
    /// The revocations that this process had noted when it read the agent.
    revocations: u64,
}

impl RecentAgents {
    pub(super) fn remember(&self, user: &UserId, agent: &str, revocations: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.agents.len() >= MAX_AGENTS {
            state.agents.retain(|_, recent| recent.seen_at.elapsed() < MAX_AGE);
        }
        if state.agents.len() < MAX_AGENTS {
            let recent = RecentAgent { seen_at: Instant::now(), revocations };
            state.agents.insert((user.clone(), agent.to_owned()), recent);
        }
    }

    pub(super) fn contains(&self, user: &UserId, agent: &str, database: &Database) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rights = RememberedRights { user: Some(user), agent: Some(agent), token: None };
        state.agents.get(&(user.clone(), agent.to_owned())).is_some_and(|recent| {
            recent.seen_at.elapsed() < MAX_AGE && !database.is_revoked(rights, recent.revocations)
        })
    }
}
