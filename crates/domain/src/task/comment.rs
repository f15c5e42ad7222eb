//! Comments: who may comment on a task, and who is notified. A comment does not change the task, not even its revision.

use std::collections::BTreeSet;

use super::{Actor, Refusal, Result, Task, TaskCommand, Transition, next_state};
use crate::people::UserId;
use crate::permission::ActorRole;

impl Task {
    /// Whether somebody takes part in this task: its authors and their agents, everybody who was asked to review it, the agent
    /// that applies it, and administrators. Agents of reviewers do not.
    pub fn is_participant(&self, actor: &Actor) -> bool {
        let takes_part =
            |user| self.author_set.contains(user) || (!actor.is_agent() && self.was_reviewer(user));
        actor.roles.contains(&ActorRole::Admin)
            || actor.user.as_ref().is_some_and(takes_part)
            || actor.agent_id.as_deref().is_some_and(|agent| self.is_applied_by(agent))
    }

    /// Whether an agent applies the task or was the last to do so.
    pub fn is_applied_by(&self, agent_id: &str) -> bool {
        let is_for_agents = self.config.agent_work().is_some();
        is_for_agents && self.execution.as_ref().is_some_and(|execution| execution.worker == agent_id)
    }

    pub(super) fn authorize_comment(&self, actor: &Actor) -> Result<UserId> {
        actor.user.clone().filter(|_| self.is_participant(actor)).ok_or(Refusal::Forbidden)
    }

    /// A participant comments. Storing the comment is up to the caller.
    pub fn comment(&self, actor: &Actor) -> Result<Transition> {
        let author = self.authorize_comment(actor)?;
        let to = next_state(self.state, TaskCommand::Comment)?;
        let open = self.approvals.iter().filter(|approval| approval.is_open());
        let concerned: BTreeSet<&UserId> =
            self.author_set.iter().chain(open.map(|approval| &approval.reviewer_id)).collect();
        let mut transition = Transition::new("task.comment", Some(author.clone()), self.state, to);
        transition.notify = concerned.into_iter().filter(|user| **user != author).cloned().collect();
        Ok(transition)
    }
}
