//! Deciding: answers of reviewers, what they add up to, and what administrators do beside them.

use super::{Actor, CONFIRM_WITHIN_MS, Digest, OverrideRequest, Refusal, State, Task, TaskCommand, next};
use crate::Moment;
use crate::approval::quorum::{Status, is_reached};
use crate::approval::{Approval, ApprovalStatus, DecisionKind};
use crate::people::UserId;
use crate::permission::Permission;

/// What somebody answers to a request.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    /// Which request.
    pub approval_id: &'a str,
    /// Yes, no, or not like this.
    pub action: DecisionKind,
    /// Why.
    pub reason: Option<&'a str>,
    /// For what exactly, if the caller says so.
    pub digest: Option<Digest>,
}

pub(super) fn said(reason: Option<&str>) -> Option<&str> {
    reason.map(str::trim).filter(|reason| !reason.is_empty())
}

impl Task {
    /// A reviewer answers, or an administrator in its place. The last answer before the task is decided counts.
    pub fn respond(&mut self, answer: &Decision<'_>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        self.permit_answer(actor, answer.approval_id)?;
        let by = self.not_ones_own(actor)?;
        if self.state != State::Reviewing {
            return Err(self.too_late(answer.action));
        }
        if answer.digest.is_some_and(|digest| digest != self.digest) {
            return Err(Refusal::DigestMismatch { now: self.digest });
        }
        let reason = said(answer.reason);
        if answer.action != DecisionKind::Approve && reason.is_none() {
            return Err(Refusal::ReasonRequired);
        }
        let (digest, fingerprint) = (self.digest, self.fingerprint.clone());
        let approval = self.approval_mut(answer.approval_id)?;
        let reviewer = approval.reviewer_id.clone();
        if reviewer != by && !actor.is_admin() {
            return Err(Refusal::NotAsked { reviewer });
        }
        if !approval.is_answerable() {
            return Err(Refusal::NotAnswerable { status: approval.status });
        }
        if approval.digest != digest || approval.fingerprint != fingerprint {
            return Err(Refusal::DigestMismatch { now: digest });
        }
        approval.answer(answer.action, &by, reason, now);
        self.follow(&reviewer, answer.action, now);
        let record = self.record(&format!("approval.{}", answer.action.word()), State::Reviewing, Some(by));
        record.approval_id = Some(answer.approval_id.to_owned());
        record.reason = reason.map(str::to_owned);
        self.settle(now)
    }

    fn too_late(&self, action: DecisionKind) -> Refusal {
        let verb = if action == DecisionKind::Approve { TaskCommand::Approve } else { TaskCommand::Reject };
        match next(self.state, verb) {
            _ if self.state > State::Reviewing => Refusal::AlreadyDecided { state: self.state },
            Err(refused) => refused.into(),
            Ok(_) => Refusal::AlreadyDecided { state: self.state },
        }
    }

