//! Reassignment of approval requests: delegation by hand, escalation after a timeout, and reviewers who leave.

use std::collections::BTreeSet;

use super::{Actor, Refusal, Result, Task, TaskState};
use crate::Moment;
use crate::approval::policy::Priority;
use crate::approval::quorum::Requirement;
use crate::approval::{Approval, ApprovalStatus};
use crate::independence::Period;
use crate::people::{ADMIN, ON_CALL, People, User, UserId};

/// How often a request escalates. After that, the on-call people are notified once more and the request stays as it is.
pub const MAX_ESCALATIONS: u8 = 3;

/// The reviewer who takes over a request, and why.
struct Replacement {
    user: UserId,
    reason: String,
}

impl Task {
    /// Reassigns one request to another reviewer.
    pub fn delegate(
        &mut self,
        approval_id: &str,
        to: &UserId,
        people: &People,
        id: String,
        actor: &Actor,
        now: Moment,
    ) -> Result {
        self.authorize_decision(actor, approval_id)?;
        let by = self.authorize_non_author(actor)?;
        if self.state != TaskState::Reviewing {
            return Err(Refusal::AlreadyDecided { state: self.state });
        }
        let approval = self.approval_mut(approval_id)?.clone();
        if approval.reviewer_id != by && !actor.is_admin() {
            return Err(Refusal::NotReviewer { reviewer: approval.reviewer_id });
        }
        if !approval.is_open() {
            return Err(Refusal::ApprovalClosed { status: approval.status });
        }
        self.check_reviewer(to, people, now)?;
        if !people.get(to).is_some_and(User::is_reviewer) {
            let reason = format!("{to} has neither the role reviewer nor admin");
            return Err(Refusal::InvalidReviewer { user: to.clone(), reason });
        }
        let replacement = Replacement { user: to.clone(), reason: format!("{by} delegated it") };
        let old = self.close_as_delegated(approval_id, to)?;
        self.request_from(&old, &replacement, people, id, now);
        self.record_approval("approval.delegate", approval_id, Some(by)).notify = vec![to.clone()];
        Ok(())
    }

    fn check_reviewer(&self, user: &UserId, people: &People, now: Moment) -> Result {
        let refuse = |reason: &str| {
            Err(Refusal::InvalidReviewer { user: user.clone(), reason: format!("{user} {reason}") })
        };
        if people.active(user).is_none() {
            return refuse("is not an active user");
        }
        if let Some(reason) = self.author_set.reason(user) {
            return refuse(&reason.to_string());
        }
        if self.has_decidable_request(user) {
            return refuse("already has a request for it");
        }
        self.require_independent_of_authors(user, people, Period::Window, now)?;
        self.require_independent_of_approvers(user, people, &[], now)
    }

    fn close_as_delegated(&mut self, approval_id: &str, to: &UserId) -> Result<Approval> {
        let approval = self.approval_mut(approval_id)?;
        approval.set_status(ApprovalStatus::Delegated);
        approval.delegated_to = Some(to.clone());
        Ok(approval.clone())
    }

    /// Makes the decision of a user count wherever that of the old request's reviewer counted.
    fn count_instead(&mut self, old: &Approval, user: &UserId, people: &People) {
        for requirement in &mut self.requirements {
            if let Some(represented) = requirement.reviewers.get(&old.reviewer_id).cloned() {
                let own_roles = people.get(user).map(|user| user.roles.clone()).unwrap_or_default();
                requirement.add_reviewer(user.clone(), represented.into_iter().chain(own_roles));
                requirement.admit(user, people);
            }
        }
    }

    /// Adds a request to the replacement, on behalf of the same people and roles.
    fn request_from(&mut self, old: &Approval, to: &Replacement, people: &People, id: String, now: Moment) {
        self.count_instead(old, &to.user, people);
        let mut on_behalf_of = old.on_behalf_of.clone();
        on_behalf_of.insert(old.reviewer_id.clone());
        let due_at = now.plus_ms(old.due_at.ms_since(old.created_at));
        self.approvals.push(Approval {
            approval_id: id,
            revision: 1,
            reviewer_id: to.user.clone(),
            reviewer_name: people.get(&to.user).map_or_else(|| to.user.to_string(), |user| user.name.clone()),
            on_behalf_of,
            follows: None,
            status: ApprovalStatus::Pending,
            delegated_to: None,
            created_at: now,
            due_at,
            raised: 0,
            responded_at: None,
            response_action: None,
            response_reason: None,
            reviewed_by: None,
            chat_holders: BTreeSet::new(),
            reasons: vec![format!("on behalf of {}: {}", old.reviewer_id, to.reason)],
            ..old.clone()
        });
    }

