//! Policies: which tasks they apply to, how many approvals they require, and when they approve automatically.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::window::TimeWindow;
use crate::glob::{self, Pattern, PatternSet};
use crate::people::{AuthorSet, People, User, UserId};
use crate::task::{AGENT_EXECUTOR, GATE_EXECUTOR, HTTP_EXECUTOR, Resource, ReviewSubject, ScopePart};
use crate::{InvalidField, Moment, Validator};

/// Executors whose tasks are never approved automatically: what they do is not known before it is done.
pub(super) const NEVER_AUTOMATIC: [&str; 3] = [HTTP_EXECUTOR, AGENT_EXECUTOR, GATE_EXECUTOR];
const MAX_APPROVERS: u32 = 50;
/// Limits each list of a policy.
const MAX_ENTRIES: usize = 200;

/// The name of the policy that applies if no other does.
pub const DEFAULT_POLICY_NAME: &str = "default";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    /// Patterns of task types; empty for all.
    #[serde(default)]
    pub task_types: Vec<String>,
    /// Patterns of executors; empty for all.
    #[serde(default)]
    pub executors: Vec<String>,
    /// Patterns of targets, of which one must match; empty for all.
    #[serde(default)]
    pub targets: Vec<String>,
    /// Patterns of declared and bound resources, of which one must match; empty for all.
    #[serde(default)]
    pub resource_patterns: Vec<Pattern>,
    /// How many different people must approve.
    #[serde(default = "default_count")]
    pub min_approvers: u32,
    /// Roles that must each be represented among the approvers.
    #[serde(default)]
    pub required_roles: Vec<String>,
    /// If not empty, exactly these people are asked.
    #[serde(default)]
    pub reviewers: Vec<UserId>,
    /// The lowest risk score that it applies to.
    #[serde(default)]
    pub risk_threshold: u8,
    #[serde(default)]
    pub auto_approve_if: Option<AutoApprove>,
    /// The role that requests escalate to if the reviewer has no manager.
    #[serde(default)]
    pub escalation_role: Option<String>,
    /// How many rejections reject the task.
    #[serde(default = "default_count")]
    pub reject_threshold: u32,
    #[serde(default)]
    pub priority: Priority,
    /// When it applies; always if none.
    #[serde(default)]
    pub window: Option<TimeWindow>,
}

const fn default_count() -> u32 {
    1
}

/// The versions of a policy: one that is active, a draft, or both. Stored as `{ active, draft }`, where a missing one is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PolicyVersions {
    Active { active: Policy, draft: Option<Box<Policy>> },
    Draft { active: (), draft: Policy },
}

impl PolicyVersions {
    pub const fn new(policy: Policy, is_active: bool) -> Self {
        if is_active {
            Self::Active { active: policy, draft: None }
        } else {
            Self::Draft { active: (), draft: policy }
        }
    }

    pub const fn active(&self) -> Option<&Policy> {
        match self {
            Self::Active { active, .. } => Some(active),
            Self::Draft { .. } => None,
        }
    }

    pub fn draft(&self) -> Option<&Policy> {
        match self {
            Self::Active { draft, .. } => draft.as_deref(),
            Self::Draft { draft, .. } => Some(draft),
        }
    }

    /// The draft if there is one, else the active version.
    pub fn latest(&self) -> &Policy {
        match self {
            Self::Active { active, draft } => draft.as_deref().unwrap_or(active),
            Self::Draft { draft, .. } => draft,
        }
    }
}

/// Conditions for automatic approval. All given conditions must hold; without any, nothing is approved automatically.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AutoApprove {
    /// The risk score is lower.
    pub risk_below: Option<u8>,
    /// The author has one of these roles.
    pub author_has_role: Vec<String>,
    /// Every resource matches one of these patterns.
    pub resources_in_scope: Vec<Pattern>,
    /// Also tasks that an agent wrote or changed.
    pub agents: bool,
}

impl AutoApprove {
    fn is_empty(&self) -> bool {
        Self { agents: false, ..self.clone() } == Self::default()
    }
}

/// The priority of an approval request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
    Urgent,
}

impl Priority {
    /// What the priority adds to the score of a request.
    pub const fn bonus(self) -> u32 {
        match self {
            Self::Low => 0,
            Self::Normal => 100,
            Self::High => 500,
            Self::Urgent => 1_000,
        }
    }

    /// The order of a request in the queue: the highest comes first.
    pub const fn score(self, risk: u8) -> u32 {
        risk as u32 * 10 + self.bonus()
    }

    #[must_use]
    pub const fn raised(self) -> Self {
        match self {
            Self::Low => Self::Normal,
            Self::Normal => Self::High,
            Self::High | Self::Urgent => Self::Urgent,
        }
    }
}

