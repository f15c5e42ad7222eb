//! Who is asked about a task, and why: policies that match, people that they want, those who stand in for them, and what was
//! passed by. The answer explains itself, and submitting and simulating give the same one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::delegation::{self, Delegation, Resolved, Step, Ways};
use super::policy::{Policy, Priority};
use super::quorum::Requirement;
use crate::Moment;
use crate::people::{AuthorSet, People, REVIEWER, User, UserId};
use crate::task::Config;

/// What people are chosen by.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What is to be done.
    pub config: &'a Config,
    /// How dangerous it is.
    pub risk: u8,
    /// Who wants it.
    pub author: Option<&'a User>,
    /// Who can never decide about it.
    pub author_set: &'a AuthorSet,
    /// Everybody.
    pub people: &'a People,
    /// Every policy in force.
    pub policies: &'a [Policy],
    /// What counts if none of them matches.
    pub default_policy: &'a Policy,
    /// Every delegation, in order.
    pub delegations: &'a [Delegation],
    /// The task is of level LOW in a backlog, and such tasks pass if every policy allows it.
    pub low_risk_passes: bool,
    /// Somebody must look at it, whatever policies allow: its preview went wrong, or is not what was approved.
    pub must_be_seen: bool,
    /// When people are asked.
    pub now: Moment,
}

impl<'a> Question<'a> {
    /// What chains of delegations are followed by.
    const fn ways(&self) -> Ways<'a> {
        let Self { people, delegations, config, risk, now, .. } = *self;
        Ways { people, delegations, config, risk, now }
    }
}

/// What a policy has to do with a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsideredPolicy {
    /// Which one.
    pub policy: String,
    /// Whether it is about this task.
    pub applies: bool,
    /// Why, or why not.
    pub why: String,
}

/// Somebody who is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignee {
    /// Who.
    pub reviewer_id: UserId,
    /// Its name.
    pub name: String,
    /// For which policies.
    pub policies: Vec<String>,
    /// In whose place, itself included if it was wanted by itself.
    pub stands_for: BTreeSet<UserId>,
    /// How it came to that, if somebody handed on.
    pub chain: Vec<Step>,
    /// With whom it agrees without being asked.
    pub follows: Option<UserId>,
    /// How urgent it is.
    pub priority: Priority,
    /// Why it was chosen.
    pub why: Vec<String>,
}

/// Who is asked, and everything that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Every policy that was looked at.
    pub considered: Vec<ConsideredPolicy>,
    /// Why nobody needs to be asked, if so.
    pub auto_approved: Option<String>,
    /// What must be satisfied; empty if nobody needs to be asked.
    pub requirements: Vec<Requirement>,
    /// Who is asked.
    pub wanted: Vec<Assignee>,
    /// Who or what was passed by, and why.
    pub passed_by: Vec<String>,
}

/// There are not enough people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy} cannot be satisfied: {why}")]
pub struct QuorumUnreachable {
    /// Which policy.
    pub policy: String,
    /// What is missing.
    pub why: String,
    /// Who was passed by, and why.
    pub passed_by: Vec<String>,
}

/// Who is asked about a task.
pub fn assign(question: &Question<'_>) -> Result<Assignment, QuorumUnreachable> {
    let (assignment, missing) = as_far_as_possible(question);
    match missing {
        None => Ok(assignment),
        Some((policy, why)) => Err(QuorumUnreachable { policy, why, passed_by: assignment.passed_by }),
    }
}

/// The same about what is under review whether or not there are enough people: those who are there are asked, and what is
/// missing is said.
#[must_use]
pub fn assign_anyway(question: &Question<'_>) -> Assignment {
    let (mut assignment, missing) = as_far_as_possible(question);
    if let Some((policy, why)) = missing {
        assignment.passed_by.push(format!("policy {policy} cannot be satisfied now: {why}"));
    }
    assignment
}

/// Who is asked, and the first policy that cannot be satisfied, with what it lacks.
fn as_far_as_possible(question: &Question<'_>) -> (Assignment, Option<(String, String)>) {
    let (matching, considered) = matching(question);
    let auto_approved = auto_approved(question, &matching);
    let mut assignment = Assignment {
        considered,
        auto_approved,
        requirements: Vec::new(),
        wanted: Vec::new(),
        passed_by: Vec::new(),
    };
    let mut missing = None;
    if assignment.auto_approved.is_some() {
        return (assignment, missing);
    }
    let mut wanted: BTreeMap<UserId, Assignee> = BTreeMap::new();
    for policy in matching {
        let requirement = ask(question, policy, &mut wanted, &mut assignment.passed_by);
        missing = missing.or_else(|| Some((policy.name.clone(), requirement.missing()?)));
        assignment.requirements.push(requirement);
    }
    let asked: BTreeSet<UserId> = wanted.keys().cloned().collect();
    assignment.wanted = wanted.into_values().collect();
    for one in &mut assignment.wanted {
        one.follows = follows(question, one, &asked);
    }
    (assignment, missing)
}

