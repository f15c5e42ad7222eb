//! Who may see an event. The audience of an event is computed once; whether somebody belongs to it is then a matter of lookups.
//!
//! An event shows no more than reading its object would: the events of a task are for its participants, those of rules and agents for
//! everybody who may read, and those of accounts for the people concerned. In doubt, an event is only for those who see everything.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::event::{Event, topic};
use crate::lock::{LockKind, LockName};
use crate::people::UserId;

/// Whose events everybody may see who may read.
const PUBLIC_TOPICS: [&str; 5] = ["agent", "config", "feature", "policy", "resource"];

/// The participants of a task; see [`Task::is_participant`](crate::task::Task::is_participant).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskParticipants {
    /// The author set. Its agents take part too.
    pub authors: BTreeSet<UserId>,
    /// Everybody who was asked to review it. Their agents do not take part.
    pub reviewers: BTreeSet<UserId>,
    /// The agent that applies it, or was the last to do so.
    pub applied_by: Option<String>,
}

impl TaskParticipants {
    fn include(&self, viewer: &Viewer) -> bool {
        let takes_part = |user: &UserId| {
            self.authors.contains(user) || (viewer.agent_id.is_none() && self.reviewers.contains(user))
        };
        viewer.user_id.as_ref().is_some_and(takes_part)
            || (viewer.agent_id.is_some() && viewer.agent_id == self.applied_by)
    }
}

/// Somebody who follows events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Viewer {
    /// The user, or the sponsor of the agent.
    pub user_id: Option<UserId>,
    pub agent_id: Option<String>,
    /// Whether it is an administrator or auditor.
    pub sees_all: bool,
}

/// Who may see an event, besides those who see everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audience {
    everyone: bool,
    task: Option<Arc<TaskParticipants>>,
    /// The people who are notified by name, who acted, and whose account it is; not their agents.
    people: Vec<UserId>,
    /// The agents that acted.
    agents: Vec<String>,
}

impl Audience {
    /// The audience of an event. `task` has the participants of [`Event::audience_task`]; none if that task does not exist.
    #[must_use]
    pub fn of(event: &Event, task: Option<Arc<TaskParticipants>>) -> Self {
        let who =
            |field: &str| event.payload.get("who").and_then(|who| who.get(field)).and_then(Value::as_str);
        let mut people = event.notify.clone();
        people.extend(who("user_id").map(UserId::new));
        let topic = topic(&event.event);
        if topic == "user" {
            people.extend(event.payload.get("user_id").and_then(Value::as_str).map(UserId::new));
        }
        let is_of_task = event.audience_task().is_some();
        let everyone = !is_of_task && (PUBLIC_TOPICS.contains(&topic) || topic == "lock");
        let agents = who("agent_id").map(str::to_owned).into_iter().collect();
        Self { everyone, task, people, agents }
    }

    /// The audience of a lock without events in the database. `task` has the participants of the task whose lock it is.
    #[must_use]
    pub fn of_lock(lock: &LockName, task: Option<Arc<TaskParticipants>>) -> Self {
        Self { everyone: task_of_lock(lock).is_none(), task, ..Self::default() }
    }

    #[must_use]
    pub fn includes(&self, viewer: &Viewer) -> bool {
        viewer.sees_all
            || self.everyone
            || self.task.as_ref().is_some_and(|task| task.include(viewer))
            || match &viewer.agent_id {
                Some(agent) => self.agents.contains(agent),
                None => viewer.user_id.as_ref().is_some_and(|user| self.people.contains(user)),
            }
    }
}

/// The task whose lock it is. The id in the name may also be that of no task.
#[must_use]
pub fn task_of_lock(lock: &LockName) -> Option<&str> {
    (lock.kind() == LockKind::Task).then(|| lock.id())
}

/// An account that an event is about: its user may have other permissions from then on, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Account {
    User(String),
    Token(String),
    Session(String),
    Agent(String),
}

impl Event {
    /// The task whose participants see the event: its own, or the one whose lock it is about.
    #[must_use]
    pub fn audience_task(&self) -> Option<String> {
        if self.task_id.is_some() {
            return self.task_id.clone();
        }
        match topic(&self.event) {
            "task" | "approval" => Some(String::new()),
            "lock" => {
                let lock = self.object_id("lock").and_then(|lock| lock.parse::<LockName>().ok());
                // One that cannot be read may be that of a task.
                let Some(lock) = lock else { return Some(String::new()) };
                task_of_lock(&lock).map(str::to_owned)
            }
            _ => None,
        }
    }

