//! Decisions of reviewers and their outcome, and the commands of administrators that override or reorder them.

use super::{Actor, CONFIRM_WITHIN_MS, Digest, OverrideRequest, Refusal, State, Task, TaskCommand, next};
use crate::Moment;
use crate::approval::quorum::{Status, is_reached};
use crate::approval::{Approval, ApprovalStatus, DecisionKind};
use crate::people::UserId;
use crate::permission::Permission;

/// A decision on an approval request.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    pub approval_id: &'a str,
    pub action: DecisionKind,
    pub reason: Option<&'a str>,
    /// The digest that the reviewer saw. If given, it must be the current one.
    pub digest: Option<Digest>,
}

pub(super) fn non_empty(reason: Option<&str>) -> Option<&str> {
    reason.map(str::trim).filter(|reason| !reason.is_empty())
}

impl Task {
    /// Records the decision of a reviewer, or of an administrator on the reviewer's behalf. A reviewer can change a decision
    /// until the task is decided.
    pub fn respond(&mut self, decision: &Decision<'_>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        self.permit_answer(actor, decision.approval_id)?;
        let by = self.not_ones_own(actor)?;
        if self.state != State::Reviewing {
            return Err(self.not_in_review(decision.action));
        }
        if decision.digest.is_some_and(|digest| digest != self.digest) {
            return Err(Refusal::DigestMismatch { current: self.digest });
        }
        let reason = non_empty(decision.reason);
        if decision.action != DecisionKind::Approve && reason.is_none() {
            return Err(Refusal::ReasonRequired);
        }
        let (digest, fingerprint) = (self.digest, self.fingerprint.clone());
        let approval = self.approval_mut(decision.approval_id)?;
        let reviewer = approval.reviewer_id.clone();
        if reviewer != by && !actor.is_admin() {
            return Err(Refusal::NotAsked { reviewer });
        }
        if !approval.is_answerable() {
            return Err(Refusal::NotAnswerable { status: approval.status });
        }
        if approval.digest != digest || approval.fingerprint != fingerprint {
            return Err(Refusal::DigestMismatch { current: digest });
        }
        approval.answer(decision.action, &by, reason, now);
        self.follow(&reviewer, decision.action, now);
        let transition =
            self.record(&format!("approval.{}", decision.action.word()), State::Reviewing, Some(by));
        transition.approval_id = Some(decision.approval_id.to_owned());
        transition.reason = reason.map(str::to_owned);
        self.settle(now)
    }

    fn not_in_review(&self, action: DecisionKind) -> Refusal {
        let command =
            if action == DecisionKind::Approve { TaskCommand::Approve } else { TaskCommand::Reject };
        match next(self.state, command) {
            _ if self.state > State::Reviewing => Refusal::AlreadyDecided { state: self.state },
            Err(refused) => refused.into(),
            Ok(_) => Refusal::AlreadyDecided { state: self.state },
        }
    }

    /// Approves the requests of those who follow a reviewer, or withdraws these approvals when the reviewer decides otherwise. An
    /// administrator's decision on behalf of the reviewer is not followed.
    fn follow(&mut self, leader: &UserId, action: DecisionKind, now: Moment) {
        let Some(decided_by) = self
            .approvals
            .iter()
            .find(|approval| approval.reviewer_id == *leader && approval.is_answerable())
            .and_then(|approval| approval.reviewed_by.clone())
        else {
            return;
        };
        let approves = action == DecisionKind::Approve && decided_by == *leader;
        let (digest, fingerprint) = (self.digest, self.fingerprint.clone());
        for approval in &mut self.approvals {
            if approval.follows.as_ref() != Some(leader)
                || approval.digest != digest
                || approval.fingerprint != fingerprint
            {
                continue;
            }
            let by_following =
                approval.status == ApprovalStatus::Approved && approval.reviewed_by.as_ref() == Some(leader);
            if approves && approval.status == ApprovalStatus::Pending {
                let reason = format!("follows {leader}");
                approval.answer(DecisionKind::Approve, leader, Some(&reason), now);
            } else if !approves && by_following {
                approval.become_one(ApprovalStatus::Pending);
                approval.responded_at = None;
                approval.response_action = None;
                approval.response_reason = None;
                approval.reviewed_by = None;
            }
        }
    }

    /// Approves or rejects the task if the decisions suffice.
    pub(super) fn settle(&mut self, now: Moment) -> Result<(), Refusal> {
        let votes = self.votes();
        let is_rejected = self.requirements.iter().any(|requirement| requirement.is_rejected(&votes));
        let is_blocked = self.approvals.iter().any(|approval| self.wants_changes(approval));
        let command = if is_rejected {
            TaskCommand::Reject
        } else if !is_blocked && is_reached(&self.requirements, &votes) {
            TaskCommand::Approve
        } else {
            return Ok(());
        };
        self.override_asked = None;
        let reviewers = self.close_open();
        self.go(command, None, now)?.tell = reviewers;
        Ok(())
    }

    /// Whether a request for changes still blocks the task. Delegating such a request does not lift it: only the decision of its
    /// present reviewer does.
    fn wants_changes(&self, approval: &Approval) -> bool {
        if !self.is_about_present(approval) || approval.response_action != Some(DecisionKind::RequestChanges)
        {
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
            let is_next = |other: &&Approval| other.reviewer_id == *to && self.is_about_present(other);
            let Some(next) = self.approvals.iter().rev().find(is_next) else { return false };
            present = next;
        }
        matches!(present.status, ApprovalStatus::ChangesRequested | ApprovalStatus::Pending)
    }

