//! Reviewer assignment: which policies apply to a task, whom they ask, and why. Submission and simulation use the same function,
//! and the result explains itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::delegation::{self, Delegation, DelegationContext, DelegationStep, ResolvedReviewer};
use super::policy::{Policy, Priority};
use super::quorum::Requirement;
use crate::Moment;
use crate::people::{AuthorSet, People, REVIEWER, User, UserId};
use crate::task::Config;

/// Everything that an assignment depends on.
#[derive(Debug, Clone, Copy)]
pub struct AssignmentInput<'a> {
    pub config: &'a Config,
    /// The risk score.
    pub risk: u8,
    /// None if the author's roles must not count, as for tasks of agents.
    pub author: Option<&'a User>,
    pub author_set: &'a AuthorSet,
    pub people: &'a People,
    /// The active policies, without the default policy.
    pub policies: &'a [Policy],
    /// Applies if no other policy does.
    pub default_policy: &'a Policy,
    /// In order of precedence.
    pub delegations: &'a [Delegation],
    /// There is a backlog and the task has level LOW: automatic approval ignores the risk limits of the policies.
    pub auto_approve_low_risk: bool,
    /// Never approve automatically: the preview has errors, or differs from what was approved.
    pub requires_human: bool,
    pub now: Moment,
}

impl<'a> AssignmentInput<'a> {
    const fn delegation_context(&self) -> DelegationContext<'a> {
        let Self { people, delegations, config, risk, now, .. } = *self;
        DelegationContext { people, delegations, config, risk, now }
    }
}

/// A policy that was considered for a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsideredPolicy {
    /// The name of the policy.
    pub policy: String,
    pub applies: bool,
    /// Why it applies, or why not.
    pub why: String,
}

/// A person who is asked to decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignee {
    pub reviewer_id: UserId,
    pub name: String,
    /// The names of the policies that require this reviewer.
    pub policies: Vec<String>,
    /// The people whom the policies name and who delegated to the reviewer; the reviewer itself if named directly.
    pub on_behalf_of: BTreeSet<UserId>,
    /// The shortest delegation chain that leads to the reviewer.
    pub delegation_chain: Vec<DelegationStep>,
    /// The reviewer whose approval this one follows.
    pub follows: Option<UserId>,
    pub priority: Priority,
    /// Why this reviewer was chosen, one text per policy.
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Assignment {
    pub considered_policies: Vec<ConsideredPolicy>,
    /// Why no approval is required, if none is.
    pub auto_approved: Option<String>,
    /// One for each applicable policy; empty if no approval is required.
    pub requirements: Vec<Requirement>,
    pub assignees: Vec<Assignee>,
    /// People and delegations that were skipped, each with the reason.
    pub skipped: Vec<String>,
}

/// Too few people can decide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy {policy} cannot be satisfied: {reason}. Ask an administrator to add reviewers or to change the policy."
)]
pub struct QuorumUnreachable {
    pub policy: String,
    pub reason: String,
    /// People and delegations that were skipped, each with the reason.
    pub skipped: Vec<String>,
}

/// Chooses the reviewers of a task. Fails if too few people can decide.
pub fn assign(input: &AssignmentInput<'_>) -> Result<Assignment, QuorumUnreachable> {
    let (assignment, unreachable) = assign_available(input);
    match unreachable {
        None => Ok(assignment),
        Some((policy, reason)) => Err(QuorumUnreachable { policy, reason, skipped: assignment.skipped }),
    }
}

/// Chooses the available reviewers even if they are too few, for tasks that must go back to review. What is missing is added
/// to the skipped texts.
pub fn assign_best_effort(input: &AssignmentInput<'_>) -> Assignment {
    let (mut assignment, unreachable) = assign_available(input);
    if let Some((policy, reason)) = unreachable {
        assignment.skipped.push(format!("policy {policy} cannot be satisfied at present: {reason}"));
    }
    assignment
}

/// The assignment, and the name of the first policy that cannot be satisfied with the reason.
fn assign_available(input: &AssignmentInput<'_>) -> (Assignment, Option<(String, String)>) {
    let (applicable, considered) = applicable_policies(input);
    let auto_approved = auto_approval(input, &applicable);
    let mut assignment =
        Assignment { considered_policies: considered, auto_approved, ..Assignment::default() };
    let mut unreachable = None;
    if assignment.auto_approved.is_some() {
        return (assignment, unreachable);
    }
    let mut assignees: BTreeMap<UserId, Assignee> = BTreeMap::new();
    for policy in applicable {
        let requirement = assign_policy(input, policy, &mut assignees, &mut assignment.skipped);
        unreachable = unreachable.or_else(|| Some((policy.name.clone(), requirement.unreachable_reason()?)));
        assignment.requirements.push(requirement);
    }
    let reviewers: BTreeSet<UserId> = assignees.keys().cloned().collect();
    assignment.assignees = assignees.into_values().collect();
    let context = input.delegation_context();
    for assignee in &mut assignment.assignees {
        // Following has an effect only if the followed person is asked as well.
        assignee.follows = delegation::followed_reviewer(&assignee.reviewer_id, &context)
            .filter(|leader| reviewers.contains(leader) && *leader != assignee.reviewer_id);
    }
    (assignment, unreachable)
}

