//! What a notification says about an event and its task: enough to decide whether to look, never the content of a change. Texts of authors
//! and agents are bounded, and what hides or reorders text is shown as an escape.

use crate::event::Event;
use crate::risk::RiskLevel;
use crate::task::{ChangeKind, Resource, Task, TaskState};
use crate::text::{counted, escape_hidden};

/// Items of a preview that are listed.
const MAX_ITEMS: usize = 10;
/// Resources and targets that are named.
const MAX_NAMES: usize = 10;
const MAX_ITEM_CHARS: usize = 120;
const MAX_DESCRIPTION_CHARS: usize = 600;

/// Events that ask the notified user for a decision.
const REQUESTS: [&str; 4] =
    ["approval:requested", "approval:delegated", "approval:reassigned", "approval:escalated"];

/// An event with what is known about its task, and a link to it.
#[derive(Debug, Clone, Copy)]
pub struct Notification<'a> {
    pub event: &'a Event,
    pub task: Option<&'a Task>,
    /// Where people reach the server, without a slash at the end.
    pub public_url: Option<&'a str>,
}

/// How urgent a notification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    Info,
    Warning,
    Error,
    Critical,
}

/// One line, without hidden characters.
fn shown(text: &str) -> String {
    escape_hidden(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

/// A text of somebody else: one line, without hidden characters, at most so many characters.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let shown = shown(text);
    if shown.chars().count() <= max_chars {
        return shown;
    }
    let cut: String = shown.chars().take(max_chars.saturating_sub(1)).collect();
    cut + "…"
}

/// Names that a message lists.
struct Listed {
    text: String,
    /// Whether all are there, none of them cut off.
    is_complete: bool,
}

/// The first of these names; `None` if there are none.
fn listed(names: impl Iterator<Item = String>) -> Option<Listed> {
    let mut all: Vec<String> = names.map(|name| shown(&name)).collect();
    all.sort();
    all.dedup();
    let more = all.len().saturating_sub(MAX_NAMES);
    let is_complete = more == 0 && all.iter().all(|name| name.chars().count() <= MAX_ITEM_CHARS);
    let mut parts: Vec<String> =
        all.iter().take(MAX_NAMES).map(|name| one_line(name, MAX_ITEM_CHARS)).collect();
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    (!parts.is_empty()).then(|| Listed { text: parts.join(", "), is_complete })
}

impl Notification<'_> {
    /// The event in words: `task:rollback_failed` is "Task rollback failed".
    pub fn headline(&self) -> String {
        let words = one_line(&self.event.event.replace([':', '_'], " "), 100);
        let mut letters = words.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    }

    pub fn title(&self) -> String {
        match self.description(MAX_ITEM_CHARS) {
            Some(description) => format!("{}: {description}", self.headline()),
            None => self.headline(),
        }
    }

    pub fn description(&self, max_chars: usize) -> Option<String> {
        self.task.map(|task| one_line(&task.config.description, max_chars))
    }

    /// Names and values about the event and its task, in order.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.people();
        let Some(task) = self.task else { return facts };
        facts.extend([
            ("Task", task.task_id.clone()),
            ("State", state_name(task.state)),
            ("Type", one_line(&task.config.task_type, MAX_ITEM_CHARS)),
            ("Executor", one_line(&task.config.executor, MAX_ITEM_CHARS)),
            ("Author", one_line(task.author_id.as_str(), MAX_ITEM_CHARS)),
        ]);
        if !task.by_agent.is_empty() {
            let agents: Vec<&str> = task.by_agent.iter().map(String::as_str).collect();
            facts.push(("Written by agent", one_line(&agents.join(", "), MAX_ITEM_CHARS)));
        }
        if let Some(risk) = &task.risk {
            facts.push(("Risk", format!("{} ({} of 100)", level_name(risk.level), risk.score)));
        }
        let resources = task.scope.effective_resources(&task.config);
        let named = resources.iter().map(Resource::name);
        facts.extend(listed(named).map(|listed| ("Resources", listed.text)));
        let targets = task.scope.targets().map(str::to_owned);
        facts.extend(listed(targets).map(|listed| ("Targets", listed.text)));
        facts.push(("Changes", self.change_counts()));
        facts
    }

    /// Who did it, and whom it concerns.
    fn people(&self) -> Vec<(&'static str, String)> {
        let who = |field| self.event.payload.get("who")?.get(field)?.as_str();
        let actor = match (who("user_id"), who("agent_id"), who("service")) {
            (_, Some(agent), _) => Some(format!("agent {agent}")),
            (user, None, service) => user.or(service).map(str::to_owned),
        };
        let by = actor.map(|actor| ("By", one_line(&actor, MAX_ITEM_CHARS)));
        let is_request = REQUESTS.contains(&self.event.event.as_str());
        let name = if is_request { "Reviewer" } else { "Notified" };
        let notified = listed(self.event.notify.iter().map(|user| user.as_str().to_owned()));
        by.into_iter().chain(notified.map(|listed| (name, listed.text))).collect()
    }

    /// Whether nothing that a message names is cut off or left out, and there are no warnings and errors of the preview, which no
    /// message shows. What the changes contain is in no message either: who decides in a chat decides by the names.
    pub fn is_complete(&self, max_description_chars: usize) -> bool {
        let Some(task) = self.task else { return true };
        let is_shown = |text: &str, max_chars: usize| shown(text).chars().count() <= max_chars;
        let config = &task.config;
        let changes = &task.preview.changes;
        let resources = task.scope.effective_resources(config);
        let agents: Vec<&str> = task.by_agent.iter().map(String::as_str).collect();
        let names = [&*config.task_type, &*config.executor, task.author_id.as_str(), &agents.join(", ")];
        is_shown(&config.description, max_description_chars)
            && names.iter().all(|name| is_shown(name, MAX_ITEM_CHARS))
            && listed(resources.iter().map(Resource::name)).is_none_or(|listed| listed.is_complete)
            && listed(task.scope.targets().map(str::to_owned)).is_none_or(|listed| listed.is_complete)
            && task.preview.warnings.is_empty()
            && task.preview.errors.is_empty()
            && changes.len() <= MAX_ITEMS
            && changes.iter().all(|change| is_shown(&change.what, MAX_ITEM_CHARS))
    }

    fn change_counts(&self) -> String {
        let Some(task) = self.task else { return String::new() };
        let count = |kind| task.preview.changes.iter().filter(|change| change.kind == kind).count();
        let parts: Vec<String> = [
            (ChangeKind::Create, "created"),
            (ChangeKind::Update, "updated"),
            (ChangeKind::Delete, "deleted"),
        ]
        .into_iter()
        .map(|(kind, word)| (count(kind), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
        let counts = if parts.is_empty() { "none known".to_owned() } else { parts.join(", ") };
        if task.preview.unverifiable { counts + ", declared by the author" } else { counts }
    }

    /// What would change, by name only.
    pub fn changed_items(&self) -> Vec<String> {
        let Some(task) = self.task else { return Vec::new() };
        let line = |kind: ChangeKind, what: &str| {
            let sign = match kind {
                ChangeKind::Create => '+',
                ChangeKind::Update => '~',
                ChangeKind::Delete => '-',
            };
            format!("{sign} {}", one_line(what, MAX_ITEM_CHARS))
        };
        let mut lines: Vec<String> = task
            .preview
            .changes
            .iter()
            .take(MAX_ITEMS)
            .map(|change| line(change.kind, &change.what))
            .collect();
        let more = task.preview.changes.len().saturating_sub(MAX_ITEMS);
        if more > 0 {
            lines.push(format!("and {}", counted(more as u64, "more item", "more items")));
        }
        lines
    }

    pub fn link(&self) -> Option<String> {
        let (base, task) = (self.public_url?, self.task?);
        Some(format!("{base}/tasks/{}", task.task_id))
    }

    /// The same for all events of a task, so that receivers can group them.
    pub fn correlation_id(&self) -> String {
        match &self.event.task_id {
            Some(task_id) => format!("ade-task-{task_id}"),
            None => format!("ade-event-{}", self.event.event_id),
        }
    }

    pub fn urgency(&self) -> Urgency {
        let fact = self.event.event.split_once(':').map_or("", |(_, fact)| fact);
        match fact {
            "rollback_failed" | "mismatch" | "quarantined" => Urgency::Critical,
            "failed" | "refused" | "deadlock" => Urgency::Error,
            "escalated" | "unanswered" | "expired" | "disabled" | "preview_stale" => Urgency::Warning,
            _ => match self.task.and_then(|task| task.risk.as_ref()).map(|risk| risk.level) {
                Some(RiskLevel::Critical) => Urgency::Critical,
                Some(RiskLevel::High) => Urgency::Error,
                Some(RiskLevel::Medium) => Urgency::Warning,
                Some(RiskLevel::Low) | None => Urgency::Info,
            },
        }
    }

    /// Everything as lines of plain text.
    pub fn text(&self) -> String {
        let mut lines = vec![self.headline()];
        lines.extend(self.description(MAX_DESCRIPTION_CHARS));
        lines.push(String::new());
        lines.extend(self.facts().into_iter().map(|(name, value)| format!("{name}: {value}")));
        lines.extend(self.changed_items());
        lines.extend(self.link());
        lines.join("\n")
    }
}

fn state_name(state: TaskState) -> String {
    json_word(&state)
}

fn level_name(level: RiskLevel) -> String {
    json_word(&level)
}

/// An enum as in JSON.
fn json_word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod fixture {
    use serde_json::Map;

    use super::*;
    use crate::Moment;
    use crate::people::{AuthorSet, UserId};
    use crate::risk::Risk;
    use crate::task::{Config, Digest, Preview, PreviewChange, RollbackStrategy, ScopePart, TaskScope};

    pub(in crate::webhook) fn event(name: &str) -> Event {
        Event {
            event_id: "e1".to_owned(),
            event: name.to_owned(),
            at: Moment::from_micros(1_794_744_000_000_000),
            task_id: Some("t1".to_owned()),
            notify: Vec::new(),
            payload: Map::new(),
            source: "ade".to_owned(),
        }
    }

    /// The task with so many resources, and a target.
    pub(in crate::webhook) fn with_resources(mut task: Task, count: usize) -> Task {
        let resource = |number: usize| Resource {
            resource_type: "database".to_owned(),
            id: format!("db-{number:02}"),
            mode: crate::lock::LockMode::Exclusive,
        };
        task.config.resources = (0..count).map(resource).collect();
        task.scope = TaskScope(vec![ScopePart {
            binding: "files:handbook".to_owned(),
            targets: vec!["files:handbook/\u{202e}a.md".to_owned()],
            resources: Vec::new(),
            criticality: None,
            lock: None,
            fingerprint: None,
        }]);
        task
    }

    pub(in crate::webhook) fn task(description: &str, level: RiskLevel) -> Task {
        let config = Config {
            task_type: "schema".to_owned(),
            version: "1".to_owned(),
            description: description.to_owned(),
            executor: "files".to_owned(),
            parameters: Map::new(),
            resources: Vec::new(),
            rollback_strategy: RollbackStrategy::Automatic,
            timeout_seconds: 60,
            priority: 0,
        };
        let change = |number| PreviewChange {
            kind: ChangeKind::Update,
            what: format!("conf/{number}.toml"),
            before: None,
            after: None,
            diff: Some("-secret\n+content".to_owned()),
            ..serde_json::from_value(serde_json::json!({ "kind": "update", "what": "x" })).expect("a change")
        };
        let digest = Digest::of_bytes(b"config");
        let author = UserId::new("ann");
        let mut task =
            Task::draft("t1", config, digest, author, AuthorSet::default(), Moment::from_micros(1));
        task.by_agent.insert("bot".to_owned());
        task.preview = Preview { changes: (0..12).map(change).collect(), ..Preview::ready() };
        task.risk = Some(Risk { score: 12, level, factors: Vec::new(), assessed_by: "test".to_owned() });
        task
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_who_did_it_and_who_is_asked() {
        let mut event = fixture::event("approval:requested");
        event.notify = vec![crate::people::UserId::new("rex")];
        let people = |event: &Event| {
            let notification = Notification { event, task: None, public_url: None };
            notification
                .facts()
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(people(&event), ["Reviewer: rex"]);
        event.payload.insert("who".to_owned(), json!({ "user_id": "ann", "agent_id": null }));
        event.event = "approval:approved".to_owned();
        assert_eq!(people(&event), ["By: ann", "Notified: rex"]);
        for (who, expected) in [
            (json!({ "user_id": "ann", "agent_id": "bot" }), "By: agent bot"),
            (json!({ "service": "worker", "instance": "w", "trigger": "attempt 1" }), "By: worker"),
        ] {
            event.payload.insert("who".to_owned(), who);
            assert_eq!(people(&event).first().map(String::as_str), Some(expected));
        }
    }

    #[test]
    fn says_what_would_change_without_its_content() {
        let (event, task) =
            (fixture::event("approval:requested"), fixture::task("Grow\n the pool", RiskLevel::Low));
        let task = fixture::with_resources(task, 12);
        let notification =
            Notification { event: &event, task: Some(&task), public_url: Some("https://ade.example.com") };
        assert_eq!(notification.title(), "Approval requested: Grow the pool");
        let text = notification.text();
        for part in [
            "Author: ann",
            "Written by agent: bot",
            "Risk: LOW (12 of 100)",
            "Changes: 12 updated",
            "Resources: database:db-00, database:db-01,",
            "database:db-09, and 2 more",
            "Targets: files:handbook/\\u{202e}a.md",
            "~ conf/9.toml",
            "and 2 more items",
            "https://ade.example.com/tasks/t1",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("secret") && !text.contains("conf/10.toml"), "{text}");
        assert_eq!(notification.urgency(), Urgency::Info);
    }

    #[test]
    fn shows_no_hidden_characters_and_bounds_texts() {
        assert_eq!(one_line("a\u{202e}b\u{1b}[2J\n\nc", 100), "a\\u{202e}b\\u{1b}[2J c");
        assert_eq!(one_line(&"x".repeat(50), 10), format!("{}…", "x".repeat(9)));
    }
}