    pub(super) fn may_revoke(&self, actor: &Actor) -> Result<UserId, Refusal> {
        let by = self.not_ones_own(actor)?;
        let approved = !actor.by_agent
            && self.approvals.iter().any(|approval| {
                approval.status == ApprovalStatus::Approved && approval.reviewed_by.as_ref() == Some(&by)
            });
        if approved || actor.is_admin() { Ok(by) } else { Err(Refusal::Forbidden) }
    }

    /// Revokes an approved task before it is applied: by somebody who approved it, or by an administrator.
    pub fn revoke(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.may_revoke(actor)?;
        let reason = non_empty(reason).ok_or(Refusal::ReasonRequired)?;
        let author = self.author_id.clone();
        let transition = self.go(TaskCommand::Revoke, Some(by), now)?;
        transition.reason = Some(reason.to_owned());
        transition.tell = vec![author];
        self.forced = false;
        Ok(())
    }

    pub(super) fn may_cancel(&self, actor: &Actor) -> Result<(), Refusal> {
        Self::permit(actor, Permission::Cancel)?;
        let is_author = actor.user.as_ref().is_some_and(|user| self.author_set.contains(user));
        if actor.user.is_none() || is_author || actor.is_admin() { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    pub fn cancel(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        self.may_cancel(actor)?;
        next(self.state, TaskCommand::Cancel)?;
        let reviewers = self.close_open();
        self.override_asked = None;
        let transition = self.go(TaskCommand::Cancel, actor.user.clone(), now)?;
        transition.reason = non_empty(reason).map(str::to_owned);
        transition.tell = reviewers;
        Ok(())
    }

    /// Permits administrators who are not authors of the task.
    pub(super) fn past_policies(&self, actor: &Actor, permission: Permission) -> Result<UserId, Refusal> {
        Self::permit_admin(actor, permission)?;
        self.not_ones_own(actor)
    }

    /// Requests an override of the policies, which a second administrator must confirm.
    pub fn ask_override(
        &mut self,
        reason: Option<&str>,
        ticket: Option<&str>,
        actor: &Actor,
        now: Moment,
    ) -> Result<(), Refusal> {
        let by = self.past_policies(actor, Permission::Override)?;
        let reason = non_empty(reason).ok_or(Refusal::ReasonRequired)?.to_owned();
        let ticket = non_empty(ticket).ok_or(Refusal::TicketRequired)?.to_owned();
        let transition = self.go(TaskCommand::Override, Some(by.clone()), now)?;
        transition.reason = Some(reason.clone());
        transition.ticket = Some(ticket.clone());
        self.override_asked = Some(OverrideRequest {
            by,
            reason,
            incident_ticket: ticket,
            at: now,
            token_made_by: actor.token_made_by.clone(),
        });
        Ok(())
    }

    /// Checks that somebody may confirm the pending override, and returns both.
    pub(super) fn confirms(&self, actor: &Actor, now: Moment) -> Result<(UserId, OverrideRequest), Refusal> {
        let by = self.past_policies(actor, Permission::Override)?;
        next(self.state, TaskCommand::ConfirmOverride)?;
        let in_time = |request: &OverrideRequest| request.at.plus_ms(CONFIRM_WITHIN_MS) > now;
        let request = self.override_asked.clone().filter(in_time).ok_or(Refusal::NoOverride)?;
        // Two administrators are not independent if one issued the credentials of the other.
        let is_dependent = request.by == by
            || actor.token_made_by.as_ref() == Some(&request.by)
            || request.token_made_by.as_ref() == Some(&by);
        if is_dependent { Err(Refusal::SameAdmin { user: request.by }) } else { Ok((by, request)) }
    }

    /// Confirms an override: unsatisfied requirements are overridden, and the task is approved.
    pub fn confirm_override(&mut self, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let (by, request) = self.confirms(actor, now)?;
        let text = format!(
            "{} and {by} overrode the policy for {}: {}",
            request.by, request.incident_ticket, request.reason
        );
        let votes = self.votes();
        let unsatisfied: Vec<bool> = self
            .requirements
            .iter()
            .map(|requirement| requirement.progress(&votes).status == Status::Unsatisfied)
            .collect();
        for (requirement, unsatisfied) in self.requirements.iter_mut().zip(unsatisfied) {
            if unsatisfied {
                requirement.overridden = Some(text.clone());
            }
        }
        self.override_asked = None;
        let reviewers = self.close_open();
        let transition = self.go(TaskCommand::ConfirmOverride, Some(by), now)?;
        transition.reason = Some(request.reason);
        transition.ticket = Some(request.incident_ticket);
        transition.tell = reviewers;
        Ok(())
    }

    /// Applies the task before all others because an approver asked for that. Does nothing unless the task is approved. The
    /// approver is on record with the approval.
    pub fn apply_first(&mut self) {
        if self.state == State::Approved && !self.forced {
            self.forced = true;
            self.record("task.apply_first", State::Approved, None).reason =
                Some("an approver requested immediate application".to_owned());
        }
    }

    /// Lets an administrator apply an approved task before all others.
    pub fn force_apply(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.past_policies(actor, Permission::ForceApply)?;
        let reason = non_empty(reason).ok_or(Refusal::ReasonRequired)?.to_owned();
        self.go(TaskCommand::ForceApply, Some(by), now)?.reason = Some(reason);
        self.forced = true;
        self.apply_after = None;
        Ok(())
    }
}
