//! Allowed commands: of those that the state allows, which ones an actor may give.
//!
//! The same checks as in the commands themselves apply. A command that is not listed would be refused. A listed one may still be
//! refused for its arguments, such as a missing reason or an outdated digest.

use super::{Actor, Task, TaskCommand, allowed};
use crate::Moment;
use crate::approval::Approval;
use crate::permission::Permission;

impl Task {
    #[must_use]
    pub fn open_to(&self, actor: &Actor, now: Moment) -> Vec<TaskCommand> {
        allowed(self.state).into_iter().filter(|command| self.is_allowed(*command, actor, now)).collect()
    }

    fn is_allowed(&self, command: TaskCommand, actor: &Actor, now: Moment) -> bool {
        match command {
            TaskCommand::Modify | TaskCommand::Delete | TaskCommand::Resubmit => {
                self.as_author(actor).is_ok()
            }
            TaskCommand::Submit => self.own(actor, Permission::Submit).is_ok(),
            TaskCommand::Approve | TaskCommand::Reject => {
                self.approvals.iter().any(|approval| self.can_decide(approval, actor))
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

    /// Whether somebody can decide a request, as its reviewer or as an administrator.
    fn can_decide(&self, approval: &Approval, actor: &Actor) -> bool {
        self.permit_answer(actor, &approval.approval_id).is_ok()
            && self.not_ones_own(actor).is_ok_and(|by| approval.reviewer_id == by || actor.is_admin())
            && approval.is_answerable()
            && self.is_about_present(approval)
    }
}
