//! A policy in words.

use ade_client::wire::{Policy, PolicyRules};
use ade_domain::approval::policy::AutoApprove;
use owo_colors::OwoColorize;

use crate::output::{heading, safe};
use crate::task::parts::{fact, line};

/// The whole page.
pub(super) fn page(policy: &Policy) -> String {
    let mut page = String::new();
    line(&mut page, &safe(&policy.name).bold().to_string());
    fact(&mut page, "policy", &format!("{}, revision {}", safe(&policy.policy_id), policy.revision));
    fact(&mut page, "in force", if policy.active { "yes" } else { "no" });
    rules(&mut page, &policy.rules);
    if let Some(draft) = &policy.draft {
        line(&mut page, &heading("Drafted"));
        rules(&mut page, draft);
    }
    page
}

fn rules(page: &mut String, rules: &PolicyRules) {
    fact(page, "about", &about(rules));
    fact(page, "asks for", &asks(rules));
    fact(page, "no means", &format!("{} who say no", rules.reject_threshold));
    fact(page, "priority", &format!("{:?}", rules.priority).to_uppercase());
    fact(page, "automatic", &rules.auto_approve_if.as_ref().map(automatic).unwrap_or_default());
    fact(page, "escalates to", &rules.escalation_role.as_deref().map(safe).unwrap_or_default());
    if let Some(window) = &rules.window {
        let days: Vec<String> = window.weekdays.iter().map(|day| format!("{day:?}").to_lowercase()).collect();
        let days = if days.is_empty() { "every day".to_owned() } else { days.join(", ") };
        let (from, until) = window.hours;
        fact(page, "when", &format!("{days}, {from}–{until} h by the clocks of {}", safe(&window.time_zone)));
    }
}

/// Which tasks it is about.
pub(super) fn about(rules: &PolicyRules) -> String {
    let mut parts = Vec::new();
    if !rules.task_types.is_empty() {
        parts.push(format!("type {}", safe(&rules.task_types.join(" or "))));
    }
    if !rules.resource_patterns.is_empty() {
        parts.push(safe(&rules.resource_patterns.join(" or ")));
    }
    if rules.risk_threshold > 0 {
        parts.push(format!("risk from {}", rules.risk_threshold));
    }
    if parts.is_empty() { "every task".to_owned() } else { parts.join(", ") }
}

/// Whose agreement it wants.
pub(super) fn asks(rules: &PolicyRules) -> String {
    let mut text = rules.min_approvers.to_string();
    if !rules.reviewers.is_empty() {
        text.push_str(&format!(" of {}", safe(&rules.reviewers.join(", "))));
    }
    if !rules.required_roles.is_empty() {
        text.push_str(&format!(", with each of the roles {}", safe(&rules.required_roles.join(", "))));
    }
    text
}

fn automatic(conditions: &AutoApprove) -> String {
    let mut parts = Vec::new();
    parts.extend(conditions.risk_below.map(|risk| format!("the risk is below {risk}")));
    if !conditions.author_has_role.is_empty() {
        parts.push(format!("the author has the role {}", safe(&conditions.author_has_role.join(" or "))));
    }
    if !conditions.resources_in_scope.is_empty() {
        let patterns: Vec<&str> =
            conditions.resources_in_scope.iter().map(|pattern| pattern.as_str()).collect();
        parts.push(format!("everything it touches is {}", safe(&patterns.join(" or "))));
    }
    if parts.is_empty() { "never".to_owned() } else { format!("if {}", parts.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_told_in_words() {
        let policy: Policy = serde_json::from_value(json!({
            "policy_id": "p-1", "name": "databases", "active": true, "task_types": [], "resource_patterns": ["database:*"],
            "min_approvers": 2, "required_roles": ["dba"], "reviewers": [], "risk_threshold": 25,
            "auto_approve_if": { "risk_below": 10, "author_has_role": [], "resources_in_scope": [] },
            "escalation_role": null, "reject_threshold": 1, "priority": "HIGH",
            "window": { "weekdays": ["mon"], "hours": [8, 18], "time_zone": "Europe/Berlin" }, "draft": null, "revision": 4,
        }))
        .expect("a policy");
        let page = anstream::adapter::strip_str(&page(&policy)).to_string();
        for part in [
            "about        database:*, risk from 25",
            "asks for     2, with each of the roles dba",
            "automatic    if the risk is below 10",
            "priority     HIGH",
            "when         mon, 8–18 h by the clocks of Europe/Berlin",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }
}
