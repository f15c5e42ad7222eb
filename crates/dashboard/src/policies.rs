//! Pages of policies: the list, one policy with its editor, a simulation, and a replay over past tasks.

use ade_client::wire::{
    AutoApprove, Policy, PolicyReplay, PolicyRequest, PolicyRules, Priority, Problem, ReplayedTask,
    RiskFactor, SimulatedReviewer, Simulation, TimeWindow, Weekday,
};
use askama::Template;

use crate::format::{count, segment, short_id, visible};
use crate::rule_text::{self, Difference};
use crate::{PendingChanges, Shell};

/// Changed decisions of a replay that are listed.
const MAX_LISTED: usize = 100;

#[derive(Debug, Clone, Template)]
#[template(path = "policies.html")]
pub struct PoliciesPage {
    pub shell: Shell,
    pub policies: Vec<Policy>,
    pub next_cursor: Option<String>,
    pub pending: PendingChanges,
    pub is_admin: bool,
    pub problem: Option<Problem>,
}

impl PoliciesPage {
    fn encoded(&self, text: &str) -> String {
        segment(text)
    }

    fn name(&self, policy: &Policy) -> String {
        visible(&policy.name)
    }

    fn sentence(&self, policy: &Policy) -> String {
        rule_text::policy(&policy.rules)
    }

    fn further(&self, policy: &Policy) -> String {
        rule_text::further(&policy.rules)
    }
}

/// The fields of the editor, as they are typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyFields {
    pub name: String,
    pub task_types: String,
    pub executors: String,
    pub targets: String,
    pub resource_patterns: String,
    pub risk_threshold: String,
    pub min_approvers: String,
    pub required_roles: String,
    pub reviewers: String,
    pub reject_threshold: String,
    pub priority: String,
    pub escalation_role: String,
    pub is_automatic: bool,
    pub risk_below: String,
    pub author_has_role: String,
    pub resources_in_scope: String,
    pub agents: bool,
    pub has_window: bool,
    pub weekdays: Vec<String>,
    pub from_hour: String,
    pub until_hour: String,
    pub time_zone: String,
}

impl PolicyFields {
    /// Of a new policy.
    #[must_use]
    pub fn new() -> Self {
        let one = || "1".to_owned();
        Self {
            min_approvers: one(),
            reject_threshold: one(),
            risk_threshold: "0".to_owned(),
            priority: "NORMAL".to_owned(),
            from_hour: "0".to_owned(),
            until_hour: "24".to_owned(),
            time_zone: "UTC".to_owned(),
            ..Self::default()
        }
    }

    /// Of an existing policy.
    #[must_use]
    pub fn of(name: &str, rules: &PolicyRules) -> Self {
        let lines = |items: &[String]| items.join("\n");
        let automatic = rules.auto_approve_if.clone().unwrap_or_default();
        let mut fields = Self {
            name: name.to_owned(),
            task_types: lines(&rules.task_types),
            executors: lines(&rules.executors),
            targets: lines(&rules.targets),
            resource_patterns: lines(&rules.resource_patterns),
            risk_threshold: rules.risk_threshold.to_string(),
            min_approvers: rules.min_approvers.to_string(),
            required_roles: lines(&rules.required_roles),
            reviewers: lines(&rules.reviewers),
            reject_threshold: rules.reject_threshold.to_string(),
            priority: rule_text::priority(rules.priority).to_uppercase(),
            escalation_role: rules.escalation_role.clone().unwrap_or_default(),
            is_automatic: rules.auto_approve_if.is_some(),
            risk_below: automatic.risk_below.map_or_else(String::new, |below| below.to_string()),
            author_has_role: lines(&automatic.author_has_role),
            resources_in_scope: lines(&automatic.resources_in_scope),
            agents: automatic.agents,
            ..Self::new()
        };
        if let Some(window) = &rules.window {
            fields.has_window = true;
            fields.weekdays = window.weekdays.iter().map(ToString::to_string).collect();
            (fields.from_hour, fields.until_hour) = (window.hours.0.to_string(), window.hours.1.to_string());
            fields.time_zone.clone_from(&window.time_zone);
        }
        fields
    }

