//! Agents: liveness and task capacity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::people::UserId;

/// An agent is offline once its last heartbeat is this old.
pub const OFFLINE_AFTER_MS: u64 = 30_000;
pub const DEFAULT_MAX_TASKS: u32 = 10;
/// Further queued tasks are not counted. They retry anyway, so nothing is lost.
pub const MAX_QUEUED_TASKS: usize = 1_000;

/// What an agent and its sponsor declare about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentProfile {
    pub name: String,
    pub model: Option<String>,
    pub version: Option<String>,
    pub capabilities: Vec<String>,
    /// The agent's own settings, as JSON text.
    pub config: String,
}

/// An agent that was removed. Its name stays with its sponsor: tasks and logs know agents by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedAgent {
    pub sponsor: UserId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentStatus {
    Active,
    /// It finishes its tasks and takes no new ones.
    Draining,
    /// It sent no heartbeat for `OFFLINE_AFTER_MS`.
    Offline,
}

/// An agent and the tasks it has claimed. Claims are a set with leases instead of a counter, so that a lost release cannot
/// leak capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub profile: AgentProfile,
    pub max_tasks: u32,
    pub draining: bool,
    /// Registered implicitly because a request named it; removed when idle for a day.
    pub is_auto_registered: bool,
    pub registered_at: Moment,
    pub last_heartbeat: Moment,
    /// The end of each claim's lease, by task.
    claims: BTreeMap<String, Moment>,
    /// Tasks that found no capacity, and until when they count as queued. Not stored, because they retry.
    #[serde(skip)]
    queued: BTreeMap<String, Moment>,
}

/// Why a claim was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    #[error("the agent has reached its limit of {max_tasks} tasks")]
    Full { max_tasks: u32 },
    #[error("the agent is draining and takes no new tasks")]
    Draining,
}

impl Agent {
    pub const fn new(profile: AgentProfile, is_auto_registered: bool, now: Moment) -> Self {
        Self {
            profile,
            max_tasks: DEFAULT_MAX_TASKS,
            draining: false,
            is_auto_registered,
            registered_at: now,
            last_heartbeat: now,
            claims: BTreeMap::new(),
            queued: BTreeMap::new(),
        }
    }

    pub fn status(&self, now: Moment) -> AgentStatus {
        if self.last_heartbeat.plus_ms(OFFLINE_AFTER_MS) <= now {
            AgentStatus::Offline
        } else if self.draining {
            AgentStatus::Draining
        } else {
            AgentStatus::Active
        }
    }

    pub fn active_tasks(&self, now: Moment) -> usize {
        self.claims.values().filter(|lease_end| **lease_end > now).count()
    }

    pub fn queued_tasks(&self, now: Moment) -> usize {
        self.queued.values().filter(|end| **end > now).count()
    }

    /// Claims a task or renews its claim; renewing never shortens the lease. Without capacity the task is queued.
    pub fn claim(&mut self, task_id: &str, until: Moment, now: Moment) -> Result<(), CapacityError> {
        self.drop_expired(now);
        if !self.claims.contains_key(task_id) {
            if self.draining {
                return Err(CapacityError::Draining);
            }
            if self.claims.len() >= self.max_tasks as usize {
                self.enqueue(task_id, until, now);
                return Err(CapacityError::Full { max_tasks: self.max_tasks });
            }
        }
        self.queued.remove(task_id);
        self.restore_claim(task_id, until, now);
        Ok(())
    }

    /// Restores or extends a claim that was granted before, without checking capacity.
    pub fn restore_claim(&mut self, task_id: &str, until: Moment, now: Moment) {
        self.drop_expired(now);
        if until > now {
            let end = self.claims.entry(task_id.to_owned()).or_insert(until);
            *end = until.max(*end);
        }
    }

    /// Counts a task as queued.
    pub fn enqueue(&mut self, task_id: &str, until: Moment, now: Moment) {
        if until > now && (self.queued.len() < MAX_QUEUED_TASKS || self.queued.contains_key(task_id)) {
            self.queued.insert(task_id.to_owned(), until);
        }
    }

