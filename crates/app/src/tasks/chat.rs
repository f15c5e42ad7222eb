//! Decisions in a chat, which go the way of any decision with further conditions.

use ade_domain::task::{ChatOrigin, TaskCommand};
use ade_store::database::StoredTask;

use super::commands::{approval_not_found, decision};
use super::{DecisionInput, Target, TaskService};
use crate::{Caller, Error, ObjectKind, Result};

impl TaskService {
    /// Records the decision of a reviewer who saw a task in a chat.
    pub(crate) async fn decide_in_chat(
        &self,
        task_id: &str,
        input: &DecisionInput,
        origin: ChatOrigin<'_>,
        caller: &Caller,
    ) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Approve)?;
        let task = self.visible_task(task_id, Some(caller)).await?;
        let own = task
            .approvals
            .iter()
            .rev()
            .find(|approval| Some(&approval.reviewer_id) == caller.user_id() && approval.is_decidable());
        // Without an own request, the decision about any other says why it is refused.
        let approval = own.or(task.approvals.first()).ok_or(Error::NotFound(ObjectKind::Approval))?;
        let approval_id = approval.approval_id.as_str();
        let decided = self.update_with_people(Target::Approval(approval_id, caller), |task, people, now| {
            let decision = decision(approval_id, input);
            task.decide_in_chat(&decision, origin, &caller.actor(), people, now)
        });
        decided.await.map_err(approval_not_found)
    }
}