    /// Escalates a request that is past its deadline: to the reviewer's manager, else to the escalation role of the policy, else
    /// to administrators. The reviewer can still decide. Returns whether the request escalated; each level happens once.
    pub fn escalate(
        &mut self,
        approval_id: &str,
        people: &People,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result<bool> {
        let approval = self.approval_mut(approval_id)?.clone();
        let is_due = self.state == TaskState::Reviewing
            && approval.status == ApprovalStatus::Pending
            && approval.escalates_at().is_some_and(|at| at <= now);
        if !is_due {
            return Ok(false);
        }
        let level = approval.escalation_level + 1;
        let is_exhausted = level > MAX_ESCALATIONS;
        let replacements = if is_exhausted {
            Vec::new()
        } else {
            self.escalation_targets(&approval, people, level == MAX_ESCALATIONS, now)
        };
        let own = self.approval_mut(approval_id)?;
        // After the last escalation the request stays overdue.
        if !is_exhausted {
            own.due_at = now.plus_ms(approval.due_at.ms_since(approval.created_at));
        }
        own.escalation_level = level;
        own.revision += 1;
        let mut recipients = Vec::new();
        let mut reason = format!("{} did not decide in time", approval.reviewer_id);
        for replacement in replacements {
            reason.clone_from(&replacement.reason);
            let mut old = approval.clone();
            old.escalation_level = level;
            self.request_from(&old, &replacement, people, ids(), now);
            recipients.push(replacement.user);
        }
        let action = if recipients.is_empty() { "approval.unanswered" } else { "approval.escalate" };
        if recipients.is_empty() {
            reason.push_str("; nobody else is left to ask");
        }
        recipients.extend(people.with_role(ON_CALL).map(|user| user.user_id.clone()));
        let transition = self.record_approval(action, approval_id, None);
        transition.notify = recipients;
        transition.reason = Some(reason);
        Ok(true)
    }

    /// Who is asked after a timeout: the manager, else the escalation role, else administrators. At the last level only
    /// administrators.
    fn escalation_targets(
        &self,
        approval: &Approval,
        people: &People,
        is_last: bool,
        now: Moment,
    ) -> Vec<Replacement> {
        let reviewer = &approval.reviewer_id;
        let can = |user: &UserId| self.check_reviewer(user, people, now).is_ok();
        let with_role = |role: &str, why: &str| -> Vec<Replacement> {
            let users = people.with_role(role).map(|user| &user.user_id).filter(|user| can(user)).cloned();
            let reason = format!("{reviewer} did not decide in time; {why}");
            users.map(|user| Replacement { user, reason: reason.clone() }).collect()
        };
        if !is_last {
            let manager = people.get(reviewer).and_then(|user| user.manager_id.clone());
            // As a delegate, a manager needs a role of a reviewer: who is a manager is easily changed.
            let may_review = |user: &UserId| people.get(user).is_some_and(User::is_reviewer);
            if let Some(manager) = manager.filter(|manager| may_review(manager) && can(manager)) {
                let reason = format!("{reviewer} did not decide in time; {manager} is the manager");
                return vec![Replacement { user: manager, reason }];
            }
            let applies = |requirement: &&Requirement| approval.policies.contains(&requirement.policy);
            for requirement in self.requirements.iter().filter(applies) {
                let Some(role) = &requirement.escalation_role else { continue };
                let found = with_role(role, &format!("the policy escalates to role {role}"));
                if !found.is_empty() {
                    return found;
                }
            }
        }
        with_role(ADMIN, "administrators are asked last")
    }

    /// Reassigns the open requests of somebody who left or lost a role for which a policy asks: to the delegate, else to the
    /// manager, else to administrators. If all of them have requests already, the first one that is pending counts for both.
    /// Decisions of that person that are not counted yet lapse.
    pub fn reassign_unqualified(
        &mut self,
        user: &UserId,
        delegate: Option<&UserId>,
        people: &People,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result {
        if self.state != TaskState::Reviewing {
            return Ok(());
        }
        let lapsing = self.lapsing_decisions(people, now);
        // The service records all of this, and names what made it act.
        self.lapse(lapsing, None)?;
        let open: Vec<String> = self
            .approvals
            .iter()
            .filter(|approval| approval.reviewer_id == *user && approval.is_open())
            .filter(|approval| !self.is_qualified(approval, people))
            .map(|approval| approval.approval_id.clone())
            .collect();
        let why = if people.active(user).is_some() { "lost the role" } else { "left" };
        let manager = people.get(user).and_then(|user| user.manager_id.as_ref());
        let admins = people.with_role(ADMIN).map(|user| &user.user_id);
        let candidates = delegate.into_iter().chain(manager).chain(admins).filter(|other| *other != user);
        let candidates = candidates.filter(|other| people.get(other).is_some_and(User::is_reviewer));
        let candidates: Vec<UserId> = candidates.cloned().collect();
        for approval_id in open {
            let free = candidates.iter().find(|other| self.check_reviewer(other, people, now).is_ok());
            let pending = || candidates.iter().find(|other| self.is_pending(other, people));
            let Some(replacement) = free.or_else(pending) else { continue };
            let is_free = free.is_some();
            let old = self.close_as_delegated(&approval_id, replacement)?;
            let reason = format!("{user} {why}");
            let notified = replacement.clone();
            if is_free {
                let replacement = Replacement { user: replacement.clone(), reason: reason.clone() };
                self.request_from(&old, &replacement, people, ids(), now);
            } else {
                self.merge_request(old, replacement, people, why);
            }
            let transition = self.record_approval("approval.reassign", &approval_id, None);
            transition.notify = vec![notified];
            transition.reason = Some(reason);
        }
        self.forget_lost_roles(people);
        Ok(())
    }

    /// Whether an active user has a pending request.
    fn is_pending(&self, user: &UserId, people: &People) -> bool {
        people.active(user).is_some() && self.approvals.iter().any(|approval| approval.awaits(user))
    }

    /// Merges a closed request into the pending request of another reviewer.
    fn merge_request(&mut self, old: Approval, user: &UserId, people: &People, why: &str) {
        self.count_instead(&old, user, people);
        if let Some(own) = self.approvals.iter_mut().find(|approval| approval.awaits(user)) {
            own.on_behalf_of.extend(old.on_behalf_of);
            let more: Vec<_> = old.policies.into_iter().filter(|name| !own.policies.contains(name)).collect();
            own.policies.extend(more);
            own.on_behalf_of.insert(old.reviewer_id.clone());
            own.reasons.push(format!("on behalf of {}, who {why}", old.reviewer_id));
            own.revision += 1;
        }
    }

    /// Raises the priority of a pending request in a backlog: one step for each quarter of its time that has passed, three at
    /// most. Returns whether it was raised; each step happens once.
    pub fn raise_priority(&mut self, approval_id: &str, now: Moment) -> Result<bool> {
        let (risk, is_open) = (self.risk_score(), self.state == TaskState::Reviewing);
        let approval = self.approval_mut(approval_id)?;
        let (waited, allowed) =
            (now.ms_since(approval.created_at), approval.due_at.ms_since(approval.created_at));
        let quarters = waited.saturating_mul(4).checked_div(allowed).unwrap_or(0).min(3);
        let quarters = u8::try_from(quarters).unwrap_or(3);
        let is_open = is_open && approval.status == ApprovalStatus::Pending;
        if !is_open || quarters <= approval.raised || approval.priority == Priority::Urgent {
            return Ok(false);
        }
        for _ in approval.raised..quarters {
            approval.priority = approval.priority.raised();
        }
        approval.raised = quarters;
        approval.score = approval.priority.score(risk);
        approval.revision += 1;
        let reviewer = approval.reviewer_id.clone();
        let transition = self.record_approval("approval.raise", approval_id, None);
        transition.reason = Some(format!("{reviewer} has not decided yet, and there is a backlog"));
        transition.notify = vec![reviewer];
        Ok(true)
    }
}
