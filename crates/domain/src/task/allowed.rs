//! What a task is open to: of all that its state allows, what somebody may ask of it.
//!
//! It goes by the same guards as the commands themselves. What is not listed here would be refused; what is listed may still be
//! refused for what is said with it, such as no reason, or a digest that is not the present one.

use super::{Actor, Task, Verb, allowed};
use crate::Moment;
use crate::approval::Approval;
use crate::permission::Act;

impl Task {
    /// What somebody may ask of it now. Who may say something about it is not decided here: that is among it for everybody.
    #[must_use]
    pub fn open_to(&self, actor: &Actor, now: Moment) -> Vec<Verb> {
        allowed(self.state).into_iter().filter(|verb| self.is_open_to(*verb, actor, now)).collect()
    }

    fn is_open_to(&self, verb: Verb, actor: &Actor, now: Moment) -> bool {
        match verb {
            Verb::Modify | Verb::Delete | Verb::Resubmit => self.as_author(actor).is_ok(),
            Verb::Submit => self.own(actor, Act::Submit).is_ok(),
            Verb::Approve | Verb::Reject => self.approvals.iter().any(|one| self.can_answer(one, actor)),
            Verb::Revoke => self.may_revoke(actor).is_ok(),
            Verb::Override => self.past_policies(actor, Act::Override).is_ok(),
            Verb::ConfirmOverride => self.confirms(actor, now).is_ok(),
            Verb::ForceApply => self.past_policies(actor, Act::ForceApply).is_ok(),
            Verb::Stop => Self::may_command(actor).is_ok(),
            Verb::RollBack => Self::may_command(actor).is_ok() && self.can_be_rolled_back(),
            Verb::Cancel => self.may_cancel(actor).is_ok(),
            Verb::Comment => true,
            Verb::Assign
            | Verb::GoStale
            | Verb::Expire
            | Verb::BeginApply
            | Verb::Complete
            | Verb::Fail
            | Verb::Retry => false,
        }
    }

    /// Whether somebody can answer a request, or in the place of whom it asks.
    fn can_answer(&self, approval: &Approval, actor: &Actor) -> bool {
        self.permit_answer(actor, &approval.approval_id).is_ok()
            && self.not_ones_own(actor).is_ok_and(|by| approval.reviewer_id == by || actor.is_admin())
            && approval.is_answerable()
            && self.is_about_present(approval)
    }
}
