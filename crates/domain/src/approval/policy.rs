//! Policies: which tasks they are about, how many people they want, and when nobody is needed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::window::Window;
use crate::glob::{self, Pattern};
use crate::people::{User, UserId};
use crate::task::{Config, Resource};
use crate::{Invalid, Moment};

/// Approvers that a policy may ask for.
const MOST_APPROVERS: u32 = 50;
/// Entries of each of its lists.
const MOST_ENTRIES: usize = 200;

/// The name of the policy that counts if no other does.
pub const DEFAULT: &str = "default";

/// What a policy asks for, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// A name for people.
    pub name: String,
    /// Types of tasks; none: all.
    #[serde(default)]
    pub task_types: Vec<String>,
    /// Patterns of resources; none: all.
    #[serde(default)]
    pub resource_patterns: Vec<Pattern>,
    /// How many different people must agree.
    #[serde(default = "one")]
    pub min_approvers: u32,
    /// Roles of which each must be represented.
    #[serde(default)]
    pub required_roles: Vec<String>,
    /// Exactly these are asked, if there are any.
    #[serde(default)]
    pub reviewers: Vec<UserId>,
    /// It applies from this risk on.
    #[serde(default)]
    pub risk_threshold: u8,
    /// When nobody needs to be asked.
    #[serde(default)]
    pub auto_approve_if: Option<AutoApprove>,
    /// Who is asked when reviewers without a manager do not answer.
    #[serde(default)]
    pub escalation_role: Option<String>,
    /// How many must say no.
    #[serde(default = "one")]
    pub reject_threshold: u32,
    /// How urgent its requests are.
    #[serde(default)]
    pub priority: Priority,
    /// When it applies; outside it does not match.
    #[serde(default)]
    pub window: Option<Window>,
}

const fn one() -> u32 {
    1
}

/// Conditions under which nobody needs to be asked. All that are given must hold; if none is given, it never does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AutoApprove {
    /// The risk is below this.
    pub risk_below: Option<u8>,
    /// The author has one of these roles.
    pub author_has_role: Vec<String>,
    /// Every resource matches one of these.
    pub resources_in_scope: Vec<Pattern>,
}

/// How urgent a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Priority {
    /// Not at all.
    Low,
    /// As usual.
    #[default]
    Normal,
    /// More than usual.
    High,
    /// At once.
    Urgent,
}

impl Priority {
    /// What it adds to the place of a request in the queue.
    #[must_use]
    pub const fn bonus(self) -> u32 {
        match self {
            Self::Low => 0,
            Self::Normal => 100,
            Self::High => 500,
            Self::Urgent => 1_000,
        }
    }

    /// The place of a request in the queue: the highest comes first.
    #[must_use]
    pub const fn score(self, risk: u8) -> u32 {
        risk as u32 * 10 + self.bonus()
    }

    /// The next more urgent one.
    #[must_use]
    pub const fn raised(self) -> Self {
        match self {
            Self::Low => Self::Normal,
            Self::Normal => Self::High,
            Self::High | Self::Urgent => Self::Urgent,
        }
    }
}

