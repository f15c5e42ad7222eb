//! Allowed commands: of those that the state allows, which ones an actor may give.
//!
//! The same checks as in the commands themselves apply. A command that is not listed would be refused. A listed one may still be
//! refused for its arguments, such as a missing reason or an outdated digest.

use super::{Actor, Task, TaskCommand, commands_for};
use crate::Moment;
use crate::approval::Approval;
use crate::permission::Permission;

impl Task {
    pub fn allowed_commands(&self, actor: &Actor, now: Moment) -> Vec<TaskCommand> {
        if self.restored {
            return Vec::new();
        }
        commands_for(self.state).into_iter().filter(|command| self.is_allowed(*command, actor, now)).collect()
    }

    fn is_allowed(&self, command: TaskCommand, actor: &Actor, now: Moment) -> bool {
        match command {
            TaskCommand::Modify | TaskCommand::Delete | TaskCommand::Resubmit => {
                self.authorize_author(actor).is_ok()
            }
            TaskCommand::Submit => self.authorize_submit(actor).is_ok(),
            TaskCommand::Approve | TaskCommand::Reject => {
                self.approvals.iter().any(|approval| self.can_decide(approval, actor))
            }
            TaskCommand::Revoke => self.authorize_revoke(actor).is_ok(),
            TaskCommand::Override => self.authorize_admin_non_author(actor, Permission::Override).is_ok(),
            TaskCommand::ConfirmOverride => self.authorize_confirm(actor, now).is_ok(),
            TaskCommand::ForceApply => self.authorize_admin_non_author(actor, Permission::ForceApply).is_ok(),
            TaskCommand::Stop => Self::authorize_admin(actor).is_ok(),
            TaskCommand::RollBack => Self::authorize_admin(actor).is_ok() && self.can_be_rolled_back(),
            TaskCommand::Cancel | TaskCommand::Archive => self.authorize_cancel(actor).is_ok(),
            TaskCommand::Comment => self.authorize_comment(actor).is_ok(),
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
        self.authorize_decision(actor, &approval.approval_id).is_ok()
            && self.authorize_non_author(actor).is_ok_and(|by| approval.reviewer_id == by || actor.is_admin())
            && approval.is_decidable()
            && self.is_current(approval)
    }
}
