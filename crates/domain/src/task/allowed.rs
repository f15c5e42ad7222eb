//! What a task is open to: of all that its state allows, what somebody may ask of it.
//!
//! It goes by the same guards as the commands themselves. What is not listed here would be refused; what is listed may still be
//! refused for what is said with it, such as no reason, or a digest that is not the present one.

use super::{Actor, Task, TaskCommand, allowed};
use crate::Moment;
use crate::approval::Approval;
use crate::permission::Permission;

impl Task {
    /// What somebody may ask of it now.
    #[must_use]
    pub fn open_to(&self, actor: &Actor, now: Moment) -> Vec<TaskCommand> {
        allowed(self.state).into_iter().filter(|verb| self.is_open_to(*verb, actor, now)).collect()
    }

    fn is_open_to(&self, verb: TaskCommand, actor: &Actor, now: Moment) -> bool {
        match verb {
            TaskCommand::Modify | TaskCommand::Delete | TaskCommand::Resubmit => {
                self.as_author(actor).is_ok()
            }
            TaskCommand::Submit => self.own(actor, Permission::Submit).is_ok(),
            TaskCommand::Approve | TaskCommand::Reject => {
                self.approvals.iter().any(|one| self.can_answer(one, actor))
            }
            TaskCommand::Revoke => self.may_revoke(actor).is_ok(),
            TaskCommand::Override => self.past_policies(actor, Permission::Override).is_ok(),
            TaskCommand::ConfirmOverride => self.confirms(actor, now).is_ok(),
            TaskCommand::ForceApply => self.past_policies(actor, Permission::ForceApply).is_ok(),
            TaskCommand::Stop => Self::may_command(actor).is_ok(),
            TaskCommand::RollBack => Self::may_command(actor).is_ok() && self.can_be_rolled_back(),
            TaskCommand::Cancel => self.may_cancel(actor).is_ok(),
            TaskCommand::Comment => self.may_comment(actor).is_ok(),
            TaskCommand::Assign
            | TaskCommand::GoStale
            | TaskCommand::Expire
            | TaskCommand::BeginApply
            | TaskCommand::Complete
            | TaskCommand::Fail
            | TaskCommand::Retry => false,
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
