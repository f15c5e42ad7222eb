//! Reviewer assignment: which policies apply to a task, whom they ask, and why. Submission and simulation use the same function,
//! and the result explains itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::delegation::{self, Delegation, DelegationContext, DelegationStep, ResolvedReviewer};
use super::policy::{self, NEVER_AUTOMATIC, Policy, Priority};
use super::quorum::{NoApprovers, Requirement, min_approvals};
use crate::Moment;
use crate::independence::{Dependence, Period};
use crate::people::{AuthorSet, People, REVIEWER, UserId};
use crate::task::{AGENT_EXECUTOR, Preview, ReviewSubject};

/// Everything that an assignment depends on.
#[derive(Debug, Clone, Copy)]
pub struct AssignmentInput<'a> {
    pub subject: &'a ReviewSubject<'a>,
    pub preview: &'a Preview,
    /// The risk score.
    pub risk: u8,
    pub author_set: &'a AuthorSet,
    pub people: &'a People,
    /// The active policies, without the default policy.
    pub policies: &'a [Policy],
    /// Applies if no other policy does.
    pub default_policy: &'a Policy,
    /// In order of precedence.
    pub delegations: &'a [Delegation],
    /// An agent wrote or changed the task.
    pub by_agent: bool,
    /// Recent changes of what decides about automatic approval.
    pub rule_changes: &'a [RuleChange],
    /// Never approve automatically: the preview or the scope differs from what was approved.
    pub requires_human: bool,
    pub now: Moment,
}

impl<'a> AssignmentInput<'a> {
    const fn delegation_context(&self) -> DelegationContext<'a> {
        let Self { people, delegations, subject, risk, now, .. } = *self;
        DelegationContext { people, delegations, subject, risk, now }
    }
}

/// A change of a policy, a registered resource, a threshold or a flag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleChange {
    /// For people, such as `policy.activate documentation`.
    pub what: String,
    pub by: UserId,
    pub at: Moment,
}

/// How long a change of the rules keeps its author from automatic approval.
pub const RULE_CHANGE_WINDOW_MS: u64 = 7 * 86_400_000;

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
    /// Why approvals are required although some policy approves automatically.
    pub not_automatic: Vec<String>,
    /// One for each applicable policy; empty if no approval is required.
    pub requirements: Vec<Requirement>,
    pub assignees: Vec<Assignee>,
    /// People and delegations that were skipped, each with the reason.
    pub skipped: Vec<String>,
    /// The smallest number of approvals that satisfies all requirements; the number of reviewers if no approvals can.
    pub required_count: u32,
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
    let (auto_approved, not_automatic) = match auto_approval(input, &applicable) {
        Ok(reason) => (Some(reason), Vec::new()),
        Err(reasons) => (None, reasons),
    };
    let mut assignment =
        Assignment { considered_policies: considered, auto_approved, not_automatic, ..Assignment::default() };
    let mut unreachable = None;
    if assignment.auto_approved.is_some() {
        return (assignment, unreachable);
    }
    let mut assignees: BTreeMap<UserId, Assignee> = BTreeMap::new();
    for policy in applicable {
        let (requirement, dependent) = assign_policy(input, policy, &mut assignees, &mut assignment.skipped);
        unreachable = unreachable.or_else(|| {
            let reason = requirement.unreachable_reason()?;
            let why = dependent.map(|why| format!(". {why}")).unwrap_or_default();
            let reason = format!("{reason}{}", why.trim_end_matches('.'));
            Some((policy.name.clone(), reason))
        });
        assignment.requirements.push(requirement);
    }
    let controllers = input.people.controllers(assignees.keys(), Period::Window, input.now);
    match min_approvals(&assignment.requirements, &controllers) {
        Ok(count) => assignment.required_count = count,
        Err(failure) => {
            assignment.required_count = u32::try_from(assignees.len()).unwrap_or(u32::MAX);
            unreachable =
                unreachable.or_else(|| Some(too_dependent(input, &assignment.requirements, failure)));
        }
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

/// The policy that lacks independent reviewers although each one alone has enough, and the reason.
fn too_dependent(
    input: &AssignmentInput<'_>,
    requirements: &[Requirement],
    failure: NoApprovers,
) -> (String, String) {
    let fails_alone = |one: &&Requirement| {
        let controllers = input.people.controllers(one.reviewers.keys(), Period::Window, input.now);
        min_approvals(std::slice::from_ref(*one), &controllers).is_err()
    };
    let failing = requirements.iter().find(fails_alone);
    let policies: Vec<&str> = match failing {
        Some(one) => vec![&one.policy],
        None => requirements.iter().map(|one| one.policy.as_str()).collect(),
    };
    let reason = match failure {
        NoApprovers::Impossible => {
            let reviewers: BTreeSet<&UserId> =
                requirements.iter().filter(|one| failing.is_none_or(|failing| failing == *one)).flat_map(|one| one.reviewers.keys()).collect();
            let reviewers: Vec<&UserId> = reviewers.into_iter().collect();
            let pairs = reviewers.iter().enumerate().flat_map(|(index, one)| {
                reviewers.iter().skip(index + 1).map(move |other| (*one, *other))
            });
            let example = pairs
                .filter_map(|(one, other)| input.people.dependence(one, other, Period::Window, input.now))
                .next();
            let example = example.map(|why| format!(". {why}")).unwrap_or_default();
            let example = example.trim_end_matches('.');
            format!("too few of its reviewers are independent of each other{example}")
        }
        NoApprovers::LimitReached => "too many reviewers depend on each other to find independent approvers; \
             let an independent administrator confirm new accounts with ade user confirm, or name fewer reviewers"
            .to_owned(),
    };
    (policies.join(", "), reason)
}

fn applicable_policies<'a>(input: &AssignmentInput<'a>) -> (Vec<&'a Policy>, Vec<ConsideredPolicy>) {
    let (mut applicable, mut considered) = (Vec::new(), Vec::new());
    // A policy that applies only because of who may claim the task does not replace the default policy.
    let mut is_covered = false;
    for policy in input.policies {
        let mismatch = policy.mismatch(input.subject, input.risk, input.now);
        let applies = mismatch.is_none();
        let of_claimant = input.subject.claimant_match(&policy.targets).filter(|_| applies);
        is_covered |= applies && of_claimant.is_none();
        if applies {
            applicable.push(policy);
        }
        let why = mismatch.or(of_claimant);
        let why = why.unwrap_or_else(|| "type, executor, targets, resources, risk and time match".to_owned());
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies, why });
    }
    let default_applies = if applicable.is_empty() {
        Some("no other policy applies".to_owned())
    } else if !is_covered {
        Some("the other policies apply only because of agents that may claim the task".to_owned())
    } else {
        let target = uncovered_target(input.subject, &applicable);
        target.map(|target| format!("no other policy names the target {target}"))
    };
    if let Some(why) = default_applies {
        let policy = input.default_policy;
        applicable.push(policy);
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies: true, why });
    }
    (applicable, considered)
}