/// The policy for tasks that no other is about, as shipped: one reviewer, nothing automatic.
#[must_use]
pub fn default_policy() -> Policy {
    Policy {
        name: DEFAULT.to_owned(),
        task_types: Vec::new(),
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

impl Policy {
    /// Why it is not about a task; nothing if it is.
    #[must_use]
    pub fn why_not(&self, config: &Config, risk: u8, now: Moment) -> Option<String> {
        if !self.task_types.is_empty()
            && !self.task_types.iter().any(|of| glob::matches(of, &config.task_type))
        {
            return Some(format!("it is about tasks of type {}", self.task_types.join(", ")));
        }
        if !self.resource_patterns.is_empty()
            && !config.resources.iter().any(|resource| in_scope(&self.resource_patterns, resource))
        {
            let patterns: Vec<&str> = self.resource_patterns.iter().map(Pattern::as_str).collect();
            return Some(format!("no resource matches {}", patterns.join(", ")));
        }
        if risk < self.risk_threshold {
            return Some(format!("the risk of {risk} is below its threshold of {}", self.risk_threshold));
        }
        let outside = self.window.as_ref().filter(|window| !window.contains(now));
        outside.map(|window| format!("it applies {window}, and not now"))
    }

    /// Why nobody needs to be asked, as far as this policy goes; or why somebody does. Without a risk it counts as low enough.
    pub fn auto_approves(
        &self,
        config: &Config,
        risk: Option<u8>,
        author: Option<&User>,
    ) -> Result<String, String> {
        let Some(conditions) =
            self.auto_approve_if.as_ref().filter(|given| **given != AutoApprove::default())
        else {
            return Err("it never approves by itself".to_owned());
        };
        let mut holds = Vec::new();
        match (conditions.risk_below, risk) {
            (Some(below), Some(risk)) if risk >= below => {
                return Err(format!("the risk of {risk} is not below {below}"));
            }
            (Some(below), Some(risk)) => holds.push(format!("the risk of {risk} is below {below}")),
            (Some(_), None) => holds.push("the risk is low".to_owned()),
            (None, _) => {}
        }
        if !conditions.author_has_role.is_empty() {
            let roles = conditions.author_has_role.join(", ");
            let has_one = |author: &&User| {
                author.active && conditions.author_has_role.iter().any(|role| author.has(role))
            };
            if author.filter(has_one).is_none() {
                return Err(format!("the author has none of the roles {roles}"));
            }
            holds.push(format!("the author has one of the roles {roles}"));
        }
        if !conditions.resources_in_scope.is_empty() {
            if config.resources.is_empty() {
                return Err("it touches no resource, so none is in scope".to_owned());
            }
            let outside =
                config.resources.iter().find(|resource| !in_scope(&conditions.resources_in_scope, resource));
            if let Some(resource) = outside {
                return Err(format!("{} is out of scope", resource.name()));
            }
            holds.push("every resource is in scope".to_owned());
        }
        Ok(holds.join(" and "))
    }

    /// Everything about it that cannot be.
    #[must_use]
    pub fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, pointer: &str, detail: String| {
            if !holds {
                faults.push(Invalid::at(pointer, detail));
            }
        };
        check(
            !self.name.trim().is_empty() && self.name.len() <= 128,
            "/name",
            "must be 1 to 128 bytes".to_owned(),
        );
        for (pointer, count) in
            [("/min_approvers", self.min_approvers), ("/reject_threshold", self.reject_threshold)]
        {
            let fits = (1..=MOST_APPROVERS).contains(&count);
            check(fits, pointer, format!("must be between 1 and {MOST_APPROVERS}"));
        }
        check(self.risk_threshold <= 100, "/risk_threshold", "must be between 0 and 100".to_owned());
        let lists = [
            ("/task_types", self.task_types.len()),
            ("/resource_patterns", self.resource_patterns.len()),
            ("/required_roles", self.required_roles.len()),
            ("/reviewers", self.reviewers.len()),
        ];
        for (pointer, count) in lists {
            check(count <= MOST_ENTRIES, pointer, format!("must have at most {MOST_ENTRIES} entries"));
        }
        let distinct: BTreeSet<&UserId> = self.reviewers.iter().collect();
        let enough = self.reviewers.is_empty() || distinct.len() >= self.min_approvers as usize;
        check(enough, "/min_approvers", "must not be more than there are reviewers".to_owned());
        // The policy for what no other is about is about all of it.
        let conditions = !self.task_types.is_empty()
            || !self.resource_patterns.is_empty()
            || self.risk_threshold > 0
            || self.window.is_some();
        let unconditional =
            "must not be default for a policy with task_types, resource_patterns, risk_threshold or window";
        check(self.name != DEFAULT || !conditions, "/name", unconditional.to_owned());
        if let Some(fault) = self.window.as_ref().and_then(Window::fault) {
            faults.push(fault);
        }
        faults
    }
}

fn in_scope(patterns: &[Pattern], resource: &Resource) -> bool {
    patterns.iter().any(|pattern| pattern.matches(&resource.resource_type, &resource.id))
}
