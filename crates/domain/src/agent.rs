//! An agent: whether it is alive, how much it may do at once, and how fast it may ask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Moment;

/// An agent that was not heard of for so long is offline.
pub const OFFLINE_AFTER_MS: u64 = 30_000;
/// Tasks that an agent may do at once if nothing else was said.
pub const DEFAULT_MAX_TASKS: u32 = 10;
/// Tasks without room that are counted; whoever finds no room asks again, so more of them need not be known.
pub const MAX_QUEUED_TASKS: usize = 1_000;

/// What people and the agent itself say about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// A name for people.
    pub name: String,
    /// The model behind it.
    pub model: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// Settings of its own, as JSON text.
    pub config: String,
}

/// Whether an agent takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    Active,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It was not heard of for [`OFFLINE_AFTER_MS`].
    Offline,
}

/// An agent and the work it has claimed. The claims are a set with leases: nothing counts up and down, so nothing leaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// What is said about it.
    pub profile: Profile,
    /// How many tasks at once.
    pub max_tasks: u32,
    /// Whether it was told to take nothing new.
    pub draining: bool,
    /// Whether nobody registered it: it was named in a request, and is removed when idle for a day.
    pub by_name_only: bool,
    /// Since when it is known.
    pub registered_at: Moment,
    /// When it was last heard of.
    pub last_heartbeat: Moment,
    /// Tasks that it does, and when each claim ends unless it is renewed.
    claims: BTreeMap<String, Moment>,
    /// Tasks that found no room, and how long that counts. They ask again, so nobody needs to write it down.
    #[serde(skip)]
    queued: BTreeMap<String, Moment>,
}

/// Why a claim was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoCapacity {
    /// It does as much as it may.
    #[error("the agent is at its limit of {max_tasks} tasks")]
    Full {
        /// The limit.
        max_tasks: u32,
    },
    /// It takes nothing new.
    #[error("the agent is draining and takes nothing new")]
    Draining,
}

impl Agent {
    /// An agent that is heard of for the first time.
    #[must_use]
    pub const fn new(profile: Profile, by_name_only: bool, now: Moment) -> Self {
        Self {
            profile,
            max_tasks: DEFAULT_MAX_TASKS,
            draining: false,
            by_name_only,
            registered_at: now,
            last_heartbeat: now,
            claims: BTreeMap::new(),
            queued: BTreeMap::new(),
        }
    }

    /// Whether it takes work.
    #[must_use]
    pub fn status(&self, now: Moment) -> Status {
        if self.last_heartbeat.plus_ms(OFFLINE_AFTER_MS) <= now {
            Status::Offline
        } else if self.draining {
            Status::Draining
        } else {
            Status::Active
        }
    }

    /// Tasks that it is doing.
    #[must_use]
    pub fn active_tasks(&self, now: Moment) -> usize {
        self.claims.values().filter(|lease| **lease > now).count()
    }

    /// Tasks that found no room and would still be claimed if they had.
    #[must_use]
    pub fn queued_tasks(&self, now: Moment) -> usize {
        self.queued.values().filter(|end| **end > now).count()
    }

    /// Takes a task on until a moment, or renews its claim, which never makes it shorter. A task that finds no room is queued.
    pub fn claim(&mut self, task_id: &str, until: Moment, now: Moment) -> Result<(), NoCapacity> {
        self.forget_ended(now);
        if !self.claims.contains_key(task_id) {
            if self.draining {
                return Err(NoCapacity::Draining);
            }
            if self.claims.len() >= self.max_tasks as usize {
                self.queue(task_id, until, now);
                return Err(NoCapacity::Full { max_tasks: self.max_tasks });
            }
        }
        self.queued.remove(task_id);
        self.keep(task_id, until, now);
        Ok(())
    }

    /// Keeps a claim that was granted before, without asking for room.
    pub fn keep(&mut self, task_id: &str, until: Moment, now: Moment) {
        self.forget_ended(now);
        if until > now {
            let end = self.claims.entry(task_id.to_owned()).or_insert(until);
            *end = until.max(*end);
        }
    }

    /// Counts a task that found no room.
    pub fn queue(&mut self, task_id: &str, until: Moment, now: Moment) {
        if until > now && (self.queued.len() < MAX_QUEUED_TASKS || self.queued.contains_key(task_id)) {
            self.queued.insert(task_id.to_owned(), until);
        }
    }

    fn forget_ended(&mut self, now: Moment) {
        self.claims.retain(|_, end| *end > now);
        self.queued.retain(|_, end| *end > now);
    }

    /// Gives a task back, done or not. Whether it had it.
    pub fn give_back(&mut self, task_id: &str) -> bool {
        let waited = self.queued.remove(task_id).is_some();
        self.claims.remove(task_id).is_some() || waited
    }

