//! Quorum: whether the approvals of a task satisfy its policies, in number of people and in roles.
//!
//! The requirements are stored with the task, so that changing a policy does not affect a review that is in progress.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::policy::Policy;
use crate::independence::Controllers;
use crate::people::{People, User, UserId};
use crate::text::counted;

/// What one policy requires before a task is approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The name of the policy.
    pub policy: String,
    /// How many different people must approve.
    pub min_approvers: u32,
    /// Roles that must each be represented among the approvers.
    pub required_roles: BTreeSet<String>,
    /// How many rejections reject the task.
    pub reject_threshold: u32,
    /// The role that requests escalate to if the reviewer has no manager.
    pub escalation_role: Option<String>,
    /// The reviewers whose decisions count, with the required roles that each represents, also on behalf of others.
    pub reviewers: BTreeMap<UserId, BTreeSet<String>>,
    /// Reviewers who count without the role that the policy asks for: named by it, delegates, or asked as a manager.
    pub admitted: BTreeMap<UserId, Admission>,
    /// Who overrode it and why, if somebody did.
    pub overridden: Option<String>,
}

/// Why a reviewer counts without a role for which the policy asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// For as long as the person has the role reviewer or admin.
    AsReviewer,
    WithoutRole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RequirementStatus {
    NotApplicable,
    Satisfied,
    Unsatisfied,
    /// Two administrators overrode the policy.
    Overridden,
}

/// A decision as requirements count it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote<'a> {
    /// The reviewer who was asked.
    pub reviewer: &'a UserId,
    /// Who decided: the reviewer, an administrator, or the person the reviewer follows.
    pub decided_by: &'a UserId,
    pub approves: bool,
}

/// The progress of a requirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequirementProgress {
    /// The name of the policy.
    pub policy: String,
    pub status: RequirementStatus,
    /// How many more approvals are needed at least.
    pub needed: u32,
    pub approved_by: Vec<UserId>,
    /// What is missing, or why it is satisfied.
    pub why: String,
}

impl Requirement {
    pub(super) fn of(policy: &Policy) -> Self {
        Self {
            policy: policy.name.clone(),
            min_approvers: policy.min_approvers,
            required_roles: policy.required_roles.iter().cloned().collect(),
            reject_threshold: policy.reject_threshold,
            escalation_role: policy.escalation_role.clone(),
            reviewers: BTreeMap::new(),
            admitted: BTreeMap::new(),
            overridden: None,
        }
    }

    /// Makes the decision of a reviewer count, with the roles that the reviewer represents.
    pub fn add_reviewer(&mut self, reviewer: UserId, roles: impl IntoIterator<Item = String>) {
        let represented = self.reviewers.entry(reviewer).or_default();
        represented.extend(roles.into_iter().filter(|role| self.required_roles.contains(role)));
    }

    /// Whether an active person has a role for which this policy asks.
    fn has_asked_role(&self, user: &UserId, people: &People) -> bool {
        people.active(user).is_some_and(|user| match self.required_roles.is_empty() {
            true => user.is_reviewer(),
            false => self.required_roles.iter().any(|role| user.has_role(role)),
        })
    }

    /// Remembers on which ground a reviewer counts who does not have a role for which the policy asks.
    pub(crate) fn admit(&mut self, user: &UserId, people: &People) {
        if self.reviewers.contains_key(user) && !self.has_asked_role(user, people) {
            let is_reviewer = people.get(user).is_some_and(User::is_reviewer);
            let admission = if is_reviewer { Admission::AsReviewer } else { Admission::WithoutRole };
            self.admitted.insert(user.clone(), admission);
        }
    }

    /// Whether the decision of a reviewer counts with the roles that people have now.
    pub(crate) fn is_qualified(&self, user: &UserId, people: &People) -> bool {
        let is_admitted = || match (self.admitted.get(user), people.active(user)) {
            (Some(Admission::WithoutRole), Some(_)) => true,
            (Some(Admission::AsReviewer), Some(user)) => user.is_reviewer(),
            _ => false,
        };
        self.reviewers.contains_key(user) && (self.has_asked_role(user, people) || is_admitted())
    }

    /// What is missing even if every reviewer approves; none if the requirement can be satisfied.
    pub(super) fn unreachable_reason(&self) -> Option<String> {
        let (available, needed) = (self.reviewers.len(), self.min_approvers);
        if available < needed as usize {
            let needed = counted(needed, "approver", "approvers");
            return Some(format!("{needed} required, {available} available"));
        }
        let represents = |role: &String| self.reviewers.values().any(|roles| roles.contains(role));
        let role = self.required_roles.iter().find(|role| !represents(role))?;
        Some(format!("nobody who can decide has the required role {role}"))
    }