fn matching<'a>(question: &Question<'a>) -> (Vec<&'a Policy>, Vec<ConsideredPolicy>) {
    let (mut matching, mut considered) = (Vec::new(), Vec::new());
    for policy in question.policies {
        let why_not = policy.why_not(question.config, question.risk, question.now);
        let applies = why_not.is_none();
        if applies {
            matching.push(policy);
        }
        let why = why_not.unwrap_or_else(|| "it matches type, resources, risk and time".to_owned());
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies, why });
    }
    if matching.is_empty() {
        let policy = question.default_policy;
        matching.push(policy);
        let why = "no other policy is about this task".to_owned();
        considered.push(ConsideredPolicy { policy: policy.name.clone(), applies: true, why });
    }
    (matching, considered)
}

/// Why nobody needs to be asked: every policy that matches must say so.
///
/// In a backlog a task of level LOW passes as well if every policy that matches allows it: if it has conditions under which it
/// approves by itself, and all of them hold, where the level takes the place of the risk that it names. A policy that never
/// approves by itself does not begin to because people are busy.
fn auto_approved(question: &Question<'_>, matching: &[&Policy]) -> Option<String> {
    if question.must_be_seen {
        return None;
    }
    let all = |says: &dyn Fn(&Policy) -> Result<String, String>| {
        let mut reasons = Vec::new();
        for policy in matching {
            reasons.push(format!("{}: {}", policy.name, says(policy).ok()?));
        }
        Some(reasons.join("; "))
    };
    let Question { config, risk, author, low_risk_passes, .. } = *question;
    all(&|policy| policy.auto_approves(config, Some(risk), author)).or_else(|| {
        let reasons =
            low_risk_passes.then(|| all(&|policy| policy.auto_approves(config, None, author)))??;
        Some(format!(
            "too many requests wait, and tasks of level LOW pass whose policies allow it: {reasons}"
        ))
    })
}

/// Whom a policy wants, before anybody stands in: each with why.
fn named_by<'a>(question: &Question<'a>, policy: &'a Policy) -> BTreeMap<&'a UserId, String> {
    let mut named = BTreeMap::new();
    if !policy.reviewers.is_empty() {
        for id in &policy.reviewers {
            named.insert(id, format!("{} names {id} as reviewer", policy.name));
        }
        return named;
    }
    let roles: Vec<&str> = match policy.required_roles.as_slice() {
        [] => vec![REVIEWER],
        roles => roles.iter().map(String::as_str).collect(),
    };
    for role in roles {
        for user in question.people.with_role(role) {
            let why = format!("{} asks for {role}, which {} is", policy.name, user.user_id);
            named.entry(&user.user_id).or_insert(why);
        }
    }
    named
}

/// Adds whom a policy wants, and says what would satisfy it.
fn ask(
    question: &Question<'_>,
    policy: &Policy,
    wanted: &mut BTreeMap<UserId, Assignee>,
    passed_by: &mut Vec<String>,
) -> Requirement {
    let ways = question.ways();
    let mut requirement = Requirement::of(policy);
    for (named, why) in named_by(question, policy) {
        let Resolved { reviewer, chain, passed_by: on_the_way } = delegation::resolve(named, &ways);
        passed_by.extend(on_the_way);
        if let Some(reason) = question.author_set.reason(&reviewer) {
            passed_by.push(format!("{reviewer} cannot decide about this task: {reason}"));
            continue;
        }
        let Some(user) = question.people.active(&reviewer) else {
            passed_by.push(format!("{reviewer} is not active"));
            continue;
        };
        // Whoever stands behind the task does not say by a delegation who represents its own roles.
        let hands_on = !question.author_set.contains(named)
            && !chain.iter().any(|step| question.author_set.contains(&step.from));
        let roles = [Some(named).filter(|_| hands_on), Some(&reviewer)]
            .into_iter()
            .flatten()
            .filter_map(|id| question.people.get(id))
            .flat_map(|user| user.roles.iter().cloned());
        requirement.counts(reviewer.clone(), roles);
        let one = wanted.entry(reviewer.clone()).or_insert_with(|| Assignee {
            reviewer_id: reviewer,
            name: user.name.clone(),
            policies: Vec::new(),
            stands_for: BTreeSet::new(),
            chain: chain.clone(),
            follows: None,
            priority: policy.priority,
            why: Vec::new(),
        });
        if !one.policies.contains(&policy.name) {
            one.policies.push(policy.name.clone());
        }
        one.stands_for.insert(named.clone());
        one.priority = one.priority.max(policy.priority);
        // Whoever is wanted by itself needs no chain to be there.
        if chain.len() < one.chain.len() {
            one.chain = chain.clone();
        }
        let why = chain.last().map_or_else(|| why.clone(), |last| format!("{why}; {} stands in", last.to));
        if !one.why.contains(&why) {
            one.why.push(why);
        }
    }
    requirement
}

/// With whom somebody agrees, if that one is asked as well.
fn follows(question: &Question<'_>, one: &Assignee, asked: &BTreeSet<UserId>) -> Option<UserId> {
    let ways = question.ways();
    delegation::follows(&one.reviewer_id, &ways)
        .filter(|leader| asked.contains(leader) && *leader != one.reviewer_id)
}