    /// The account that the event is about.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        let id = |noun| self.object_id(noun).map(str::to_owned);
        match topic(&self.event) {
            "user" => id("user").map(Account::User),
            "token" => id("token").map(Account::Token),
            "session" => id("session").map(Account::Session),
            "agent" => id("agent").map(Account::Agent),
            _ => None,
        }
    }

    fn object_id(&self, noun: &str) -> Option<&str> {
        self.payload.get(&format!("{noun}_id")).and_then(Value::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::Moment;

    fn event(name: &str, task_id: Option<&str>, payload: impl Into<Value>) -> Event {
        Event {
            event_id: "e".to_owned(),
            event: name.to_owned(),
            at: Moment::from_micros(1),
            task_id: task_id.map(str::to_owned),
            notify: vec![UserId::new("nat")],
            payload: payload.into().as_object().cloned().unwrap_or_else(Map::new),
            source: "test".to_owned(),
        }
    }

    fn person(id: &str) -> Viewer {
        Viewer { user_id: Some(UserId::new(id)), ..Viewer::default() }
    }

    fn agent(id: &str, sponsor: &str) -> Viewer {
        Viewer { agent_id: Some(id.to_owned()), ..person(sponsor) }
    }

    fn seen_by<'a>(audience: &Audience, viewers: &'a [(&'a str, Viewer)]) -> Vec<&'a str> {
        viewers.iter().filter(|(_, viewer)| audience.includes(viewer)).map(|(name, _)| *name).collect()
    }

    fn viewers() -> Vec<(&'static str, Viewer)> {
        vec![
            ("ann", person("ann")),
            ("bot of ann", agent("bot", "ann")),
            ("rex", person("rex")),
            ("bot of rex", agent("rexbot", "rex")),
            ("nat", person("nat")),
            ("bot of nat", agent("natbot", "nat")),
            ("applier", agent("applier", "zoe")),
            ("zoe", person("zoe")),
            ("aud", Viewer { sees_all: true, ..person("aud") }),
        ]
    }

    fn participants() -> Arc<TaskParticipants> {
        Arc::new(TaskParticipants {
            authors: BTreeSet::from([UserId::new("ann")]),
            reviewers: BTreeSet::from([UserId::new("rex")]),
            applied_by: Some("applier".to_owned()),
        })
    }

    #[test]
    fn events_of_a_task_are_for_its_participants_and_those_notified() {
        let approved = event("task:approved", Some("t"), json!({ "task_id": "t" }));
        let audience = Audience::of(&approved, Some(participants()));
        assert_eq!(seen_by(&audience, &viewers()), ["ann", "bot of ann", "rex", "nat", "applier", "aud"]);
    }

    #[test]
    fn events_of_a_task_that_does_not_exist_are_for_the_actor_and_those_notified() {
        let who = json!({ "user_id": "zoe", "agent_id": null });
        let deleted = event("task:deleted", Some("t"), json!({ "task_id": "t", "who": who }));
        assert_eq!(seen_by(&Audience::of(&deleted, None), &viewers()), ["nat", "zoe", "aud"]);
        let by_agent = json!({ "user_id": "ann", "agent_id": "bot" });
        let deleted = event("task:deleted", Some("t"), json!({ "task_id": "t", "who": by_agent }));
        assert_eq!(seen_by(&Audience::of(&deleted, None), &viewers()), ["ann", "bot of ann", "nat", "aud"]);
    }

    #[test]
    fn rules_are_for_everyone_and_accounts_for_the_people_concerned() {
        let policy = Audience::of(&event("policy:updated", None, json!({ "policy_id": "p" })), None);
        assert_eq!(seen_by(&policy, &viewers()).len(), viewers().len());
        let user = Audience::of(&event("user:updated", None, json!({ "user_id": "rex" })), None);
        assert_eq!(seen_by(&user, &viewers()), ["rex", "nat", "aud"]);
        for name in ["token:created", "session:created", "change:proposed", "audit:mismatch", "new:created"] {
            let audience = Audience::of(&event(name, None, json!({ "user_id": "rex" })), None);
            assert_eq!(seen_by(&audience, &viewers()), ["nat", "aud"], "{name}");
        }
    }

    #[test]
    fn locks_of_tasks_are_for_those_who_see_the_task() {
        let of_resource = event("lock:deadlock", None, json!({ "lock_id": "resource:db:main" }));
        assert_eq!(of_resource.audience_task(), None);
        assert_eq!(seen_by(&Audience::of(&of_resource, None), &viewers()).len(), viewers().len());
        let of_task = event("lock:broken", None, json!({ "lock_id": "task:t-1" }));
        assert_eq!(of_task.audience_task().as_deref(), Some("t-1"));
        assert_eq!(seen_by(&Audience::of(&of_task, None), &viewers()), ["nat", "aud"]);
        let lock: LockName = "task:t-1".parse().expect("a name");
        let audience = Audience::of_lock(&lock, Some(participants()));
        assert_eq!(seen_by(&audience, &viewers()), ["ann", "bot of ann", "rex", "applier", "aud"]);
    }

    #[test]
    fn events_about_accounts_name_them() {
        let account = |name: &str, payload: Value| event(name, None, payload).account();
        assert_eq!(account("user:updated", json!({ "user_id": "a" })), Some(Account::User("a".to_owned())));
        assert_eq!(
            account("token:revoked", json!({ "token_id": "t" })),
            Some(Account::Token("t".to_owned()))
        );
        assert_eq!(
            account("session:ended", json!({ "session_id": "s" })),
            Some(Account::Session("s".to_owned()))
        );
        assert_eq!(
            account("agent:deleted", json!({ "agent_id": "b" })),
            Some(Account::Agent("b".to_owned()))
        );
        assert_eq!(account("task:created", json!({ "user_id": "a" })), None);
    }
}