/// The built-in default policy: one approval by a reviewer, nothing automatic.
pub fn default_policy() -> Policy {
    Policy {
        name: DEFAULT_POLICY_NAME.to_owned(),
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

/// The patterns of a policy for what a task can touch.
struct Coverage<'a> {
    targets: PatternSet<'a>,
    resources: PatternSet<'a>,
}

impl Coverage<'_> {
    /// Whether they match a target, or all resources that its binding adds.
    fn includes(&self, part: &ScopePart, target: &str) -> bool {
        self.targets.matches(target)
            || (!part.resources.is_empty()
                && part.resources.iter().all(|resource| resource.matches_any(&self.resources)))
    }
}

/// The first target that none of these policies says anything about.
pub(super) fn uncovered_target<'a>(subject: &ReviewSubject<'a>, policies: &[&Policy]) -> Option<&'a str> {
    let coverages: Vec<Coverage<'_>> = policies.iter().map(|policy| policy.coverage()).collect();
    let parts = subject.scope.0.iter();
    let mut targets = parts.flat_map(|part| part.targets.iter().map(move |target| (part, target)));
    let is_covered = |part, target: &str| coverages.iter().any(|coverage| coverage.includes(part, target));
    targets.find(|(part, target)| !is_covered(part, target)).map(|(_, target)| target.as_str())
}

impl Policy {
    /// Why it does not apply to a task; none if it does.
    pub fn mismatch(&self, subject: &ReviewSubject<'_>, risk: u8, now: Moment) -> Option<String> {
        let config = subject.config;
        if !self.task_types.is_empty() && !glob::matches_any(&self.task_types, &config.task_type) {
            return Some(format!("it applies to tasks of type {}", self.task_types.join(", ")));
        }
        if !self.executors.is_empty() && !glob::matches_any(&self.executors, &config.executor) {
            return Some(format!("it applies to the executors {}", self.executors.join(", ")));
        }
        let has_target = || {
            subject.matches_any_target(&self.targets) || subject.claimants.matched_by(&self.targets).is_some()
        };
        if !self.targets.is_empty() && !has_target() {
            return Some(format!("no target matches {}", self.targets.join(", ")));
        }
        let patterns = &self.resource_patterns;
        if !patterns.is_empty() && !subject.matches_any_resource(patterns) {
            let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
            return Some(format!("no resource matches {}", patterns.join(", ")));
        }
        if risk < self.risk_threshold {
            return Some(format!("the risk of {risk} is below its threshold of {}", self.risk_threshold));
        }
        let outside = self.window.as_ref().filter(|window| !window.contains(now));
        outside.map(|window| format!("it applies {window}, not at this time"))
    }