    /// Takes away what must be done by others: everything once it is offline, else what was not renewed.
    pub fn recover(&mut self, now: Moment) -> Vec<String> {
        let offline = self.status(now) == Status::Offline;
        let over: Vec<String> = self
            .claims
            .iter()
            .filter(|(_, lease)| offline || **lease <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &over {
            self.claims.remove(id);
        }
        over
    }
}

/// How often an agent asked in the minute that began with its first question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateWindow {
    began: Moment,
    count: u32,
}

/// Milliseconds of a rate window.
const WINDOW_MS: u64 = 60_000;

impl RateWindow {
    /// Counts one question that is worth `weight`.
    pub fn admit(&mut self, weight: u32, limit: u32, now: Moment) -> Result<(), Moment> {
        let end = self.began.plus_ms(WINDOW_MS);
        if self.count == 0 || end <= now {
            *self = Self { began: now, count: weight };
            return Ok(());
        }
        let count = self.count.saturating_add(weight);
        if count > limit {
            return Err(end);
        }
        self.count = count;
        Ok(())
    }

    /// Whether forgetting it changes nothing.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.began.plus_ms(WINDOW_MS) <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent(max_tasks: u32) -> Agent {
        Agent { max_tasks, ..Agent::new(Profile::default(), false, Moment::default()) }
    }

    proptest! {
        #[test]
        fn claims_never_exceed_the_limit_and_never_leak(
            max in 1_u32..4,
            steps in proptest::collection::vec((0_u8..4, 0_u8..6, 1_u64..50), 1..80),
        ) {
            let (mut agent, mut now) = (agent(max), Moment::default());
            let mut model: BTreeMap<String, Moment> = BTreeMap::new();
            for (what, id, ms) in steps {
                let id = format!("task-{id}");
                model.retain(|_, lease| *lease > now);
                match what {
                    0 => now = now.plus_ms(ms),
                    1 => {
                        model.remove(&id);
                        agent.give_back(&id);
                    }
                    _ => {
                        let room = model.contains_key(&id) || model.len() < max as usize;
                        let until = now.plus_ms(ms);
                        prop_assert_eq!(agent.claim(&id, until, now).is_ok(), room);
                        if room {
                            let end = model.entry(id).or_insert(until);
                            *end = until.max(*end);
                        }
                    }
                }
                model.retain(|_, lease| *lease > now);
                prop_assert_eq!(agent.active_tasks(now), model.len());
            }
        }
    }

    #[test]
    fn draining_renews_but_takes_nothing_new_and_offline_is_recovered() {
        let (mut agent, now) = (agent(2), Moment::from_micros(5_000_000));
        agent.last_heartbeat = now;
        let until = now.plus_ms(60_000);
        assert_eq!(agent.claim("a", until, now), Ok(()));
        agent.draining = true;
        assert_eq!(agent.status(now), Status::Draining);
        assert_eq!(agent.claim("a", until, now), Ok(()));
        assert_eq!(agent.claim("b", until, now), Err(NoCapacity::Draining));
        assert!(agent.recover(now).is_empty());
        let later = now.plus_ms(OFFLINE_AFTER_MS);
        assert_eq!(agent.status(later), Status::Offline);
        assert_eq!(agent.recover(later), ["a"]);
        assert_eq!(agent.active_tasks(later), 0);
    }

    #[test]
    fn who_finds_no_room_is_queued_until_it_does() {
        let (mut agent, now) = (agent(1), Moment::from_micros(1));
        let (soon, later) = (now.plus_ms(10), now.plus_ms(20));
        assert_eq!(agent.claim("a", later, now), Ok(()));
        for task in ["b", "b", "c"] {
            assert_eq!(agent.claim(task, soon, now), Err(NoCapacity::Full { max_tasks: 1 }));
        }
        assert_eq!((agent.active_tasks(now), agent.queued_tasks(now)), (1, 2));
        assert!(agent.give_back("a"));
        assert_eq!(agent.claim("b", later, now), Ok(()));
        assert_eq!((agent.active_tasks(now), agent.queued_tasks(now)), (1, 1));
        assert_eq!((agent.active_tasks(soon), agent.queued_tasks(soon)), (1, 0), "it did not ask again");
        assert_eq!(agent.claim("b", soon, now), Ok(()), "a late renewal");
        assert_eq!(agent.active_tasks(soon), 1, "does not make it shorter");
        assert_eq!(agent.active_tasks(later), 0);
        assert!(agent.give_back("c"), "it waited");
        assert!(!agent.give_back("c"));
    }

    #[test]
    fn a_rate_is_counted_by_the_minute() {
        let (mut window, now) = (RateWindow::default(), Moment::from_micros(7));
        for _ in 0..3 {
            assert_eq!(window.admit(1, 3, now), Ok(()));
        }
        assert_eq!(window.admit(1, 3, now.plus_ms(59_999)), Err(now.plus_ms(60_000)));
        assert!(!window.is_over(now.plus_ms(59_999)));
        assert_eq!(window.admit(2, 3, now.plus_ms(60_000)), Ok(()));
        assert_eq!(window.admit(2, 3, now.plus_ms(60_000)), Err(now.plus_ms(120_000)));
    }
}
