//! Decisions of reviewers and their outcome, and the commands of administrators that override or reorder them.

use std::collections::BTreeSet;

use super::chat::Approver;
use super::{
    Actor, Answer, OVERRIDE_CONFIRMATION_TIMEOUT_MS, OverrideRequest, Refusal, Result, Task, TaskCommand,
    TaskState, Transition, next_state,
};
use crate::Moment;
use crate::approval::quorum::{RequirementStatus, is_quorum_reached};
use crate::approval::{Approval, ApprovalStatus, DecisionKind};
use crate::audit::Trigger;
use crate::independence::Period;
use crate::people::{ADMIN, People, UserId};
use crate::permission::Permission;
use crate::text::visible;

/// A decision on an approval request.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    pub approval_id: &'a str,
    pub kind: DecisionKind,
    pub answer: &'a Answer,
    /// Whether it is one of many. What is risky is approved alone: nobody reviews a list of ids.
    pub is_batch: bool,
}

pub(super) fn required_reason(reason: Option<&str>) -> Result<String> {
    visible(reason).map(str::to_owned).ok_or(Refusal::ReasonRequired)
}

impl Task {
    /// Records the decision of a reviewer, or of an administrator on the reviewer's behalf. A reviewer can change a decision
    /// until the task is decided.
    ///
    /// Roles and independence are those of `people`: earlier decisions that cannot be counted any more lapse.
    pub fn decide(&mut self, decision: &Decision<'_>, actor: &Actor, people: &People, now: Moment) -> Result {
        self.decide_through(decision, &BTreeSet::new(), actor, people, now)
    }

    /// Records a decision that these people could have sent too, because they know a secret of a chat.
    pub(super) fn decide_through(
        &mut self,
        decision: &Decision<'_>,
        chat_holders: &BTreeSet<UserId>,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        self.authorize_decision(actor, decision.approval_id)?;
        let by = self.authorize_non_author(actor)?;
        if self.state != TaskState::Reviewing {
            return Err(self.not_in_review(decision.kind));
        }
        self.require_unedited()?;
        self.require_current(decision.answer)?;
        let reason = decision.answer.reason();
        if decision.kind != DecisionKind::Approve && reason.is_none() {
            return Err(Refusal::ReasonRequired);
        }
        let version = self.reviewed_version();
        let approval = self.approval_mut(decision.approval_id)?;
        let reviewer = approval.reviewer_id.clone();
        if reviewer != by && !actor.is_admin() {
            return Err(Refusal::NotReviewer { reviewer });
        }
        if !approval.is_decidable() {
            return Err(Refusal::ApprovalClosed { status: approval.status });
        }
        if !approval.is_about(&version) {
            return Err(Refusal::DigestMismatch);
        }
        let approval = approval.clone();
        if !self.is_qualified(&approval, people) {
            return Err(Refusal::RoleLost { user: reviewer });
        }
        self.require_independent_of_authors(&by, people, Period::Window, now)?;
        let lapsing = self.lapsing_decisions(people, now);
        if decision.kind == DecisionKind::Approve {
            self.require_independent_of_approvers(&by, people, &lapsing, now)?;
            let approver = Approver { decided_by: &by, chat_holders };
            self.require_separate_approvers(decision.approval_id, approver, people, &lapsing, now)?;
            if decision.is_batch {
                self.require_batchable()?;
            }
            self.require_friction(decision.answer, actor, now)?;
        }
        let action = format!("approval.{}", decision.kind.as_str());
        self.lapse(lapsing, Some(&Trigger::Command(action.clone())))?;
        self.forget_lost_roles(people);
        let approval = self.approval_mut(decision.approval_id)?;
        approval.decide(decision.kind, &by, reason, now);
        if decision.kind == DecisionKind::Approve {
            approval.chat_holders.clone_from(chat_holders);
        }
        let followers = self.update_followers(&reviewer, decision.kind, chat_holders, now);
        let transition = self.record_approval(&action, decision.approval_id, Some(by));
        transition.reason = reason.map(str::to_owned);
        transition.chat_holders.clone_from(chat_holders);
        for (approval_id, reason) in followers {
            let transition = self.record_approval("approval.follow", &approval_id, None);
            transition.reason = Some(reason);
            transition.trigger = Some(Trigger::Followed(reviewer.clone()));
            transition.chat_holders.clone_from(chat_holders);
        }
        self.update_outcome(decision.approval_id, now)
    }

    /// Refuses a decision about a stored task that somebody edited: people would decide on something else than they see.
    fn require_unedited(&self) -> Result {
        let is_same = self.config.digest().ok() == Some(self.digest)
            && (self.scope_digest.is_none() || self.scope.digest(&self.config) == self.scope_digest);
        if is_same { Ok(()) } else { Err(Refusal::EditedTask) }
    }