    /// The request that sets all of them. On failure, the pointer of a field that is not a number.
    pub fn request(&self) -> Result<PolicyRequest, &'static str> {
        let auto_approve_if = if self.is_automatic {
            let risk_below = Some(self.risk_below.trim()).filter(|text| !text.is_empty());
            Some(AutoApprove {
                risk_below: risk_below.map(|text| number(text, "/auto_approve_if/risk_below")).transpose()?,
                author_has_role: words(&self.author_has_role),
                resources_in_scope: words(&self.resources_in_scope),
                agents: self.agents,
            })
        } else {
            None
        };
        let window = if self.has_window {
            let is_chosen = |day: &Weekday| self.weekdays.contains(&day.to_string());
            let hours =
                (number(&self.from_hour, "/window/hours")?, number(&self.until_hour, "/window/hours")?);
            Some(TimeWindow {
                weekdays: WEEKDAYS.into_iter().filter(is_chosen).collect(),
                hours,
                time_zone: self.time_zone.clone(),
            })
        } else {
            None
        };
        let priority = match &*self.priority {
            "LOW" => Priority::Low,
            "HIGH" => Priority::High,
            "URGENT" => Priority::Urgent,
            _ => Priority::Normal,
        };
        let escalation_role = Some(self.escalation_role.clone()).filter(|role| !role.is_empty());
        Ok(PolicyRequest {
            name: Some(self.name.clone()),
            task_types: Some(words(&self.task_types)),
            executors: Some(words(&self.executors)),
            targets: Some(words(&self.targets)),
            resource_patterns: Some(words(&self.resource_patterns)),
            min_approvers: Some(number(&self.min_approvers, "/min_approvers")?),
            required_roles: Some(words(&self.required_roles)),
            reviewers: Some(words(&self.reviewers)),
            risk_threshold: Some(number(&self.risk_threshold, "/risk_threshold")?),
            auto_approve_if: Some(auto_approve_if),
            escalation_role: Some(escalation_role),
            reject_threshold: Some(number(&self.reject_threshold, "/reject_threshold")?),
            priority: Some(priority),
            window: Some(window),
            active: None,
        })
    }
}

