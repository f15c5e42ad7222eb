//! Delegation: who decides in a person's place, for which tasks and how long.
//!
//! Chains are followed when reviewers are chosen. They are bounded and never circular: where a chain cannot continue, its last
//! active person is asked.

use serde::{Deserialize, Serialize};

use crate::glob::{self, Pattern};
use crate::people::{People, User, UserId};
use crate::task::ReviewSubject;
use crate::{InvalidField, Moment, Validator};

/// The longest delegation chain that is followed, in steps.
pub const MAX_CHAIN_LENGTH: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    pub delegation_id: String,
    /// The person whose requests are delegated.
    pub owner_id: UserId,
    pub delegate_to: UserId,
    pub kind: DelegationKind,
    pub conditions: DelegationConditions,
    /// Whether the delegate's own delegations apply as well.
    pub cascade: bool,
    pub active: bool,
    pub created_at: Moment,
    /// Inclusive; unbounded if none.
    pub valid_from: Option<Moment>,
    /// Exclusive; unbounded if none.
    pub valid_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DelegationKind {
    /// The delegate is asked instead of the owner.
    #[default]
    Delegate,
    /// Both are asked, and the owner approves automatically when the other approves.
    Follow,
}

/// The tasks that a delegation applies to. All given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DelegationConditions {
    /// Patterns of task types; empty for all.
    pub task_types: Vec<String>,
    /// Only tasks with a higher risk score.
    pub risk_above: Option<u8>,
    /// Patterns of resources, of which one must match; empty for all.
    pub resource_patterns: Vec<Pattern>,
}

/// One step of a delegation chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegationStep {
    pub from: UserId,
    pub to: UserId,
    pub delegation_id: String,
}

/// The reviewer at the end of a delegation chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedReviewer {
    pub reviewer: UserId,
    pub chain: Vec<DelegationStep>,
    /// Delegations that were skipped, each with the reason.
    pub skipped: Vec<String>,
}

/// What delegations are evaluated against.
#[derive(Debug, Clone, Copy)]
pub struct DelegationContext<'a> {
    pub people: &'a People,
    /// In order: the first applicable delegation of a person counts.
    pub delegations: &'a [Delegation],
    pub subject: &'a ReviewSubject<'a>,
    /// The risk score of the task.
    pub risk: u8,
    pub now: Moment,
}

impl ResolvedReviewer {
    /// The next step from the present reviewer, and whether the chain may continue after it.
    fn next_step(&mut self, context: &DelegationContext<'_>) -> Option<(DelegationStep, bool)> {
        let from = self.reviewer.clone();
        let own = |delegation: &&Delegation| {
            delegation.owner_id == from && delegation.kind == DelegationKind::Delegate
        };
        for delegation in context.delegations.iter().filter(own) {
            let to = &delegation.delegate_to;
            let is_circular = *to == from || self.chain.iter().any(|step| step.from == *to);
            let is_inactive = context.people.active(to).is_none();
            let is_reviewer = context.people.get(to).is_some_and(User::is_reviewer);
            let mismatch = delegation
                .mismatch(context)
                .or_else(|| is_circular.then(|| "is circular".to_owned()))
                .or_else(|| is_inactive.then(|| format!("is skipped: {to} is not active")))
                .or_else(|| {
                    (!is_reviewer)
                        .then(|| format!("is skipped: {to} has neither the role reviewer nor admin"))
                });
            let Some(reason) = mismatch else {
                let delegation_id = delegation.delegation_id.clone();
                return Some((DelegationStep { from, to: to.clone(), delegation_id }, delegation.cascade));
            };
            self.skipped.push(format!("the delegation from {from} to {to} {reason}"));
        }
        None
    }
}

impl Delegation {
    /// Why it does not apply to a task; none if it does. The text follows the name of the delegation.
    fn mismatch(&self, context: &DelegationContext<'_>) -> Option<String> {
        let DelegationContext { subject, risk, now, .. } = *context;
        let task_type = &subject.config.task_type;
        let conditions = &self.conditions;
        if !self.active {
            return Some("is not active".to_owned());
        }
        if self.valid_from.is_some_and(|from| now < from) {
            return Some("is not valid yet".to_owned());
        }
        if self.valid_until.is_some_and(|until| now >= until) {
            return Some("has expired".to_owned());
        }
        if !conditions.task_types.is_empty() && !glob::matches_any(&conditions.task_types, task_type) {
            return Some(format!("does not apply to tasks of type {task_type}"));
        }
        if let Some(above) = conditions.risk_above.filter(|above| risk <= *above) {
            return Some(format!("applies only above a risk of {above}; the risk is {risk}"));
        }
        let patterns = &conditions.resource_patterns;
        let in_scope = patterns.is_empty() || subject.matches_any_resource(patterns);
        (!in_scope).then(|| "does not apply to these resources".to_owned())
    }

    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let is_other = self.owner_id != self.delegate_to;
        input.check(is_other, "delegate_to", "must be another person than the owner");
        let in_range = self.conditions.risk_above.is_none_or(|above| above <= 100);
        input.check(in_range, "conditions.risk_above", "must be between 0 and 100");
        let is_later = self.valid_until.is_none_or(|until| self.valid_from.is_none_or(|from| from < until));
        input.check(is_later, "valid_until", "must be later than valid_from");
        let DelegationConditions { task_types, resource_patterns, .. } = &self.conditions;
        input.check_patterns("conditions.task_types", task_types.iter().map(String::as_str));
        input.check_patterns("conditions.resource_patterns", resource_patterns.iter().map(Pattern::as_str));
        input.errors
    }
}

/// Follows the delegations of a person. Without any, the person is the reviewer.
pub fn resolve(owner: &UserId, context: &DelegationContext<'_>) -> ResolvedReviewer {
    let mut resolved = ResolvedReviewer { reviewer: owner.clone(), chain: Vec::new(), skipped: Vec::new() };
    while resolved.chain.len() < MAX_CHAIN_LENGTH {
        let Some((step, cascade)) = resolved.next_step(context) else { return resolved };
        resolved.reviewer = step.to.clone();
        resolved.chain.push(step);
        if !cascade {
            return resolved;
        }
    }
    resolved
        .skipped
        .push(format!("the delegation chain ends with {} after {MAX_CHAIN_LENGTH} steps", resolved.reviewer));
    resolved
}

/// The person whose approval somebody follows.
pub fn followed_reviewer(owner: &UserId, context: &DelegationContext<'_>) -> Option<UserId> {
    let own =
        |delegation: &&Delegation| delegation.owner_id == *owner && delegation.kind == DelegationKind::Follow;
    let applies = |delegation: &&Delegation| {
        delegation.mismatch(context).is_none() && context.people.active(&delegation.delegate_to).is_some()
    };
    context.delegations.iter().filter(own).find(applies).map(|delegation| delegation.delegate_to.clone())
}
