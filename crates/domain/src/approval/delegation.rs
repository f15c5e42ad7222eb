//! Delegation: whoever is away says who stands in, for what and for how long. Chains are followed when people are asked.
//!
//! Depth first, bounded, and never in a circle: where a way ends, whoever was last on it and still works here is asked.

use serde::{Deserialize, Serialize};

use crate::glob::{self, Pattern};
use crate::people::{People, UserId};
use crate::task::Config;
use crate::{Invalid, Moment};

/// Steps that a chain may have.
pub const DEEPEST: usize = 10;

/// Who stands in for whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// What it is known by.
    pub delegation_id: String,
    /// Whose requests.
    pub owner_id: UserId,
    /// Go to whom, or follow whom.
    pub delegate_to: UserId,
    /// Which of both.
    pub kind: Kind,
    /// For which tasks.
    pub conditions: Conditions,
    /// Whether the delegate's own delegations count as well.
    pub cascade: bool,
    /// Whether it is in force at all.
    pub active: bool,
    /// From when on; always, if nothing is said.
    pub valid_from: Option<Moment>,
    /// Until before when; forever, if nothing is said.
    pub valid_until: Option<Moment>,
}

/// What a delegation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DelegationKind))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Somebody else is asked.
    #[default]
    Delegate,
    /// The owner agrees when somebody else does, who is asked as well.
    Follow,
}

/// For which tasks; all that are given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DelegationConditions))]
#[serde(deny_unknown_fields, default)]
pub struct Conditions {
    /// Types of tasks; none: all.
    pub task_types: Vec<String>,
    /// Only above this risk.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub risk_above: Option<u8>,
    /// Patterns of resources; none: all.
    pub resource_patterns: Vec<Pattern>,
}

/// One step of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DelegationStep))]
pub struct Step {
    /// Who hands on.
    pub from: UserId,
    /// To whom.
    pub to: UserId,
    /// By which delegation.
    pub delegation_id: String,
}

/// Where a chain led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Who is asked.
    pub reviewer: UserId,
    /// How it came to that.
    pub chain: Vec<Step>,
    /// What was passed by on the way, and why.
    pub passed_by: Vec<String>,
}

/// What chains are followed by.
#[derive(Debug, Clone, Copy)]
pub struct Ways<'a> {
    /// Everybody.
    pub people: &'a People,
    /// Every delegation, in order: of several that fit, the first that leads to somebody counts.
    pub delegations: &'a [Delegation],
    /// The task in question.
    pub config: &'a Config,
    /// Its risk.
    pub risk: u8,
    /// When people are asked.
    pub now: Moment,
}

impl Delegation {
    /// Why it does not count for a task; nothing if it does.
    fn why_not(&self, ways: &Ways<'_>) -> Option<String> {
        let Ways { config, risk, now, .. } = *ways;
        let given = &self.conditions;
        if !self.active {
            return Some("is switched off".to_owned());
        }
        if self.valid_from.is_some_and(|from| now < from) {
            return Some("has not begun".to_owned());
        }
        if self.valid_until.is_some_and(|until| now >= until) {
            return Some("has expired".to_owned());
        }
        if !given.task_types.is_empty()
            && !given.task_types.iter().any(|of| glob::matches(of, &config.task_type))
        {
            return Some(format!("is not about tasks of type {}", config.task_type));
        }
        if given.risk_above.is_some_and(|above| risk <= above) {
            return Some(format!("does not count for a risk of {risk}"));
        }
        let in_scope = |pattern: &Pattern| {
            config.resources.iter().any(|resource| pattern.matches(&resource.resource_type, &resource.id))
        };
        let in_scope = given.resource_patterns.is_empty() || given.resource_patterns.iter().any(in_scope);
        (!in_scope).then(|| "is about other resources".to_owned())
    }

    /// Everything about it that cannot be.
    #[must_use]
    pub fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        if self.owner_id == self.delegate_to {
            faults.push(Invalid::at("/delegate_to", "must be somebody else"));
        }
        if self.conditions.risk_above.is_some_and(|above| above > 100) {
            faults.push(Invalid::at("/conditions/risk_above", "must be between 0 and 100"));
        }
        if let (Some(from), Some(until)) = (self.valid_from, self.valid_until)
            && from >= until
        {
            faults.push(Invalid::at("/valid_until", "must be later than valid_from"));
        }
        faults
    }
}

/// Who is asked in somebody's place: itself, if nobody stands in.
#[must_use]
pub fn resolve(owner: &UserId, ways: &Ways<'_>) -> Resolved {
    let mut resolved = Resolved { reviewer: owner.clone(), chain: Vec::new(), passed_by: Vec::new() };
    while resolved.chain.len() < DEEPEST {
        let at = resolved.reviewer.clone();
        let Some(step) = next_step(&at, ways, &mut resolved) else { return resolved };
        let goes_on = step.1;
        resolved.reviewer = step.0.to.clone();
        resolved.chain.push(step.0);
        if !goes_on {
            return resolved;
        }
    }
    resolved.passed_by.push(format!("the chain ends with {} after {DEEPEST} steps", resolved.reviewer));
    resolved
}

/// The next step from somebody, and whether it may go on from there.
fn next_step(at: &UserId, ways: &Ways<'_>, so_far: &mut Resolved) -> Option<(Step, bool)> {
    let own = |delegation: &&Delegation| delegation.owner_id == *at && delegation.kind == Kind::Delegate;
    for delegation in ways.delegations.iter().filter(own) {
        let to = &delegation.delegate_to;
        let on_the_way = so_far.chain.iter().any(|step| step.from == *to) || to == at;
        let why = delegation.why_not(ways).or_else(|| {
            if on_the_way {
                Some("leads in a circle".to_owned())
            } else if ways.people.active(to).is_none() {
                Some(format!("leads to {to}, who is not active"))
            } else {
                None
            }
        });
        match why {
            Some(why) => so_far.passed_by.push(format!("the delegation from {at} to {to} {why}")),
            None => {
                let step = Step {
                    from: at.clone(),
                    to: to.clone(),
                    delegation_id: delegation.delegation_id.clone(),
                };
                return Some((step, delegation.cascade));
            }
        }
    }
    None
}

/// Whom somebody follows: agrees when they agree.
#[must_use]
pub fn follows(owner: &UserId, ways: &Ways<'_>) -> Option<UserId> {
    let own = |delegation: &&Delegation| delegation.owner_id == *owner && delegation.kind == Kind::Follow;
    let counts = |delegation: &&Delegation| {
        delegation.why_not(ways).is_none() && ways.people.active(&delegation.delegate_to).is_some()
    };
    ways.delegations.iter().filter(own).find(counts).map(|delegation| delegation.delegate_to.clone())
}
