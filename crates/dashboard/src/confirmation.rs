//! What a reviewer types to confirm a critical task: the page proposes what matters most. The server decides what confirms.

use ade_client::wire::Task;

use crate::format::visible;

/// Characters of a task's id that confirm a task without anything in its scope.
const TASK_ID_LEN: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// What is proposed, and what it is.
    pub(crate) example: String,
    pub(crate) prompt: &'static str,
    /// Everything that is accepted, one on each line.
    pub(crate) accepts: String,
}

impl Confirmation {
    /// Resources come before targets, the most critical one first. A capability comes last: it is the same for every task of its kind.
    pub(crate) fn of(task: &Task) -> Self {
        let bound = task.scope.iter().flat_map(|part| &part.resources);
        let resources = task.config.resources.iter().chain(bound);
        let mut resources: Vec<(String, &str)> =
            resources.map(|one| (format!("{}:{}", one.resource_type, one.id), one.id.as_str())).collect();
        resources.sort_by_key(|(label, _)| !is_most_critical(task, label));
        let targets = task.scope.iter().flat_map(|part| &part.targets).map(String::as_str);
        let mut targets: Vec<&str> = targets.collect();
        targets.sort_by_key(|target| target.starts_with("capability:"));
        let bare = resources.iter().map(|(_, id)| *id);
        let labels = resources.iter().map(|(label, _)| label.as_str());
        // What cannot be read cannot be typed. The server does not accept it either.
        let is_typed = |id: &&str| visible(id) == *id && id.trim() == *id && !id.contains('\n');
        let accepted: Vec<&str> = labels.chain(targets).chain(bare).filter(is_typed).collect();
        let Some(example) = accepted.first() else {
            let id = task.task_id.get(..TASK_ID_LEN).unwrap_or_default().to_owned();
            return Self { example: id.clone(), prompt: "Type the beginning of its id", accepts: id };
        };
        let is_resource = resources.iter().any(|(label, _)| label == example);
        Self {
            example: (*example).to_owned(),
            prompt: if is_resource { "Type the most critical resource" } else { "Type what it touches" },
            accepts: accepted.join("\n"),
        }
    }
}

/// Whether the risk counts this resource. It only decides what is named first.
pub(crate) fn is_most_critical(task: &Task, label: &str) -> bool {
    let mut factors = task.risk.iter().flat_map(|risk| &risk.factors);
    let factor = factors.find(|factor| factor.name == "resource_criticality");
    let rest = factor.and_then(|factor| factor.why.strip_prefix(label));
    rest.is_some_and(|rest| rest.starts_with(" is "))
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Resource;
    use serde_json::json;

    use super::*;
    use crate::fixture::task;

    fn resource(resource_type: &str, id: &str, like: &Resource) -> Resource {
        Resource { resource_type: resource_type.to_owned(), id: id.to_owned(), mode: like.mode }
    }

    #[test]
    fn proposes_the_most_critical_resource_and_a_capability_last() {
        let mut task = task();
        let like = task.config.resources[0].clone();
        task.config.resources = vec![resource("docs", "notes", &like), resource("database", "prod", &like)];
        task.scope[0].resources = vec![resource("service", "pay\u{200b}", &like)];
        task.scope[0].targets = vec!["capability:database".to_owned(), "files:site/a.md".to_owned()];
        let risk = json!({
            "score": 80, "level": "CRITICAL", "auto_approvable": false, "assessed_at": "2026-11-19T04:22:17Z", "assessed_by": "",
            "factors": [{
                "name": "resource_criticality", "value": 95.0, "weight": 0.4, "contribution": 38.0,
                "why": "database:prod is the most critical",
            }],
        });
        task.risk = Some(serde_json::from_value(risk).expect("a risk"));
        let found = Confirmation::of(&task);
        assert_eq!(
            (found.example.as_str(), found.prompt),
            ("database:prod", "Type the most critical resource")
        );
        let accepted: Vec<&str> = found.accepts.lines().collect();
        let expected =
            ["database:prod", "docs:notes", "files:site/a.md", "capability:database", "prod", "notes"];
        assert_eq!(accepted, expected, "nothing that cannot be read");
    }

    #[test]
    fn a_task_without_scope_is_confirmed_by_its_id() {
        let mut task = task();
        task.config.resources.clear();
        task.scope.clear();
        let found = Confirmation::of(&task);
        assert_eq!(found.example, task.task_id.get(..8).expect("an id"));
        assert_eq!(found.accepts, found.example);
    }
}