    /// The first target that this policy says nothing about: neither its targets match it, nor its resource patterns all
    /// resources that are bound to it.
    pub fn uncovered_target<'a>(&self, subject: &ReviewSubject<'a>) -> Option<&'a str> {
        uncovered_target(subject, &[self])
    }

    /// Why this policy approves a task automatically, or why not. Automatic approval is a statement about effects: the policy must
    /// name everything that the task can touch.
    pub fn auto_approves(
        &self,
        subject: &ReviewSubject<'_>,
        risk: u8,
        authors: &AuthorSet,
        people: &People,
        by_agent: bool,
    ) -> Result<String, String> {
        let Some(conditions) = self.auto_approve_if.as_ref().filter(|conditions| !conditions.is_empty())
        else {
            return Err("it has no conditions for automatic approval".to_owned());
        };
        if by_agent && !conditions.agents {
            return Err(
                "an agent wrote or changed the task, and auto_approve_if.agents is not set".to_owned()
            );
        }
        if let Some(why) = self.why_never_automatic() {
            return Err(why.to_owned());
        }
        if let Some(target) = self.uncovered_target(subject) {
            return Err(format!("it does not name the target {target}"));
        }
        let patterns = PatternSet::of_resources(&self.resource_patterns);
        let is_named = |resource: &&Resource| resource.matches_any(&patterns);
        if let Some(resource) = subject.resources.iter().find(|resource| !is_named(resource)) {
            return Err(format!("its resource_patterns do not match {}", resource.name()));
        }
        let mut holds = vec!["it names every target and resource".to_owned()];
        match conditions.risk_below {
            Some(below) if risk >= below => return Err(format!("the risk of {risk} is not below {below}")),
            Some(below) => holds.push(format!("the risk of {risk} is below {below}")),
            None => {}
        }
        if !conditions.author_has_role.is_empty() {
            let roles = conditions.author_has_role.join(", ");
            // The roles of a sponsor do not extend to its agents.
            if by_agent {
                return Err(format!(
                    "an agent wrote or changed the task, and agents have none of the roles {roles}"
                ));
            }
            let has_one = |author: &User| {
                author.active && conditions.author_has_role.iter().any(|role| author.has_role(role))
            };
            // Somebody without the role must not use the name of somebody who has it.
            if let Some(author) = authors.iter().find(|author| !people.get(author).is_some_and(has_one)) {
                return Err(format!("the author {author} has none of the roles {roles}"));
            }
            holds.push(format!("each author has one of the roles {roles}"));
        }
        if !conditions.resources_in_scope.is_empty() {
            if subject.resources.is_empty() {
                return Err("the task has no resources, so none is in scope".to_owned());
            }
            let patterns = PatternSet::of_resources(&conditions.resources_in_scope);
            let in_scope = |resource: &&Resource| resource.matches_any(&patterns);
            let outside = subject.resources.iter().find(|resource| !in_scope(resource));
            if let Some(resource) = outside {
                return Err(format!("{} is out of scope", resource.name()));
            }
            holds.push("every resource is in scope".to_owned());
        }
        Ok(holds.join(" and "))
    }

    /// Why it approves nothing automatically although it has conditions for that; none if it can, or does not try.
    pub fn why_never_automatic(&self) -> Option<&'static str> {
        self.auto_approve_if.as_ref().filter(|conditions| !conditions.is_empty())?;
        let is_never = |executor: &String| NEVER_AUTOMATIC.contains(&executor.as_str());
        if self.targets.is_empty() && self.resource_patterns.is_empty() {
            Some("it names neither targets nor resource_patterns, so it says nothing about effects")
        } else if !self.executors.is_empty() && self.executors.iter().all(is_never) {
            Some("tasks of its executors are never approved automatically")
        } else {
            None
        }
    }

    fn coverage(&self) -> Coverage<'_> {
        Coverage {
            targets: PatternSet::new(&self.targets),
            resources: PatternSet::of_resources(&self.resource_patterns),
        }
    }

    /// All its patterns, by field.
    pub fn patterns(&self) -> Vec<(&'static str, Vec<&str>)> {
        fn of_names(patterns: &[String]) -> Vec<&str> {
            patterns.iter().map(String::as_str).collect()
        }
        fn of_resources(patterns: &[Pattern]) -> Vec<&str> {
            patterns.iter().map(Pattern::as_str).collect()
        }
        let in_scope = self.auto_approve_if.as_ref().map(|conditions| &*conditions.resources_in_scope);
        vec![
            ("task_types", of_names(&self.task_types)),
            ("executors", of_names(&self.executors)),
            ("targets", of_names(&self.targets)),
            ("resource_patterns", of_resources(&self.resource_patterns)),
            ("auto_approve_if.resources_in_scope", of_resources(in_scope.unwrap_or_default())),
        ]
    }

    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let fits = !self.name.trim().is_empty() && self.name.len() <= 128;
        input.check(fits, "name", "must be 1 to 128 bytes");
        for (path, count) in
            [("min_approvers", self.min_approvers), ("reject_threshold", self.reject_threshold)]
        {
            let fits = (1..=MAX_APPROVERS).contains(&count);
            input.check(fits, path, format_args!("must be between 1 and {MAX_APPROVERS}"));
        }
        input.check(self.risk_threshold <= 100, "risk_threshold", "must be between 0 and 100");
        let patterns = self.patterns();
        let mut lists =
            vec![("required_roles", self.required_roles.len()), ("reviewers", self.reviewers.len())];
        lists.extend(
            self.auto_approve_if
                .iter()
                .map(|conditions| ("auto_approve_if.author_has_role", conditions.author_has_role.len())),
        );
        lists.extend(patterns.iter().map(|(path, patterns)| (*path, patterns.len())));
        for (path, count) in lists {
            input.check(count <= MAX_ENTRIES, path, format_args!("must have at most {MAX_ENTRIES} entries"));
        }
        for (path, patterns) in patterns {
            input.check_patterns(path, patterns);
        }
        let distinct: BTreeSet<&UserId> = self.reviewers.iter().collect();
        let enough = self.reviewers.is_empty() || distinct.len() >= self.min_approvers as usize;
        input.check(enough, "min_approvers", "must not exceed the number of reviewers");
        // The default policy covers whatever no other policy covers, so it cannot be conditional.
        let is_conditional = !self.task_types.is_empty()
            || !self.executors.is_empty()
            || !self.targets.is_empty()
            || !self.resource_patterns.is_empty()
            || self.risk_threshold > 0
            || self.window.is_some();
        let detail = "must not be default for a policy with task_types, executors, targets, resource_patterns, risk_threshold or window";
        input.check(self.name != DEFAULT_POLICY_NAME || !is_conditional, "name", detail);
        input.errors.extend(self.window.as_ref().and_then(TimeWindow::validate));
        input.errors
    }
}