    fn not_in_review(&self, action: DecisionKind) -> Refusal {
        let command =
            if action == DecisionKind::Approve { TaskCommand::Approve } else { TaskCommand::Reject };
        match next_state(self.state, command) {
            _ if self.state > TaskState::Reviewing => Refusal::AlreadyDecided { state: self.state },
            Err(refused) => refused.into(),
            Ok(_) => Refusal::AlreadyDecided { state: self.state },
        }
    }

    /// Approves the requests of those who follow a reviewer, or withdraws these approvals when the reviewer decides otherwise. An
    /// administrator's decision on behalf of the reviewer is not followed. Returns the requests that were approved, with the reason.
    fn update_followers(
        &mut self,
        leader: &UserId,
        action: DecisionKind,
        chat_holders: &BTreeSet<UserId>,
        now: Moment,
    ) -> Vec<(String, String)> {
        let mut approved = Vec::new();
        let version = self.reviewed_version();
        let approvals = &mut self.approvals;
        let is_own = |approval: &&Approval| approval.reviewer_id == *leader && approval.is_decidable();
        let own = approvals.iter().find(is_own);
        let Some(decided_by) = own.and_then(|approval| approval.reviewed_by.as_ref()) else {
            return approved;
        };
        let approves = action == DecisionKind::Approve && decided_by == leader;
        let followers = approvals.iter_mut().filter(|approval| approval.follows.as_ref() == Some(leader));
        for approval in followers.filter(|approval| approval.is_about(&version)) {
            let by_following =
                approval.status == ApprovalStatus::Approved && approval.reviewed_by.as_ref() == Some(leader);
            // What follows an approval in a chat depends on the same people, until the leader approves elsewhere.
            let is_outdated = by_following && approval.chat_holders != *chat_holders;
            if approves && (approval.status == ApprovalStatus::Pending || is_outdated) {
                let reason = format!("follows {leader}");
                approval.decide(DecisionKind::Approve, leader, Some(&reason), now);
                approval.chat_holders.clone_from(chat_holders);
                approved.push((approval.approval_id.clone(), reason));
            } else if !approves && by_following {
                approval.reopen();
            }
        }
        approved
    }

    /// Approves or rejects the task if the decisions suffice, of which that on `approval_id` is the last.
    fn update_outcome(&mut self, approval_id: &str, now: Moment) -> Result {
        let votes = self.votes();
        let is_rejected = self.requirements.iter().any(|requirement| requirement.is_rejected(&votes));
        let is_blocked = self.approvals.iter().any(|approval| self.requests_changes(approval));
        let command = if is_rejected {
            TaskCommand::Reject
        } else if !is_blocked && is_quorum_reached(&self.requirements, &votes) {
            TaskCommand::Approve
        } else {
            return Ok(());
        };
        self.override_request = None;
        self.execute(command, None, now)?.trigger = Some(Trigger::Decision(approval_id.to_owned()));
        self.resolve_open_approvals();
        Ok(())
    }

    /// Whether a request for changes still blocks the task. Delegating such a request does not lift it: only the decision of its
    /// present reviewer does.
    pub(super) fn requests_changes(&self, approval: &Approval) -> bool {
        if !self.is_current(approval) || approval.response_action != Some(DecisionKind::RequestChanges) {
            return false;
        }
        let mut present = approval;
        // Bounded, because a delegation never returns to a request of the same chain.
        for _ in 0..self.approvals.len() {
            let Some(to) =
                present.delegated_to.as_ref().filter(|_| present.status == ApprovalStatus::Delegated)
            else {
                break;
            };
            let is_next = |other: &&Approval| other.reviewer_id == *to && self.is_current(other);
            let Some(next) = self.approvals.iter().rev().find(is_next) else { return false };
            present = next;
        }
        matches!(present.status, ApprovalStatus::ChangesRequested | ApprovalStatus::Pending)
    }

    pub(super) fn authorize_revoke(&self, actor: &Actor) -> Result<UserId> {
        let by = self.authorize_non_author(actor)?;
        let approved = !actor.is_agent()
            && self.approvals.iter().any(|approval| {
                approval.status == ApprovalStatus::Approved && approval.reviewed_by.as_ref() == Some(&by)
            });
        if approved || actor.is_admin() { Ok(by) } else { Err(Refusal::Forbidden) }
    }