    pub fn is_rejected(&self, votes: &[Vote<'_>]) -> bool {
        let rejected_by: BTreeSet<&UserId> =
            self.counted(votes).filter(|vote| !vote.approves).map(|vote| vote.decided_by).collect();
        rejected_by.len() >= self.reject_threshold as usize
    }

    fn counted<'v>(&self, votes: &'v [Vote<'v>]) -> impl Iterator<Item = &'v Vote<'v>> {
        votes.iter().filter(|vote| self.reviewers.contains_key(vote.reviewer))
    }

    /// Each person counts once, however many requests that person decided.
    pub fn progress(&self, votes: &[Vote<'_>]) -> RequirementProgress {
        let approving: Vec<&Vote<'_>> = self.counted(votes).filter(|vote| vote.approves).collect();
        let people: BTreeSet<&UserId> = approving.iter().map(|vote| vote.decided_by).collect();
        let represented: BTreeSet<&String> =
            approving.iter().filter_map(|vote| self.reviewers.get(vote.reviewer)).flatten().collect();
        let missing_roles = self.required_roles.iter().filter(|role| !represented.contains(role));
        let missing_roles: Vec<&str> = missing_roles.map(String::as_str).collect();
        let roles = missing_roles.join(", ");
        let missing = self.min_approvers.saturating_sub(u32::try_from(people.len()).unwrap_or(u32::MAX));
        let (status, needed, why) = match (&self.overridden, missing, missing_roles.is_empty()) {
            (Some(text), ..) => (RequirementStatus::Overridden, 0, text.clone()),
            (None, 0, true) => {
                (RequirementStatus::Satisfied, 0, format!("{0} of {0} approved", self.min_approvers))
            }
            (None, 0, false) => {
                (RequirementStatus::Unsatisfied, 1, format!("approval required from role {roles}"))
            }
            (None, _, all_represented) => {
                let including = if all_represented { "" } else { "; still to approve: role " };
                let why = format!("{} of {} approved{including}{roles}", people.len(), self.min_approvers);
                (RequirementStatus::Unsatisfied, missing, why)
            }
        };
        let approved_by = people.into_iter().cloned().collect();
        RequirementProgress { policy: self.policy.clone(), status, needed, approved_by, why }
    }
}

impl RequirementProgress {
    /// The progress while some reviewers request changes, whatever the others approve: the task is not approved before those
    /// decide otherwise or its author changes it.
    #[must_use]
    pub(crate) fn blocked_by(mut self, requirement: &Requirement, reviewers: &[&UserId]) -> Self {
        let reviewers = reviewers.iter().filter(|reviewer| requirement.reviewers.contains_key(**reviewer));
        let names: BTreeSet<&str> = reviewers.map(|reviewer| reviewer.as_str()).collect();
        if !names.is_empty() && self.status != RequirementStatus::Overridden {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            self.status = RequirementStatus::Unsatisfied;
            self.needed = self.needed.max(1);
            self.why =
                format!("changes requested by {names}: the author must change the task ({})", self.why);
        }
        self
    }
}

/// Whether every requirement is satisfied or overridden.
pub fn is_quorum_reached(requirements: &[Requirement], votes: &[Vote<'_>]) -> bool {
    requirements.iter().all(|requirement| requirement.progress(votes).needed == 0)
}

/// After this many steps the search returns the best number found so far, which may not be the smallest.
const MAX_SEARCH_STEPS: u32 = 2_000;

/// Why no approvers were found who satisfy all requirements together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoApprovers {
    /// There are none.
    Impossible,
    /// The search was given up.
    LimitReached,
}

/// The smallest number of independent approvers that satisfies all requirements.
pub fn min_approvals(
    requirements: &[Requirement],
    controllers: &Controllers<'_>,
) -> Result<u32, NoApprovers> {
    let people: BTreeSet<&UserId> = requirements.iter().flat_map(|one| one.reviewers.keys()).collect();
    let mut people: Vec<&UserId> = people.into_iter().collect();
    // People who serve more requirements and roles come first, so that good solutions are found early.
    let coverage = |user: &&UserId| -> usize {
        requirements.iter().filter_map(|one| one.reviewers.get(*user)).map(|roles| 1 + roles.len()).sum()
    };
    people.sort_by_key(|user| std::cmp::Reverse(coverage(user)));
    let mut search = Search { requirements, controllers, people: &people, best: None, steps: 0 };
    search.run(0, &mut Vec::new());
    let is_complete = search.steps <= MAX_SEARCH_STEPS;
    search.best.ok_or(if is_complete { NoApprovers::Impossible } else { NoApprovers::LimitReached })
}

/// Branch and bound over the sets of approvers who are pairwise independent.
struct Search<'a> {
    requirements: &'a [Requirement],
    controllers: &'a Controllers<'a>,
    people: &'a [&'a UserId],
    best: Option<u32>,
    steps: u32,
}

impl<'a> Search<'a> {
    fn run(&mut self, from: usize, chosen: &mut Vec<&'a UserId>) {
        self.steps += 1;
        let votes: Vec<Vote<'_>> =
            chosen.iter().map(|user| Vote { reviewer: user, decided_by: user, approves: true }).collect();
        let needed = self.requirements.iter().map(|one| one.progress(&votes).needed).max().unwrap_or(0);
        let count = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
        if needed == 0 {
            self.best = Some(self.best.map_or(count, |best| best.min(count)));
            return;
        }
        // No continuation can be better than the best solution.
        let is_worse = self.best.is_some_and(|best| count.saturating_add(needed) >= best);
        if is_worse || self.steps > MAX_SEARCH_STEPS {
            return;
        }
        for (index, user) in self.people.iter().enumerate().skip(from) {
            if chosen.iter().all(|other| self.controllers.are_independent(other, user)) {
                chosen.push(user);
                self.run(index + 1, chosen);
                chosen.pop();
            }
        }
    }
}