    /// Those who follow somebody agree when it does by itself, and do not any more when that is not its answer any more.
    fn follow(&mut self, leader: &UserId, action: DecisionKind, now: Moment) {
        let Some(decided_by) = self
            .approvals
            .iter()
            .find(|approval| approval.reviewer_id == *leader && approval.is_answerable())
            .and_then(|approval| approval.reviewed_by.clone())
        else {
            return;
        };
        let agrees = action == DecisionKind::Approve && decided_by == *leader;
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
            if agrees && approval.status == ApprovalStatus::Pending {
                let reason = format!("follows {leader}");
                approval.answer(DecisionKind::Approve, leader, Some(&reason), now);
            } else if !agrees && by_following {
                approval.become_one(ApprovalStatus::Pending);
                approval.responded_at = None;
                approval.response_action = None;
                approval.response_reason = None;
                approval.reviewed_by = None;
            }
        }
    }

    /// What the answers add up to.
    pub(super) fn settle(&mut self, now: Moment) -> Result<(), Refusal> {
        let votes = self.votes();
        let rejected = self.requirements.iter().any(|requirement| requirement.is_rejected(&votes));
        let blocked = self.approvals.iter().any(|approval| self.wants_changes(approval));
        let verb = if rejected {
            TaskCommand::Reject
        } else if !blocked && is_reached(&self.requirements, &votes) {
            TaskCommand::Approve
        } else {
            return Ok(());
        };
        self.override_asked = None;
        let told = self.close_open();
        self.go(verb, None, now)?.tell = told;
        Ok(())
    }

    /// Whether somebody still wants changes. Whoever hands such a request on lifts nothing: that does the answer of the one who
    /// has it now.
    fn wants_changes(&self, approval: &Approval) -> bool {
        if !self.is_about_present(approval) || approval.response_action != Some(DecisionKind::RequestChanges)
        {
            return false;
        }
        let mut has_it = approval;
        // Each step goes to another request: those who handed on are not asked by the same one again.
        for _ in 0..self.approvals.len() {
            let Some(to) =
                has_it.delegated_to.as_ref().filter(|_| has_it.status == ApprovalStatus::Delegated)
            else {
                break;
            };
            let of_successor = |one: &&Approval| one.reviewer_id == *to && self.is_about_present(one);
            let Some(next) = self.approvals.iter().rev().find(of_successor) else { return false };
            has_it = next;
        }
        matches!(has_it.status, ApprovalStatus::ChangesRequested | ApprovalStatus::Pending)
    }

    pub(super) fn may_revoke(&self, actor: &Actor) -> Result<UserId, Refusal> {
        let by = self.not_ones_own(actor)?;
        let approved = !actor.by_agent
            && self.approvals.iter().any(|approval| {
                approval.status == ApprovalStatus::Approved && approval.reviewed_by.as_ref() == Some(&by)
            });
        if approved || actor.is_admin() { Ok(by) } else { Err(Refusal::Forbidden) }
    }

    /// One who approved, or an administrator, takes the approval back before anything was done.
    pub fn revoke(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.may_revoke(actor)?;
        let reason = said(reason).ok_or(Refusal::ReasonRequired)?;
        let author = self.author_id.clone();
        let record = self.go(TaskCommand::Revoke, Some(by), now)?;
        record.reason = Some(reason.to_owned());
        record.tell = vec![author];
        self.forced = false;
        Ok(())
    }

    pub(super) fn may_cancel(&self, actor: &Actor) -> Result<(), Refusal> {
        Self::permit(actor, Permission::Cancel)?;
        let own = actor.user.as_ref().is_some_and(|who| self.author_set.contains(who));
        if actor.user.is_none() || own || actor.is_admin() { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    /// The author, an administrator or the service gives it up.
    pub fn cancel(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        self.may_cancel(actor)?;
        next(self.state, TaskCommand::Cancel)?;
        let told = self.close_open();
        self.override_asked = None;
        let record = self.go(TaskCommand::Cancel, actor.user.clone(), now)?;
        record.reason = said(reason).map(str::to_owned);
        record.tell = told;
        Ok(())
    }

    /// What administrators alone do to what is not their own.
    pub(super) fn past_policies(&self, actor: &Actor, act: Permission) -> Result<UserId, Refusal> {
        Self::permit_admin(actor, act)?;
        self.not_ones_own(actor)
    }

    /// An administrator asks for a decision past the policies.
    pub fn ask_override(
        &mut self,
        reason: Option<&str>,
        ticket: Option<&str>,
        actor: &Actor,
        now: Moment,
    ) -> Result<(), Refusal> {
        let by = self.past_policies(actor, Permission::Override)?;
        let reason = said(reason).ok_or(Refusal::ReasonRequired)?.to_owned();
        let ticket = said(ticket).ok_or(Refusal::TicketRequired)?.to_owned();
        let record = self.go(TaskCommand::Override, Some(by.clone()), now)?;
        record.reason = Some(reason.clone());
        record.ticket = Some(ticket.clone());
        self.override_asked = Some(OverrideRequest {
            by,
            reason,
            incident_ticket: ticket,
            at: now,
            token_made_by: actor.token_made_by.clone(),
        });
        Ok(())
    }

    /// Who agrees to which override.
    pub(super) fn confirms(&self, actor: &Actor, now: Moment) -> Result<(UserId, OverrideRequest), Refusal> {
        let by = self.past_policies(actor, Permission::Override)?;
        next(self.state, TaskCommand::ConfirmOverride)?;
        let in_time = |asked: &OverrideRequest| asked.at.plus_ms(CONFIRM_WITHIN_MS) > now;
        let asked = self.override_asked.clone().filter(in_time).ok_or(Refusal::NoOverride)?;
        // Two who act with what one of them made are one.
        let same = asked.by == by
            || actor.token_made_by.as_ref() == Some(&asked.by)
            || asked.token_made_by.as_ref() == Some(&by);
        if same { Err(Refusal::SameAdmin { who: asked.by }) } else { Ok((by, asked)) }
    }

    /// A second administrator agrees.
    pub fn confirm_override(&mut self, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let (by, asked) = self.confirms(actor, now)?;
        let why =
            format!("{} and {by} passed it by for {}: {}", asked.by, asked.incident_ticket, asked.reason);
        let votes = self.votes();
        let open: Vec<bool> = self
            .requirements
            .iter()
            .map(|requirement| requirement.progress(&votes).status == Status::Unsatisfied)
            .collect();
        for (requirement, open) in self.requirements.iter_mut().zip(open) {
            if open {
                requirement.overridden = Some(why.clone());
            }
        }
        self.override_asked = None;
        let told = self.close_open();
        let record = self.go(TaskCommand::ConfirmOverride, Some(by), now)?;
        record.reason = Some(asked.reason);
        record.ticket = Some(asked.incident_ticket);
        record.tell = told;
        Ok(())
    }

    /// Whoever approved it wants it done first; nothing, if it is not approved by that. Who that was stands at the approval.
    pub fn apply_first(&mut self) {
        if self.state == State::Approved && !self.forced {
            self.forced = true;
            self.record("task.apply_first", State::Approved, None).reason =
                Some("its approval was to be applied immediately".to_owned());
        }
    }

    /// An administrator puts it before all others.
    pub fn force_apply(&mut self, reason: Option<&str>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.past_policies(actor, Permission::ForceApply)?;
        let reason = said(reason).ok_or(Refusal::ReasonRequired)?.to_owned();
        self.go(TaskCommand::ForceApply, Some(by), now)?.reason = Some(reason);
        self.forced = true;
        self.apply_after = None;
        Ok(())
    }
}
