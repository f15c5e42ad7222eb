//! Who may decide at the time of counting: people with the roles that they have now, independent of the authors and of each
//! other.

use super::chat::{Approver, is_one};
use super::{Refusal, Result, Task};
use crate::Moment;
use crate::approval::{Approval, ApprovalStatus, DecisionKind};
use crate::audit::Trigger;
use crate::independence::Period;
use crate::people::{People, UserId};

impl Task {
    /// Refuses somebody who is not independent of an author.
    pub(super) fn require_independent_of_authors(
        &self,
        user: &UserId,
        people: &People,
        period: Period,
        now: Moment,
    ) -> Result {
        match self.author_set.dependence(user, people, period, now) {
            Some(why) => Err(Refusal::NotIndependent(Box::new(why))),
            None => Ok(()),
        }
    }

    /// Refuses somebody who is not independent of another approver. Decisions that lapse do not matter.
    pub(super) fn require_independent_of_approvers(
        &self,
        user: &UserId,
        people: &People,
        lapsing: &[Lapse],
        now: Moment,
    ) -> Result {
        let counted = self.approvals.iter().filter(|approval| {
            approval.status == ApprovalStatus::Approved
                && self.is_current(approval)
                && lapsing.iter().all(|lapse| lapse.approval_id != approval.approval_id)
        });
        let mut approvers = counted.filter_map(|approval| approval.reviewed_by.as_ref());
        match approvers.find_map(|approver| people.dependence(user, approver, Period::Window, now)) {
            Some(why) => Err(Refusal::NotIndependent(Box::new(why))),
            None => Ok(()),
        }
    }

    /// Whether a request's reviewer still has the roles for which its policies ask.
    pub(super) fn is_qualified(&self, approval: &Approval, people: &People) -> bool {
        let mut asking = self.requirements.iter().filter(|one| approval.policies.contains(&one.policy));
        asking.all(|requirement| requirement.is_qualified(&approval.reviewer_id, people))
    }

    /// The decisions that cannot be counted any more. A request for changes is not counted but blocks: it stays until the present
    /// reviewer decides, so that nobody lifts it by taking a role away.
    pub(super) fn lapsing_decisions(&self, people: &People, now: Moment) -> Vec<Lapse> {
        let mut decided: Vec<&Approval> = self
            .approvals
            .iter()
            .filter(|approval| approval.is_decidable() && self.is_current(approval))
            .filter(|approval| {
                matches!(approval.response_action, Some(DecisionKind::Approve | DecisionKind::Reject))
            })
            .collect();
        decided.sort_by_key(|approval| approval.responded_at);
        let (mut lapsing, mut approvers) = (Vec::new(), Vec::<Approver<'_>>::new());
        for approval in decided {
            let Some(approver) = Approver::of(approval) else { continue };
            let reason = self.lapse_reason(approval, approver, &approvers, people, now);
            match reason {
                Some(reason) => lapsing.push(Lapse { approval_id: approval.approval_id.clone(), reason }),
                None if approval.response_action == Some(DecisionKind::Approve) => approvers.push(approver),
                None => {}
            }
        }
        lapsing
    }

    fn lapse_reason(
        &self,
        approval: &Approval,
        approver: Approver<'_>,
        approvers: &[Approver<'_>],
        people: &People,
        now: Moment,
    ) -> Option<String> {
        let Approver { decided_by: decider, chat_holders } = approver;
        let reviewer = &approval.reviewer_id;
        if !self.is_qualified(approval, people) {
            return Some(format!("{reviewer} no longer has a role for which the policy asks"));
        }
        let is_admin = || people.active(decider).is_some_and(|user| user.has_role(crate::people::ADMIN));
        let is_followed = approval.follows.as_ref() == Some(decider) && people.active(decider).is_some();
        if decider != reviewer && !is_followed && !is_admin() {
            return Some(format!("{decider}, who decided for {reviewer}, is no longer an administrator"));
        }
        if approval.response_action != Some(DecisionKind::Approve) {
            return None;
        }
        let of_authors = self.author_set.dependence(decider, people, Period::Window, now);
        let of_approvers = || {
            approvers
                .iter()
                .find_map(|other| people.dependence(decider, other.decided_by, Period::Window, now))
        };
        let of_holders = || {
            let common = |other: &Approver<'_>| {
                approver.common_holder(*other, |one, other| is_one(one, other, people, now)).cloned()
            };
            let writing = self.writing_holder(chat_holders, Some(decider), people, now).cloned();
            let user = writing.or_else(|| approvers.iter().find_map(common))?;
            Some(Refusal::ChatSecretHolder { user }.to_string())
        };
        of_authors.or_else(of_approvers).map(|why| why.to_string()).or_else(of_holders)
    }

    /// Withdraws decisions that cannot be counted; their reviewers are asked again. The service does so, not the person whose command
    /// is the trigger.
    pub(super) fn lapse(&mut self, lapsing: Vec<Lapse>, trigger: Option<&Trigger>) -> Result {
        for Lapse { approval_id, reason } in lapsing {
            let approval = self.approval_mut(&approval_id)?;
            approval.reopen();
            let reviewer = approval.reviewer_id.clone();
            let transition = self.record_approval("approval.lapse", &approval_id, None);
            transition.reason = Some(reason);
            transition.notify = vec![reviewer];
            transition.trigger = trigger.cloned();
        }
        Ok(())
    }

    /// Removes roles that reviewers no longer have from what they represent. Roles represented for others stay.
    pub(super) fn forget_lost_roles(&mut self, people: &People) {
        let Self { requirements, approvals, .. } = self;
        for (reviewer, roles) in requirements.iter_mut().flat_map(|one| &mut one.reviewers) {
            let represents_others = approvals.iter().any(|approval| {
                approval.reviewer_id == *reviewer
                    && approval.is_decidable()
                    && approval.on_behalf_of.iter().any(|other| other != reviewer)
            });
            if !represents_others && let Some(user) = people.get(reviewer) {
                roles.retain(|role| user.has_role(role));
            }
        }
    }
}

/// A decision that cannot be counted any more, and why.
#[derive(Debug, Clone)]
pub(super) struct Lapse {
    pub(super) approval_id: String,
    pub(super) reason: String,
}
