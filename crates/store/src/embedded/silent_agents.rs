//! Cancels the tickets of agents whose heartbeats are missing. A wait with an open connection needs no heartbeat.

use std::collections::{BTreeSet, HashMap};

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{EndReason, Holder, LockChange, LockCommand, LockName, RequestKey, SharedStr};

use super::state::State;

/// When to check each agent that waits with a ticket. A heartbeat does not move the time of the check; the check does.
#[derive(Debug, Default)]
pub(super) struct SilenceChecks {
    agents: HashMap<SharedStr, Moment>,
    due: BTreeSet<(Moment, SharedStr)>,
}

impl SilenceChecks {
    /// Checks the agent of a new ticket soon.
    pub(super) fn note(&mut self, change: &LockChange, now: Moment) {
        let holder = match change {
            LockChange::Queued(waiter) if waiter.served_by.is_none() => &waiter.holder,
            LockChange::WaitRenewed { holder, served_by: None, .. } => holder,
            _ => return,
        };
        self.add(holder.agent_id(), now);
    }

    /// Checks an agent at this time, or before if that is due already.
    pub(super) fn add(&mut self, agent: &str, at: Moment) {
        let known = self.agents.get_key_value(agent).map(|(agent, due)| (*due, agent.clone()));
        if known.as_ref().is_some_and(|(due, _)| *due <= at) {
            return;
        }
        let agent = known.as_ref().map_or_else(|| agent.into(), |(_, agent)| agent.clone());
        if let Some(later) = &known {
            self.due.remove(later);
        }
        self.agents.insert(agent.clone(), at);
        self.due.insert((at, agent));
    }

    fn take_due(&mut self, now: Moment) -> Option<SharedStr> {
        let (_, agent) = self.due.first().filter(|(at, _)| *at <= now).cloned()?;
        self.due.pop_first();
        self.agents.remove(&agent);
        Some(agent)
    }
}

impl State {
    /// Cancels at most about `limit` tickets of silent agents. Returns how much it did: less than `limit` if nothing is left.
    pub(super) fn cancel_silent_waits(&mut self, now: Moment, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(agent) = self.silence_checks.take_due(now)
        {
            let tickets = self.tickets_of(&agent, limit);
            done += 1 + tickets.len();
            let last_heartbeat = self.agents.get(&*agent).map(|agent| agent.last_heartbeat);
            let silent_at = last_heartbeat.map_or(now, |last| last.plus_ms(OFFLINE_AFTER_MS));
            if silent_at > now {
                if !tickets.is_empty() {
                    self.silence_checks.add(&agent, silent_at);
                }
                continue;
            }
            if tickets.len() == limit {
                self.silence_checks.add(&agent, now);
            }
            for (name, holder, request) in tickets {
                let reason = EndReason::AgentOffline;
                let cancel = LockCommand::Cancel { holder, request, reason, include_claimed: false };
                let resolved = self.table.execute(&name, &cancel, now).deadlocks;
                self.add_unreported(resolved);
            }
        }
        done
    }

    fn tickets_of(&self, agent: &str, limit: usize) -> Vec<(LockName, Holder, RequestKey)> {
        let ticket = |(holder, name): (&Holder, &LockName)| {
            let waiter = self.table.lock(name)?.waiter_of(holder)?;
            waiter.served_by.is_none().then(|| (name.clone(), holder.clone(), waiter.request))
        };
        self.table.locks_awaited_by_agent(agent).filter_map(ticket).take(limit).collect()
    }
}
