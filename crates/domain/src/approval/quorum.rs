//! Quorum: whether the approvals of a task satisfy its policies, in number of people and in roles.
//!
//! The requirements are stored with the task, so that changing a policy does not affect a review that is in progress.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::policy::Policy;
use crate::people::UserId;

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
    /// Who overrode it and why, if somebody did.
    pub overridden: Option<String>,
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
            overridden: None,
        }
    }

    /// Makes the decision of a reviewer count, with the roles that the reviewer represents.
    pub fn add_reviewer(&mut self, reviewer: UserId, roles: impl IntoIterator<Item = String>) {
        let represented = self.reviewers.entry(reviewer).or_default();
        represented.extend(roles.into_iter().filter(|role| self.required_roles.contains(role)));
    }

    /// What is missing even if every reviewer approves; none if the requirement can be satisfied.
    pub(super) fn unreachable_reason(&self) -> Option<String> {
        let (available, needed) = (self.reviewers.len(), self.min_approvers);
        if available < needed as usize {
            return Some(format!("{needed} approvers required, {available} available"));
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
                let including = if all_represented { "" } else { ", including role " };
                let why = format!("more approvals required: {missing}{including}{roles}");
                (RequirementStatus::Unsatisfied, missing, why)
            }
        };
        let approved_by = people.into_iter().cloned().collect();
        RequirementProgress { policy: self.policy.clone(), status, needed, approved_by, why }
    }
}

/// Whether every requirement is satisfied or overridden.
pub fn is_quorum_reached(requirements: &[Requirement], votes: &[Vote<'_>]) -> bool {
    requirements.iter().all(|requirement| requirement.progress(votes).needed == 0)
}

/// After this many steps the search returns the best number found so far, which may not be the smallest.
const MAX_SEARCH_STEPS: u32 = 2_000;

/// The smallest number of approvers that satisfies all requirements.
pub fn min_approvals(requirements: &[Requirement]) -> u32 {
    let people: BTreeSet<&UserId> = requirements.iter().flat_map(|one| one.reviewers.keys()).collect();
    let mut people: Vec<&UserId> = people.into_iter().collect();
    // People who serve more requirements and roles come first, so that good solutions are found early.
    let coverage = |user: &&UserId| -> usize {
        requirements.iter().filter_map(|one| one.reviewers.get(*user)).map(|roles| 1 + roles.len()).sum()
    };
    people.sort_by_key(|user| std::cmp::Reverse(coverage(user)));
    let best = u32::try_from(people.len()).unwrap_or(u32::MAX);
    let mut search = Search { requirements, people: &people, best, steps: 0 };
    search.run(0, &mut Vec::new());
    search.best
}

/// Branch and bound over the sets of approvers.
struct Search<'a> {
    requirements: &'a [Requirement],
    people: &'a [&'a UserId],
    best: u32,
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
            self.best = self.best.min(count);
            return;
        }
        // No continuation can be better than the best solution.
        if count.saturating_add(needed) >= self.best || self.steps > MAX_SEARCH_STEPS {
            return;
        }
        for (index, user) in self.people.iter().enumerate().skip(from) {
            chosen.push(user);
            self.run(index + 1, chosen);
            chosen.pop();
        }
    }
}
