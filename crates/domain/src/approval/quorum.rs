//! What a policy still needs: so many different people among those whom it wants, and each of its roles.
//!
//! What was asked for is kept with the task: a policy that changes meanwhile changes nothing about a review that is under way.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::policy::Policy;
use crate::people::UserId;

/// What must be satisfied before a task is approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// Whose.
    pub policy: String,
    /// How many different people must agree.
    pub min_approvers: u32,
    /// Roles of which each must be represented.
    pub required_roles: BTreeSet<String>,
    /// How many must say no.
    pub reject_threshold: u32,
    /// Who is asked when reviewers without a manager do not answer.
    pub escalation_role: Option<String>,
    /// Whose answers count, each with the roles that it represents, by itself or in the place of others.
    pub reviewers: BTreeMap<UserId, BTreeSet<String>>,
    /// Whether it was passed by on somebody's responsibility, and on whose.
    pub overridden: Option<String>,
}

/// How far a requirement has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RequirementStatus))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// It is not about this task.
    NotApplicable,
    /// Enough people agreed.
    Satisfied,
    /// More must agree.
    Unsatisfied,
    /// It was passed by.
    Overridden,
}

/// An answer as a requirement counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote<'a> {
    /// Whose request was answered.
    pub reviewer: &'a UserId,
    /// Who answered it: the same, an administrator, or whom the reviewer follows.
    pub decided_by: &'a UserId,
    /// Yes or no.
    pub agrees: bool,
}

/// How far a requirement has come, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Requirement))]
pub struct Progress {
    /// Whose.
    pub policy: String,
    /// How far.
    pub status: Status,
    /// How many more must agree, at least.
    pub needed: u32,
    /// Who agreed.
    pub approved_by: Vec<UserId>,
    /// What is missing, or why nothing is.
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

    /// Somebody's answer counts from now on, also in the place of others.
    pub fn counts(&mut self, who: UserId, roles: impl IntoIterator<Item = String>) {
        let represented = self.reviewers.entry(who).or_default();
        represented.extend(roles.into_iter().filter(|role| self.required_roles.contains(role)));
    }

    /// What is missing even if everybody agreed.
    pub(super) fn missing(&self) -> Option<String> {
        let (many, needed) = (self.reviewers.len(), self.min_approvers);
        if many < needed as usize {
            return Some(format!("it needs {needed} approvers, and {many} can decide"));
        }
        let represents = |role: &String| self.reviewers.values().any(|roles| roles.contains(role));
        let role = self.required_roles.iter().find(|role| !represents(role))?;
        Some(format!("it needs somebody with the role {role}, and nobody who can decide has it"))
    }

    /// Whether so many said no that it cannot go on.
    #[must_use]
    pub fn is_rejected(&self, votes: &[Vote<'_>]) -> bool {
        let against: BTreeSet<&UserId> =
            self.own(votes).filter(|vote| !vote.agrees).map(|vote| vote.decided_by).collect();
        against.len() >= self.reject_threshold as usize
    }

    fn own<'v>(&self, votes: &'v [Vote<'v>]) -> impl Iterator<Item = &'v Vote<'v>> {
        votes.iter().filter(|vote| self.reviewers.contains_key(vote.reviewer))
    }

    /// How far it has come. Each person counts once, however many requests it answered.
    #[must_use]
    pub fn progress(&self, votes: &[Vote<'_>]) -> Progress {
        let agreeing: Vec<&Vote<'_>> = self.own(votes).filter(|vote| vote.agrees).collect();
        let people: BTreeSet<&UserId> = agreeing.iter().map(|vote| vote.decided_by).collect();
        let represented: BTreeSet<&String> =
            agreeing.iter().filter_map(|vote| self.reviewers.get(vote.reviewer)).flatten().collect();
        let absent: Vec<&str> = self
            .required_roles
            .iter()
            .filter(|role| !represented.contains(role))
            .map(String::as_str)
            .collect();
        let more = self.min_approvers.saturating_sub(u32::try_from(people.len()).unwrap_or(u32::MAX));
        let needed = more.max(u32::from(!absent.is_empty()));
        let approved_by = people.into_iter().cloned().collect();
        let (status, why) = match (&self.overridden, needed) {
            (Some(by), _) => (Status::Overridden, by.clone()),
            (None, 0) => {
                (Status::Satisfied, format!("{} of {} agreed", self.min_approvers, self.min_approvers))
            }
            (None, _) if absent.is_empty() => (Status::Unsatisfied, format!("{more} more must agree")),
            (None, _) if more == 0 => {
                (Status::Unsatisfied, format!("somebody with the role {} must agree", absent.join(", ")))
            }
            (None, _) => {
                let roles = absent.join(", ");
                (Status::Unsatisfied, format!("{more} more must agree, among them {roles}"))
            }
        };
        let needed = if self.overridden.is_some() { 0 } else { needed };
        Progress { policy: self.policy.clone(), status, needed, approved_by, why }
    }
}

/// Whether every requirement is satisfied or passed by.
#[must_use]
pub fn is_reached(requirements: &[Requirement], votes: &[Vote<'_>]) -> bool {
    requirements.iter().all(|requirement| {
        matches!(requirement.progress(votes).status, Status::Satisfied | Status::Overridden)
    })
}

/// How many answers are looked at before the search for the least number settles for a good one.
const MOST_LOOKS: u32 = 2_000;

/// The least number of people whose agreement would satisfy all requirements.
#[must_use]
pub fn least(requirements: &[Requirement]) -> u32 {
    let mut people: Vec<&UserId> = requirements.iter().flat_map(|one| one.reviewers.keys()).collect();
    people.sort_unstable();
    people.dedup();
    // Whoever serves more requirements and roles comes first: good answers are found early.
    let serves = |who: &&UserId| -> usize {
        requirements.iter().filter_map(|one| one.reviewers.get(*who)).map(|roles| 1 + roles.len()).sum()
    };
    people.sort_by_key(|who| std::cmp::Reverse(serves(who)));
    let mut search = Search {
        requirements,
        people: &people,
        best: u32::try_from(people.len()).unwrap_or(u32::MAX),
        looks: 0,
    };
    search.look(0, &mut Vec::new());
    search.best
}

struct Search<'a> {
    requirements: &'a [Requirement],
    people: &'a [&'a UserId],
    best: u32,
    looks: u32,
}

impl<'a> Search<'a> {
    fn look(&mut self, from: usize, chosen: &mut Vec<&'a UserId>) {
        self.looks += 1;
        let votes: Vec<Vote<'_>> =
            chosen.iter().map(|who| Vote { reviewer: who, decided_by: who, agrees: true }).collect();
        let left = self.requirements.iter().map(|one| one.progress(&votes).needed).max().unwrap_or(0);
        let many = u32::try_from(chosen.len()).unwrap_or(u32::MAX);
        if left == 0 {
            self.best = self.best.min(many);
            return;
        }
        // Even the best continuation would not be better.
        if many.saturating_add(left) >= self.best || self.looks > MOST_LOOKS {
            return;
        }
        for (number, who) in self.people.iter().enumerate().skip(from) {
            chosen.push(who);
            self.look(number + 1, chosen);
            chosen.pop();
        }
    }
}