/// The first target that none of these policies names. A type that the author declares must not choose who is asked. Agents decide
/// themselves what they touch: for their tasks, the declared type and resources count.
fn uncovered_target<'a>(subject: &ReviewSubject<'a>, policies: &[&Policy]) -> Option<&'a str> {
    if subject.config.executor == AGENT_EXECUTOR {
        return None;
    }
    policy::uncovered_target(subject, policies)
}

/// Why no approval is required: every applicable policy must approve automatically. Otherwise every reason against it.
fn auto_approval(input: &AssignmentInput<'_>, applicable: &[&Policy]) -> Result<String, Vec<String>> {
    let AssignmentInput { subject, risk, author_set, people, by_agent, .. } = *input;
    let (mut reasons, mut refusals) = (Vec::new(), Vec::new());
    refusals.extend(never_automatic(input));
    for policy in applicable {
        let name = &policy.name;
        match policy.auto_approves(subject, risk, author_set, people, by_agent) {
            Ok(reason) => reasons.push(format!("{name}: {reason}")),
            Err(reason) => refusals.push(format!("policy {name}: {reason}")),
        }
    }
    if refusals.is_empty() { Ok(reasons.join("; ")) } else { Err(refusals) }
}

/// Why this task is never approved automatically, whatever the policies say.
fn never_automatic(input: &AssignmentInput<'_>) -> Option<String> {
    let AssignmentInput { subject, preview, author_set, now, .. } = *input;
    let executor = subject.config.executor.as_str();
    if NEVER_AUTOMATIC.contains(&executor) {
        return Some(format!("tasks of the executor {executor} are never approved automatically"));
    }
    if input.requires_human {
        return Some("the task differs from what was approved before".to_owned());
    }
    if preview.has_errors() {
        return Some("the preview has errors".to_owned());
    }
    if !preview.is_verified() {
        return Some("the service has made no preview of its own, or only an estimate".to_owned());
    }
    let is_recent = |change: &&RuleChange| change.at.plus_ms(RULE_CHANGE_WINDOW_MS) > now;
    for change in input.rule_changes.iter().filter(is_recent) {
        let (by, what) = (&change.by, &change.what);
        let is_dependent = |author: &&UserId| {
            *author == by || input.people.dependence(author, by, Period::Window, now).is_some()
        };
        if let Some(author) = author_set.iter().find(is_dependent) {
            return Some(format!(
                "{by} changed the rules within the last 7 days ({what}) and is not independent of the author {author}"
            ));
        }
    }
    None
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

/// Adds the reviewers of a policy, and returns its requirement, and why somebody was skipped as not independent of an author.
fn assign_policy(
    input: &AssignmentInput<'_>,
    policy: &Policy,
    assignees: &mut BTreeMap<UserId, Assignee>,
    skipped: &mut Vec<String>,
) -> (Requirement, Option<Dependence>) {
    let context = input.delegation_context();
    let mut requirement = Requirement::of(policy);
    let mut dependent = None;
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
        if let Some(why) = input.author_set.dependence(&reviewer, input.people, Period::Window, input.now) {
            skipped.push(why.to_string());
            dependent.get_or_insert(why);
            continue;
        }
        // An author must not pass on its own roles by delegating.
        let by_author = input.author_set.contains(named)
            || chain.iter().any(|step| input.author_set.contains(&step.from));
        let roles = [Some(named).filter(|_| !by_author), Some(&reviewer)]
            .into_iter()
            .flatten()
            .filter_map(|id| input.people.get(id))
            .flat_map(|user| user.roles.iter().cloned());
        requirement.add_reviewer(reviewer.clone(), roles);
        requirement.admit(&reviewer, input.people);
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
    (requirement, dependent)
}
