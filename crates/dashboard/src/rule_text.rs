//! Rules as sentences: what a policy asks for, and which tasks a delegation applies to. Names and patterns that people wrote are shown
//! with invisible characters as code points.

use ade_client::wire::{AutoApprove, DelegationConditions, PolicyRules, Priority, TimeWindow};

use crate::format::{capitalized, count, visible};

/// A list in words: `a`, `a or b`, `a, b or c`.
fn list(items: &[String], last: &str) -> String {
    match items {
        [] => String::new(),
        [one] => visible(one),
        [first @ .., end] => {
            let first: Vec<String> = first.iter().map(visible).collect();
            format!("{} {last} {}", first.join(", "), visible(end))
        }
    }
}

/// Which tasks need whose approval.
pub(crate) fn policy(rules: &PolicyRules) -> String {
    format!("{}: {}.", capitalized(&applies_to(rules)), approvals(rules))
}

/// Which tasks it applies to: `for every task`, or its conditions.
fn applies_to(rules: &PolicyRules) -> String {
    let mut parts = Vec::new();
    if !rules.task_types.is_empty() {
        parts.push(format!("of type {}", list(&rules.task_types, "or")));
    }
    if !rules.executors.is_empty() {
        parts.push(format!("with the executor {}", list(&rules.executors, "or")));
    }
    if !rules.targets.is_empty() {
        parts.push(format!("that touch {}", list(&rules.targets, "or")));
    }
    if !rules.resource_patterns.is_empty() {
        parts.push(format!("on {}", list(&rules.resource_patterns, "or")));
    }
    if rules.risk_threshold > 0 {
        parts.push(format!("with a risk of {} or more", rules.risk_threshold));
    }
    if let Some(window) = &rules.window {
        parts.push(time_window(window));
    }
    if parts.is_empty() { "for every task".to_owned() } else { format!("for tasks {}", parts.join(", ")) }
}

/// `on Saturday and Sunday, 22:00 to 6:00 (Europe/Berlin)`.
pub(crate) fn time_window(window: &TimeWindow) -> String {
    let days: Vec<String> = window.weekdays.iter().map(|day| capitalized(&day.to_string())).collect();
    let days = if days.is_empty() { "every day".to_owned() } else { format!("on {}", list(&days, "and")) };
    let zone = visible(&window.time_zone);
    match window.hours {
        (0, 24) => format!("{days} ({zone})"),
        (from, until) => format!("{days} from {from}:00 to {until}:00 ({zone})"),
    }
}

/// How many people must approve, and who.
fn approvals(rules: &PolicyRules) -> String {
    let (number, roles) = (rules.min_approvers, list(&rules.required_roles, "or"));
    let mut text = match (number, &*rules.reviewers, &*rules.required_roles) {
        (1, [], []) => "a reviewer must approve".to_owned(),
        (_, [], []) => format!("{number} different reviewers must approve"),
        (1, [], _) => format!("somebody with the role {roles} must approve"),
        (_, [], _) => format!("{number} different people with the role {roles} must approve"),
        (1, [one], _) => format!("{} must approve", visible(one)),
        (_, reviewers, _) => format!("{number} of {} must approve", list(reviewers, "and")),
    };
    let is_said = rules.reviewers.is_empty() && rules.required_roles.len() == 1 && number == 1;
    if !rules.required_roles.is_empty() && !is_said {
        let roles: Vec<String> = rules.required_roles.iter().map(|role| format!("a {role}")).collect();
        text.push_str(&format!(", among them {}", list(&roles, "and")));
    }
    text
}

/// What else the rule says.
pub(crate) fn further(rules: &PolicyRules) -> String {
    let escalation = rules.escalation_role.as_ref().map_or_else(
        || "administrators".to_owned(),
        |role| format!("people with the role {}", visible(role)),
    );
    let mut text = match rules.reject_threshold {
        1 => "One rejection rejects the task.".to_owned(),
        number => format!("{number} rejections reject the task."),
    };
    text.push_str(&format!(
        " Requests have {} priority; without an answer they go to the reviewer's manager, else to {escalation}.",
        priority(rules.priority)
    ));
    text.push(' ');
    text.push_str(&capitalized(&automatic(rules.auto_approve_if.as_ref())));
    text.push('.');
    text
}

/// What is approved automatically.
pub(crate) fn automatic(conditions: Option<&AutoApprove>) -> String {
    let none = "nothing is approved automatically".to_owned();
    let Some(conditions) = conditions else { return none };
    let mut parts = Vec::new();
    if let Some(below) = conditions.risk_below {
        parts.push(format!("the risk is below {below}"));
    }
    if !conditions.author_has_role.is_empty() {
        parts.push(format!("every author has the role {}", list(&conditions.author_has_role, "or")));
    }
    if !conditions.resources_in_scope.is_empty() {
        parts.push(format!("every resource matches {}", list(&conditions.resources_in_scope, "or")));
    }
    if parts.is_empty() {
        return none;
    }
    let agents = if conditions.agents { ", also those of agents" } else { "; those of agents never" };
    format!("tasks are approved without asking anybody if {}{agents}", list(&parts, "and"))
}

pub(crate) const fn priority(priority: Priority) -> &'static str {
    match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
        Priority::Urgent => "urgent",
    }
}

