//! Which events a follower asks for: by topic, by name, by task. A filter only narrows what its follower may see.

use serde::Deserialize;

use crate::event::{TOPICS, check_event_pattern, topic};
use crate::{InvalidField, glob};

/// Topics, or patterns of names, of one filter.
pub const MAX_FILTER_ITEMS: usize = 32;
const MAX_TASK_ID_LEN: usize = 64;

/// Empty lists and an absent task match every event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    /// As `task`.
    #[serde(default)]
    pub topics: Vec<String>,
    /// Names with `*` for any characters, as `approval:*`.
    #[serde(default)]
    pub events: Vec<String>,
    #[serde(default)]
    pub task_id: Option<String>,
}

impl EventFilter {
    pub fn validate(&self) -> Result<(), InvalidField> {
        for (field, items) in [("topics", &self.topics), ("events", &self.events)] {
            if items.len() > MAX_FILTER_ITEMS {
                let detail = format!("must have at most {MAX_FILTER_ITEMS} items, not {}", items.len());
                return Err(InvalidField::at(field, detail));
            }
        }
        if let Some(unknown) = self.topics.iter().find(|topic| !TOPICS.contains(&topic.as_str())) {
            let detail = format!("must be among {}, not {unknown:?}", TOPICS.join(", "));
            return Err(InvalidField::at("topics", detail));
        }
        for pattern in &self.events {
            check_event_pattern(pattern).map_err(|error| InvalidField::at("events", error))?;
        }
        if self.task_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > MAX_TASK_ID_LEN) {
            return Err(InvalidField::at("task_id", "must be the id of a task"));
        }
        Ok(())
    }

    /// Whether it may match events of a topic.
    #[must_use]
    pub fn may_match_topic(&self, topic: &str) -> bool {
        let prefix = format!("{topic}:");
        (self.topics.is_empty() || self.topics.iter().any(|one| one == topic))
            && (self.events.is_empty() || self.events.iter().any(|one| glob::may_begin_with(one, &prefix)))
    }

    #[must_use]
    pub fn matches(&self, event: &str, task_id: Option<&str>) -> bool {
        let has_topic = || self.topics.is_empty() || self.topics.iter().any(|one| one == topic(event));
        let has_name =
            || self.events.is_empty() || self.events.iter().any(|one| glob::matches_exactly(one, event));
        self.task_id.as_deref().is_none_or(|wanted| task_id == Some(wanted)) && has_topic() && has_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(topics: &[&str], events: &[&str], task_id: Option<&str>) -> EventFilter {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        EventFilter { topics: list(topics), events: list(events), task_id: task_id.map(str::to_owned) }
    }

    #[test]
    fn every_condition_must_hold_and_an_empty_one_does() {
        assert!(EventFilter::default().matches("task:approved", None));
        let both = filter(&["task", "approval"], &["*:approved"], None);
        assert!(both.matches("task:approved", None) && both.matches("approval:approved", Some("t")));
        assert!(!both.matches("task:created", None) && !both.matches("user:approved", None));
        let of_task = filter(&[], &["approval:*"], Some("t"));
        assert!(of_task.matches("approval:requested", Some("t")));
        assert!(
            !of_task.matches("approval:requested", Some("u")) && !of_task.matches("approval:requested", None)
        );
        assert!(!of_task.matches("task:created", Some("t")));
    }

    #[test]
    fn size_topics_and_patterns_are_checked() {
        assert!(filter(&["task"], &["task:*"], Some("t")).validate().is_ok());
        let many = vec!["task"; MAX_FILTER_ITEMS + 1];
        for invalid in [
            filter(&["tasks"], &[], None),
            filter(&many, &[], None),
            filter(&[], &many, None),
            filter(&[], &[&"*".repeat(1_000)], None),
            filter(&[], &["task:aproved"], None),
            filter(&[], &[], Some("")),
        ] {
            assert!(invalid.validate().is_err(), "{invalid:?}");
        }
    }
}