const WEEKDAYS: [Weekday; 7] =
    [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

fn number<T: std::str::FromStr>(text: &str, pointer: &'static str) -> Result<T, &'static str> {
    text.trim().parse().map_err(|_| pointer)
}

/// The lines of a field, or words with commas between them.
pub(crate) fn words(text: &str) -> Vec<String> {
    let words = text.split(['\n', ',']).map(str::trim).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// One policy, or a new one.
#[derive(Debug, Clone, Template)]
#[template(path = "policy.html")]
pub struct PolicyPage {
    pub shell: Shell,
    /// Absent for a new one.
    pub policy: Option<Policy>,
    pub fields: PolicyFields,
    pub is_admin: bool,
    /// Whether the viewer may replay past tasks.
    pub can_replay: bool,
    pub pending: PendingChanges,
    pub problem: Option<Problem>,
    /// What the viewer typed into the form of the simulation.
    pub simulated_task: String,
}

impl PolicyPage {
    fn in_force(&self) -> Option<&PolicyRules> {
        self.policy.as_ref().filter(|policy| policy.active).map(|policy| &policy.rules)
    }

    fn draft(&self) -> Option<&PolicyRules> {
        let policy = self.policy.as_ref()?;
        if policy.active { policy.draft.as_ref() } else { Some(&policy.rules) }
    }

    fn sentence(&self, rules: &PolicyRules) -> String {
        rule_text::policy(rules)
    }

    fn further(&self, rules: &PolicyRules) -> String {
        rule_text::further(rules)
    }

    fn differences(&self) -> Vec<Difference> {
        match (self.in_force(), self.draft()) {
            (Some(active), Some(draft)) => rule_text::differences(active, draft),
            _ => Vec::new(),
        }
    }

    fn is_stale(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == "STALE")
    }

    fn action(&self) -> String {
        self.policy
            .as_ref()
            .map_or_else(|| "/policies/new".to_owned(), |policy| format!("/policies/{}", policy.policy_id))
    }

    fn weekdays(&self) -> Vec<(String, bool)> {
        let is_chosen = |day: &String| self.fields.weekdays.contains(day);
        WEEKDAYS.iter().map(ToString::to_string).map(|day| (day.clone(), is_chosen(&day))).collect()
    }

    fn priorities(&self) -> [(&'static str, &'static str, bool); 4] {
        let option = |value, label| (value, label, self.fields.priority == value);
        [option("LOW", "Low"), option("NORMAL", "Normal"), option("HIGH", "High"), option("URGENT", "Urgent")]
    }
}

/// What submitting a task would do.
#[derive(Debug, Clone, Template)]
#[template(path = "simulation.html")]
pub struct SimulationPage {
    pub shell: Shell,
    pub policy: Policy,
    /// What was simulated: the id of a task, or what was pasted.
    pub subject: String,
    /// With the latest version of the policy in force.
    pub with: Simulation,
    /// By the rules in force.
    pub without: Simulation,
}

impl SimulationPage {
    fn outcome(&self, simulation: &Simulation) -> String {
        outcome(simulation)
    }

    fn is_changed(&self) -> bool {
        let comparable = |simulation: &Simulation| {
            (simulation.outcome.clone(), simulation.requirements.clone(), simulation.reviewers.clone())
        };
        comparable(&self.with) != comparable(&self.without)
    }

    fn level(&self) -> String {
        level(&self.with)
    }

    fn points(&self, factor: &RiskFactor) -> String {
        format!("{:.1}", factor.contribution)
    }

    fn factor_name(&self, factor: &RiskFactor) -> String {
        factor.name.replace('_', " ")
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }

    /// `, also for bob`: whose requests the reviewer gets besides their own.
    fn on_behalf(&self, reviewer: &SimulatedReviewer) -> String {
        let others = reviewer.on_behalf_of.iter().filter(|who| **who != reviewer.reviewer_id);
        let others: Vec<String> = others.map(visible).collect();
        if others.is_empty() { String::new() } else { format!(", on behalf of {}", others.join(", ")) }
    }

    fn texts(&self, texts: &[String]) -> String {
        texts.iter().map(visible).collect::<Vec<_>>().join(", ")
    }
}

pub(crate) fn outcome(simulation: &Simulation) -> String {
    match &*simulation.outcome {
        "auto_approved" => "It would be approved automatically".to_owned(),
        "no_quorum" => "It could not be submitted: too few reviewers are left".to_owned(),
        _ => format!("{} would be needed", count(simulation.required_count as usize, "approval")),
    }
}

pub(crate) fn level(simulation: &Simulation) -> String {
    serde_json::to_value(simulation.risk.level)
        .ok()
        .and_then(|level| level.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The past tasks whose approvals a draft would change.
#[derive(Debug, Clone, Template)]
#[template(path = "replay.html")]
pub struct ReplayPage {
    pub shell: Shell,
    pub policy: Policy,
    pub replay: PolicyReplay,
    pub is_admin: bool,
}

impl ReplayPage {
    fn changed(&self) -> usize {
        self.replay.differs.len()
    }

    fn listed(&self) -> impl Iterator<Item = &ReplayedTask> {
        self.replay.differs.iter().take(MAX_LISTED)
    }

    fn omitted(&self) -> usize {
        self.replay.differs.len().saturating_sub(MAX_LISTED)
    }

    /// `12 of 340 decisions would change`.
    fn summary(&self) -> String {
        let replayed = count(usize::try_from(self.replay.replayed).unwrap_or(usize::MAX), "decision");
        match self.changed() {
            0 => format!("none of {replayed} would change"),
            changed => format!("{changed} of {replayed} would change"),
        }
    }

    /// Whether there is something to activate.
    fn has_draft(&self) -> bool {
        !self.policy.active || self.policy.draft.is_some()
    }

    fn short(&self, id: &str) -> String {
        short_id(id).to_owned()
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }

    fn name(&self) -> String {
        visible(&self.policy.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_the_rules_that_they_show() {
        let fields = PolicyFields {
            name: "weekends".to_owned(),
            resource_patterns: "database:prod-*\nqueue:*".to_owned(),
            is_automatic: true,
            risk_below: "25".to_owned(),
            author_has_role: "dba, on-call".to_owned(),
            agents: true,
            escalation_role: "on-call".to_owned(),
            has_window: true,
            weekdays: vec!["sat".to_owned(), "sun".to_owned()],
            ..PolicyFields::new()
        };
        let request = fields.request().expect("numbers");
        let rules = PolicyRules {
            task_types: request.task_types.clone().unwrap_or_default(),
            executors: request.executors.clone().unwrap_or_default(),
            targets: request.targets.clone().unwrap_or_default(),
            resource_patterns: request.resource_patterns.clone().unwrap_or_default(),
            min_approvers: request.min_approvers.unwrap_or_default(),
            required_roles: request.required_roles.clone().unwrap_or_default(),
            reviewers: request.reviewers.clone().unwrap_or_default(),
            risk_threshold: request.risk_threshold.unwrap_or_default(),
            auto_approve_if: request.auto_approve_if.clone().flatten(),
            escalation_role: request.escalation_role.clone().flatten(),
            reject_threshold: request.reject_threshold.unwrap_or_default(),
            priority: request.priority.unwrap_or(Priority::Low),
            window: request.window.clone().flatten(),
        };
        assert_eq!(rules.resource_patterns, ["database:prod-*", "queue:*"]);
        assert_eq!(rules.window.as_ref().map(|window| window.weekdays.len()), Some(2));
        let shown = PolicyFields::of("weekends", &rules);
        assert_eq!(shown.request(), Ok(request), "saving what is shown changes nothing");
    }

    #[test]
    fn what_is_not_a_number_names_its_field() {
        let wrong = |change: fn(&mut PolicyFields)| {
            let mut fields = PolicyFields { is_automatic: true, has_window: true, ..PolicyFields::new() };
            change(&mut fields);
            fields.request().map(|_| ())
        };
        assert_eq!(wrong(|fields| fields.min_approvers = "two".to_owned()), Err("/min_approvers"));
        assert_eq!(wrong(|fields| fields.risk_threshold = "-1".to_owned()), Err("/risk_threshold"));
        assert_eq!(wrong(|fields| fields.risk_below = "low".to_owned()), Err("/auto_approve_if/risk_below"));
        assert_eq!(wrong(|fields| fields.until_hour = "300".to_owned()), Err("/window/hours"));
        assert_eq!(wrong(|fields| fields.risk_below.clear()), Ok(()), "no condition");
    }
}