    fn drop_expired(&mut self, now: Moment) {
        self.claims.retain(|_, end| *end > now);
        self.queued.retain(|_, end| *end > now);
    }

    /// Releases a task; whether it was claimed or queued.
    pub fn release(&mut self, task_id: &str) -> bool {
        let was_queued = self.queued.remove(task_id).is_some();
        self.claims.remove(task_id).is_some() || was_queued
    }

    /// Removes and returns the tasks that others must recover: all of them once the agent is offline, otherwise those whose
    /// lease expired.
    pub fn recover(&mut self, now: Moment) -> Vec<String> {
        let is_offline = self.status(now) == AgentStatus::Offline;
        let lost = self.claims.extract_if(.., |_, lease_end| is_offline || *lease_end <= now);
        lost.map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    fn agent(max_tasks: u32) -> Agent {
        Agent { max_tasks, ..Agent::new(AgentProfile::default(), false, Moment::default()) }
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn claims_never_exceed_the_limit_and_never_leak(
            max in 1_u32..4,
            steps in proptest::collection::vec((0_u8..4, 0_u8..6, 1_u64..50), 1..80),
        ) {
            let (mut agent, mut now) = (agent(max), Moment::default());
            let mut model: BTreeMap<String, Moment> = BTreeMap::new();
            for (step, id, ms) in steps {
                let id = format!("task-{id}");
                model.retain(|_, lease_end| *lease_end > now);
                match step {
                    0 => now = now.plus_ms(ms),
                    1 => {
                        model.remove(&id);
                        agent.release(&id);
                    }
                    _ => {
                        let has_capacity = model.contains_key(&id) || model.len() < max as usize;
                        let until = now.plus_ms(ms);
                        prop_assert_eq!(agent.claim(&id, until, now).is_ok(), has_capacity);
                        if has_capacity {
                            let end = model.entry(id).or_insert(until);
                            *end = until.max(*end);
                        }
                    }
                }
                model.retain(|_, lease_end| *lease_end > now);
                prop_assert_eq!(agent.active_tasks(now), model.len());
            }
        }
    }

    #[test]
    fn draining_agent_renews_but_rejects_new_tasks_and_offline_agent_loses_all() {
        let (mut agent, now) = (agent(2), Moment::from_micros(5_000_000));
        agent.last_heartbeat = now;
        let until = now.plus_ms(60_000);
        assert_eq!(agent.claim("a", until, now), Ok(()));
        agent.draining = true;
        assert_eq!(agent.status(now), AgentStatus::Draining);
        assert_eq!(agent.claim("a", until, now), Ok(()));
        assert_eq!(agent.claim("b", until, now), Err(CapacityError::Draining));
        assert!(agent.recover(now).is_empty());
        let later = now.plus_ms(OFFLINE_AFTER_MS);
        assert_eq!(agent.status(later), AgentStatus::Offline);
        assert_eq!(agent.recover(later), ["a"]);
        assert_eq!(agent.active_tasks(later), 0);
    }

    #[test]
    fn task_without_capacity_is_queued_until_claimed() {
        let (mut agent, now) = (agent(1), Moment::from_micros(1));
        let (soon, later) = (now.plus_ms(10), now.plus_ms(20));
        assert_eq!(agent.claim("a", later, now), Ok(()));
        for task in ["b", "b", "c"] {
            assert_eq!(agent.claim(task, soon, now), Err(CapacityError::Full { max_tasks: 1 }));
        }
        assert_eq!((agent.active_tasks(now), agent.queued_tasks(now)), (1, 2));
        assert!(agent.release("a"));
        assert_eq!(agent.claim("b", later, now), Ok(()));
        assert_eq!((agent.active_tasks(now), agent.queued_tasks(now)), (1, 1));
        assert_eq!((agent.active_tasks(soon), agent.queued_tasks(soon)), (1, 0), "it did not retry");
        assert_eq!(agent.claim("b", soon, now), Ok(()), "a late renewal");
        assert_eq!(agent.active_tasks(soon), 1, "does not shorten the lease");
        assert_eq!(agent.active_tasks(later), 0);
        assert!(agent.release("c"), "it was queued");
        assert!(!agent.release("c"));
    }
}
