//! What applying a task does, in one sentence. What is deleted is named, because a reviewer must not miss it.

use ade_client::wire::{ChangeKind, PreviewStatus, Task, TaskState};

use crate::confirmation::is_most_critical;
use crate::format::{capitalized, count, visible};

/// Deleted things that are named; the others are counted.
const MAX_NAMED: usize = 2;
/// Characters of a name. The preview shows the whole one.
const MAX_NAME_LEN: usize = 100;
const MAX_PLACES: usize = 3;

/// Kinds of changes with what the task does, and did; the gravest first.
const VERBS: [(ChangeKind, &str, &str); 3] = [
    (ChangeKind::Delete, "deletes", "deleted"),
    (ChangeKind::Update, "changes", "changed"),
    (ChangeKind::Create, "creates", "created"),
];

/// Names are quoted: authors choose some of them, and a name must not read as a part of the sentence.
pub(crate) fn effect(task: &Task) -> String {
    let is_done = task.state == TaskState::Completed;
    let kinds = VERBS.iter().filter_map(|(kind, does, did)| {
        let changes = task.preview.changes.iter().filter(|change| change.kind == *kind);
        let names: Vec<&str> = changes.map(|change| change.what.as_str()).collect();
        let verb = if is_done { did } else { does };
        match (names.len(), kind) {
            (0, _) => None,
            (_, ChangeKind::Delete) => Some(format!("{verb} {}", named(&names))),
            (number, _) => Some(format!("{verb} {}", count(number, "item"))),
        }
    });
    let kinds: Vec<String> = kinds.collect();
    let what = match task.preview.status {
        _ if !kinds.is_empty() => kinds.join(", "),
        PreviewStatus::Pending => "the preview is being made".to_owned(),
        PreviewStatus::Failed => "the preview failed".to_owned(),
        PreviewStatus::Ready if is_done => "changed nothing".to_owned(),
        PreviewStatus::Ready => "changes nothing".to_owned(),
        PreviewStatus::None => "no preview: effects show only when it is applied".to_owned(),
    };
    let place = place(task);
    let text = match (place.is_empty(), kinds.is_empty()) {
        (true, _) => what,
        (false, false) => format!("{what} in {place}"),
        (false, true) => format!("{what} · {place}"),
    };
    let has_ended = matches!(task.state, TaskState::Failed | TaskState::Rejected | TaskState::Cancelled);
    let text = if has_ended && !kinds.is_empty() { format!("Proposed: {text}") } else { capitalized(&text) };
    visible(text)
}

/// `“a”`, `“a” and “b”`, `“a”, “b” and 3 more`.
fn named(names: &[&str]) -> String {
    let quoted = names.iter().take(MAX_NAMED).map(|name| {
        let cut = name.char_indices().nth(MAX_NAME_LEN).and_then(|(end, _)| name.get(..end));
        cut.map_or_else(|| format!("“{name}”"), |cut| format!("“{cut}…”"))
    });
    let quoted: Vec<String> = quoted.collect();
    match (quoted.split_last(), names.len().saturating_sub(MAX_NAMED)) {
        (None, _) => String::new(),
        (Some((only, [])), _) => only.clone(),
        (Some((last, first)), 0) => format!("{} and {last}", first.join(", ")),
        (Some(_), more) => format!("{} and {more} more", quoted.join(", ")),
    }
}

/// Where it happens. A capability says who does it, not where.
fn place(task: &Task) -> String {
    let bindings = task.scope.iter().map(|part| part.binding.clone());
    let declared = task.config.resources.iter().map(|one| format!("{}:{}", one.resource_type, one.id));
    let mut declared: Vec<String> = declared.collect();
    declared.sort_by_key(|place| !is_most_critical(task, place));
    let mut places: Vec<String> = Vec::new();
    for place in bindings.filter(|name| !name.starts_with("capability:")).chain(declared) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let more = places.len().saturating_sub(MAX_PLACES);
    places.truncate(MAX_PLACES);
    match places.split_first() {
        None => String::new(),
        Some((first, [])) => first.clone(),
        Some((first, rest)) => {
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{first}; touches {}{more}", rest.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use ade_client::wire::{PreviewChange, Resource, ScopePart};

    use super::*;
    use crate::fixture::task;

    fn change(kind: ChangeKind, what: &str) -> PreviewChange {
        PreviewChange { kind, what: what.to_owned(), before: None, after: None, diff: None }
    }

    fn deleting(names: &[&str], state: TaskState) -> String {
        let mut task = task();
        task.state = state;
        task.preview.changes = names.iter().map(|name| change(ChangeKind::Delete, name)).collect();
        task.preview.changes.push(change(ChangeKind::Update, "table ledger"));
        let part = ScopePart { binding: "capability:database".to_owned(), ..task.scope[0].clone() };
        task.scope = vec![part];
        task.config.resources = vec![Resource {
            resource_type: "database".to_owned(),
            id: "prod-ledger".to_owned(),
            mode: task.config.resources[0].mode,
        }];
        effect(&task)
    }

    #[test]
    fn names_what_is_deleted_and_no_capability() {
        let reviewing = TaskState::Reviewing;
        let place = "changes 1 item in database:prod-ledger";
        assert_eq!(deleting(&["column a"], reviewing), format!("Deletes “column a”, {place}"));
        assert_eq!(deleting(&["a", "b"], reviewing), format!("Deletes “a” and “b”, {place}"));
        assert_eq!(deleting(&["a", "b", "c"], reviewing), format!("Deletes “a”, “b” and 1 more, {place}"));
        assert!(deleting(&["nothing\u{202e}", "b"], reviewing).contains("“nothing⟦U+202E⟧”"));
        assert!(deleting(&[&"ü".repeat(200)], reviewing).contains(&format!("“{}…”", "ü".repeat(100))));
    }

    #[test]
    fn ended_tasks_do_nothing_any_more() {
        let done = deleting(&["a"], TaskState::Completed);
        assert_eq!(done, "Deleted “a”, changed 1 item in database:prod-ledger");
        for state in [TaskState::Rejected, TaskState::Cancelled, TaskState::Failed] {
            assert!(deleting(&["a"], state).starts_with("Proposed: deletes “a”"), "{state}");
        }
    }
}