fn applicable_policies<'a>(input: &AssignmentInput<'a>) -> (Vec<&'a Policy>, Vec<ConsideredPolicy>) {
    let (mut applicable, mut considered) = (Vec::new(), Vec::new());
    for policy in input.policies {
        let mismatch = policy.mismatch(input.config, input.risk, input.now);
        let applies = mismatch.is_none();
        if applies {
            applicable.push(policy);
        }
        let why = mismatch.unwrap_or_else(|| "task type, resources, risk and time match".to_owned());
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies, why });
    }
    if applicable.is_empty() {
        let policy = input.default_policy;
        applicable.push(policy);
        let why = "no other policy applies".to_owned();
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies: true, why });
    }
    (applicable, considered)
}

/// Why no approval is required: every applicable policy must approve automatically.
///
/// In a backlog, tasks of level LOW are approved automatically as well, if every applicable policy has conditions for automatic
/// approval and all of them hold, except for the risk limit. A policy without such conditions still requires approvals.
fn auto_approval(input: &AssignmentInput<'_>, applicable: &[&Policy]) -> Option<String> {
    if input.requires_human {
        return None;
    }
    let all_approve = |approves: &dyn Fn(&Policy) -> Result<String, String>| {
        let mut reasons = Vec::new();
        for policy in applicable {
            reasons.push(format!("{}: {}", policy.name, approves(policy).ok()?));
        }
        Some(reasons.join("; "))
    };
    let AssignmentInput { config, risk, author, auto_approve_low_risk, .. } = *input;
    all_approve(&|policy| policy.auto_approves(config, Some(risk), author)).or_else(|| {
        let reasons = auto_approve_low_risk
            .then(|| all_approve(&|policy| policy.auto_approves(config, None, author)))??;
        Some(format!("approved automatically at level LOW because of a backlog of requests: {reasons}"))
    })
}

/// The people whom a policy asks, before delegation, each with the reason.
fn named_reviewers<'a>(input: &AssignmentInput<'a>, policy: &'a Policy) -> BTreeMap<&'a UserId, String> {
    let mut named = BTreeMap::new();
    if !policy.reviewers.is_empty() {
        for id in &policy.reviewers {
            named.insert(id, format!("policy {} names {id} as reviewer", policy.name));
        }
        return named;
    }
    let roles: Vec<&str> = match policy.required_roles.as_slice() {
        [] => vec![REVIEWER],
        roles => roles.iter().map(String::as_str).collect(),
    };
    for role in roles {
        for user in input.people.with_role(role) {
            let reason = format!("policy {} requires role {role}, which {} has", policy.name, user.user_id);
            named.entry(&user.user_id).or_insert(reason);
        }
    }
    named
}

/// Adds the reviewers of a policy, and returns its requirement.
fn assign_policy(
    input: &AssignmentInput<'_>,
    policy: &Policy,
    assignees: &mut BTreeMap<UserId, Assignee>,
    skipped: &mut Vec<String>,
) -> Requirement {
    let context = input.delegation_context();
    let mut requirement = Requirement::of(policy);
    for (named, reason) in named_reviewers(input, policy) {
        let ResolvedReviewer { reviewer, chain, skipped: skipped_delegations } =
            delegation::resolve(named, &context);
        skipped.extend(skipped_delegations);
        if let Some(reason) = input.author_set.reason(&reviewer) {
            skipped.push(format!("{reviewer} cannot decide on this task: {reviewer} {reason}"));
            continue;
        }
        let Some(user) = input.people.active(&reviewer) else {
            skipped.push(format!("{reviewer} is not active"));
            continue;
        };
        // An author must not pass on its own roles by delegating.
        let by_author = input.author_set.contains(named)
            || chain.iter().any(|step| input.author_set.contains(&step.from));
        let roles = [Some(named).filter(|_| !by_author), Some(&reviewer)]
            .into_iter()
            .flatten()
            .filter_map(|id| input.people.get(id))
            .flat_map(|user| user.roles.iter().cloned());
        requirement.add_reviewer(reviewer.clone(), roles);
        let assignee = assignees.entry(reviewer.clone()).or_insert_with(|| Assignee {
            reviewer_id: reviewer,
            name: user.name.clone(),
            policies: Vec::new(),
            on_behalf_of: BTreeSet::new(),
            delegation_chain: chain.clone(),
            follows: None,
            priority: policy.priority,
            reasons: Vec::new(),
        });
        if !assignee.policies.contains(&policy.name) {
            assignee.policies.push(policy.name.clone());
        }
        assignee.on_behalf_of.insert(named.clone());
        assignee.priority = assignee.priority.max(policy.priority);
        if chain.len() < assignee.delegation_chain.len() {
            assignee.delegation_chain = chain.clone();
        }
        let reason =
            chain.last().map_or_else(|| reason.clone(), |last| format!("{reason}; delegated to {}", last.to));
        if !assignee.reasons.contains(&reason) {
            assignee.reasons.push(reason);
        }
    }
    requirement
}
