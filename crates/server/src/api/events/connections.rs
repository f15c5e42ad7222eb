//! How many connections follow events: per user or agent, and in total. Each costs memory for as long as it is open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ade_app::Caller;
use axum::http::StatusCode;

use crate::http::problem::{ApiResult, Problem};

const MAX_CONNECTIONS: usize = 5_000;
/// Of one user or agent. The bootstrap token has none.
const MAX_PER_CALLER: usize = 100;
const RETRY_AFTER_SECONDS: u64 = 5;

/// Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventConnections(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_caller: HashMap<String, usize>,
}

/// Counted until it is dropped.
#[derive(Debug)]
pub(super) struct EventConnection {
    connections: EventConnections,
    caller: Option<String>,
}

impl EventConnections {
    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).total
    }

    pub(super) fn open(&self, caller: &Caller) -> ApiResult<EventConnection> {
        let caller = match (&caller.agent_id, caller.user_id()) {
            (Some(agent), _) => Some(format!("agent:{agent}")),
            (None, user) => user.map(|user| format!("user:{user}")),
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= MAX_CONNECTIONS {
            let detail = format!(
                "{MAX_CONNECTIONS} connections follow events on this server already; use another server, or poll less often"
            );
            return Err(Problem::unavailable("TOO_MANY_FOLLOWERS", detail).retry_after(RETRY_AFTER_SECONDS));
        }
        if let Some(caller) = &caller {
            let own = counts.by_caller.entry(caller.clone()).or_default();
            if *own >= MAX_PER_CALLER {
                let detail = format!(
                    "{caller} follows events on {MAX_PER_CALLER} connections already; close some of them"
                );
                return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_FOLLOWERS", detail)
                    .retry_after(RETRY_AFTER_SECONDS));
            }
            *own += 1;
        }
        counts.total += 1;
        drop(counts);
        Ok(EventConnection { connections: self.clone(), caller })
    }
}

impl Drop for EventConnection {
    fn drop(&mut self) {
        let mut counts = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total = counts.total.saturating_sub(1);
        if let Some(caller) = &self.caller
            && let Some(own) = counts.by_caller.get_mut(caller)
        {
            *own -= 1;
            if *own == 0 {
                counts.by_caller.remove(caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ade_domain::audit::AuditActor;

    use super::*;

    fn agent(name: &str) -> Caller {
        let caller = Caller::new(None, BTreeSet::new(), AuditActor::default());
        Caller { agent_id: Some(name.to_owned()), ..caller }
    }

    #[test]
    fn connections_are_limited_per_caller_and_given_back() {
        let connections = EventConnections::default();
        let mut open: Vec<EventConnection> =
            (0..MAX_PER_CALLER).map(|_| connections.open(&agent("a")).expect("room")).collect();
        assert_eq!(connections.open(&agent("a")).expect_err("too many").code(), "TOO_MANY_FOLLOWERS");
        let other = connections.open(&agent("b")).expect("room for others");
        open.pop();
        open.push(connections.open(&agent("a")).expect("room again"));
        drop((open, other));
        let counts = connections.0.lock().expect("not poisoned");
        assert!(counts.total == 0 && counts.by_caller.is_empty());
    }

    #[test]
    fn connections_are_limited_in_total() {
        let connections = EventConnections::default();
        let bootstrap = Caller::new(None, BTreeSet::new(), AuditActor::default());
        let open: Vec<EventConnection> =
            (0..MAX_CONNECTIONS).map(|_| connections.open(&bootstrap).expect("room")).collect();
        assert!(connections.open(&agent("a")).is_err());
        drop(open);
        assert!(connections.open(&agent("a")).is_ok());
    }
}