/// The tasks that a delegation applies to.
pub(crate) fn conditions(conditions: &DelegationConditions) -> String {
    let mut parts = Vec::new();
    if !conditions.task_types.is_empty() {
        parts.push(format!("type {}", list(&conditions.task_types, "or")));
    }
    if !conditions.resource_patterns.is_empty() {
        parts.push(format!("on {}", list(&conditions.resource_patterns, "or")));
    }
    if let Some(above) = conditions.risk_above {
        parts.push(format!("risk above {above}"));
    }
    if parts.is_empty() { "all tasks".to_owned() } else { parts.join(", ") }
}

/// A field whose value differs between two versions of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) field: &'static str,
    pub(crate) before: String,
    pub(crate) after: String,
}

/// What a draft changes of the rules in force, in words.
pub(crate) fn differences(before: &PolicyRules, after: &PolicyRules) -> Vec<Difference> {
    let fields = |rules: &PolicyRules| {
        let any = |items: &[String], none: &str| {
            if items.is_empty() { none.to_owned() } else { list(items, "or") }
        };
        [
            ("Task types", any(&rules.task_types, "all")),
            ("Executors", any(&rules.executors, "all")),
            ("Targets", any(&rules.targets, "all")),
            ("Resources", any(&rules.resource_patterns, "all")),
            ("Applies from a risk of", rules.risk_threshold.to_string()),
            ("Applies when", rules.window.as_ref().map_or_else(|| "always".to_owned(), time_window)),
            ("Approvals", count(rules.min_approvers as usize, "person").replace("persons", "people")),
            ("Required roles", any(&rules.required_roles, "none")),
            ("Reviewers", any(&rules.reviewers, "chosen by role")),
            ("Rejections that reject", rules.reject_threshold.to_string()),
            ("Priority", priority(rules.priority).to_owned()),
            ("Escalates to", any(rules.escalation_role.as_slice(), "administrators")),
            ("Automatic approval", automatic(rules.auto_approve_if.as_ref())),
        ]
    };
    let pairs = fields(before).into_iter().zip(fields(after));
    let changed = pairs.filter(|((_, before), (_, after))| before != after);
    changed.map(|((field, before), (_, after))| Difference { field, before, after }).collect()
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Weekday;

    use super::*;

    fn rules() -> PolicyRules {
        PolicyRules {
            task_types: Vec::new(),
            executors: Vec::new(),
            targets: Vec::new(),
            resource_patterns: Vec::new(),
            min_approvers: 1,
            required_roles: Vec::new(),
            reviewers: Vec::new(),
            risk_threshold: 0,
            auto_approve_if: None,
            escalation_role: None,
            reject_threshold: 1,
            priority: Priority::Normal,
            window: None,
        }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn policies_are_sentences() {
        assert_eq!(policy(&rules()), "For every task: a reviewer must approve.");
        assert_eq!(
            further(&rules()),
            "One rejection rejects the task. Requests have normal priority; without an answer they go to the reviewer's manager, else to administrators. Nothing is approved \
             automatically."
        );
        let window = TimeWindow {
            weekdays: vec![Weekday::Sat, Weekday::Sun],
            hours: (22, 6),
            time_zone: "UTC".to_owned(),
        };
        let conditions = AutoApprove { risk_below: Some(25), agents: true, ..AutoApprove::default() };
        let all = PolicyRules {
            task_types: words("migration rollout"),
            resource_patterns: words("database:*"),
            min_approvers: 2,
            required_roles: words("dba reviewer"),
            risk_threshold: 40,
            auto_approve_if: Some(conditions),
            window: Some(window),
            ..rules()
        };
        assert_eq!(
            policy(&all),
            "For tasks of type migration or rollout, on database:*, with a risk of 40 or more, on Sat and Sun from 22:00 \
             to 6:00 (UTC): 2 different people with the role dba or reviewer must approve, among them a dba and a reviewer."
        );
        let text = further(&all);
        let expected =
            "Tasks are approved without asking anybody if the risk is below 25, also those of agents.";
        assert!(text.ends_with(expected), "{text}");
        let dba = PolicyRules { required_roles: words("dba"), ..rules() };
        assert_eq!(policy(&dba), "For every task: somebody with the role dba must approve.");
        let both = PolicyRules { reviewers: words("ann bob"), min_approvers: 2, ..dba };
        assert_eq!(policy(&both), "For every task: 2 of ann and bob must approve, among them a dba.");
    }

    #[test]
    fn deceptive_characters_are_visible() {
        let rules = PolicyRules { reviewers: vec!["a\u{202e}b".to_owned()], ..rules() };
        assert!(policy(&rules).contains("a⟦U+202E⟧b must approve"));
    }

    #[test]
    fn only_changed_fields_differ() {
        let after = PolicyRules { min_approvers: 3, escalation_role: Some("on-call".to_owned()), ..rules() };
        let fields: Vec<_> = differences(&rules(), &after)
            .into_iter()
            .map(|difference| (difference.field, difference.before, difference.after))
            .collect();
        let expected = [("Approvals", "1 person", "3 people"), ("Escalates to", "administrators", "on-call")];
        assert_eq!(
            fields,
            expected.map(|(field, before, after)| (field, before.to_owned(), after.to_owned()))
        );
        assert!(differences(&rules(), &rules()).is_empty());
    }

    #[test]
    fn empty_conditions_approve_nothing() {
        assert_eq!(automatic(Some(&AutoApprove::default())), "nothing is approved automatically");
        let conditions = DelegationConditions {
            task_types: words("infrastructure"),
            risk_above: Some(50),
            resource_patterns: Vec::new(),
        };
        assert_eq!(super::conditions(&conditions), "type infrastructure, risk above 50");
    }
}