    /// Revokes an approved task before it is applied: by somebody who approved it, or by an administrator.
    pub fn revoke(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result {
        let by = self.authorize_revoke(actor)?;
        let reason = required_reason(reason)?;
        let author = self.author_id.clone();
        let transition = self.execute(TaskCommand::Revoke, Some(by), now)?;
        transition.reason = Some(reason);
        transition.notify = vec![author];
        self.forced = false;
        Ok(())
    }

    pub(super) fn authorize_cancel(&self, actor: &Actor) -> Result {
        actor.require(Permission::Cancel)?;
        let is_author = actor.user.as_ref().is_some_and(|user| self.author_set.contains(user));
        if actor.user.is_none() || is_author || actor.is_admin() { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    pub fn cancel(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result {
        self.authorize_cancel(actor)?;
        next_state(self.state, TaskCommand::Cancel)?;
        self.override_request = None;
        let transition = self.execute(TaskCommand::Cancel, actor.user.clone(), now)?;
        transition.reason = visible(reason).map(str::to_owned);
        self.resolve_open_approvals();
        Ok(())
    }

    /// Decides that a cancelled task may be archived at once, by those who may cancel it. The caller moves it.
    pub fn archive(&self, actor: &Actor) -> Result<Transition> {
        self.authorize_cancel(actor)?;
        let to = next_state(self.state, TaskCommand::Archive)?;
        Ok(Transition::new("task.archive", actor.user.clone(), self.state, to))
    }

    /// Permits administrators who are not authors of the task.
    pub(super) fn authorize_admin_non_author(&self, actor: &Actor, permission: Permission) -> Result<UserId> {
        actor.require_admin(permission)?;
        self.authorize_non_author(actor)
    }

    /// Requests an override of the policies, which a second administrator must confirm.
    pub fn request_override(
        &mut self,
        reason: Option<&str>,
        ticket: Option<&str>,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        let by = self.authorize_admin_non_author(actor, Permission::Override)?;
        self.require_unedited()?;
        self.require_independent_of_authors(&by, people, Period::Ever, now)?;
        let reason = required_reason(reason)?;
        let ticket = visible(ticket).ok_or(Refusal::TicketRequired)?.to_owned();
        let transition = self.execute(TaskCommand::Override, Some(by.clone()), now)?;
        transition.reason = Some(reason.clone());
        transition.ticket = Some(ticket.clone());
        self.override_request = Some(OverrideRequest { by, reason, incident_ticket: ticket, at: now });
        Ok(())
    }

    /// Checks that somebody may confirm the pending override, and returns both.
    pub(super) fn authorize_confirm(&self, actor: &Actor, now: Moment) -> Result<(UserId, OverrideRequest)> {
        let by = self.authorize_admin_non_author(actor, Permission::Override)?;
        next_state(self.state, TaskCommand::ConfirmOverride)?;
        let in_time = |request: &OverrideRequest| request.at.plus_ms(OVERRIDE_CONFIRMATION_TIMEOUT_MS) > now;
        let request = self.override_request.clone().filter(in_time).ok_or(Refusal::NoOverrideRequest)?;
        if request.by == by { Err(Refusal::SameAdmin { user: request.by }) } else { Ok((by, request)) }
    }

    /// Confirms an override: unsatisfied requirements are overridden, and the task is approved. The answer carries what an approval
    /// would; its reason is stored beside that of the request.
    pub fn confirm_override(
        &mut self,
        answer: &Answer,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        let (by, request) = self.authorize_confirm(actor, now)?;
        self.require_unedited()?;
        self.require_current(answer)?;
        self.require_independent_of_authors(&by, people, Period::Ever, now)?;
        if let Some(why) = people.dependence(&by, &request.by, Period::Ever, now) {
            return Err(Refusal::NotIndependent(Box::new(why)));
        }
        // The first administrator may have become dependent, or have lost the role, since the request.
        self.require_independent_of_authors(&request.by, people, Period::Ever, now)?;
        if !people.active(&request.by).is_some_and(|user| user.has_role(ADMIN)) {
            return Err(Refusal::NoOverrideRequest);
        }
        self.require_override_friction(answer, actor, now)?;
        let reason = match answer.reason() {
            Some(confirmed) => format!("{}; {by} confirmed: {confirmed}", request.reason),
            None => request.reason,
        };
        let text =
            format!("{} and {by} overrode the policy for {}: {reason}", request.by, request.incident_ticket);
        let progress = self.progress();
        for (requirement, progress) in self.requirements.iter_mut().zip(progress) {
            if progress.status == RequirementStatus::Unsatisfied {
                requirement.overridden = Some(text.clone());
            }
        }
        self.override_request = None;
        let transition = self.execute(TaskCommand::ConfirmOverride, Some(by), now)?;
        transition.reason = Some(reason);
        transition.ticket = Some(request.incident_ticket);
        self.resolve_open_approvals();
        Ok(())
    }

    /// Lets an administrator apply an approved task before all others.
    pub fn force_apply(
        &mut self,
        reason: Option<&str>,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        let by = self.authorize_admin_non_author(actor, Permission::ForceApply)?;
        self.require_independent_of_authors(&by, people, Period::Window, now)?;
        let reason = required_reason(reason)?;
        self.execute(TaskCommand::ForceApply, Some(by), now)?.reason = Some(reason);
        self.forced = true;
        self.apply_after = None;
        Ok(())
    }
}
