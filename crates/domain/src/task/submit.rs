//! Submission and modification: a draft enters review, and a task whose config or preview changed returns to it.

use std::collections::BTreeSet;

use super::{
    Actor, Config, Digest, Refusal, Reopened, Result, Task, TaskCommand, TaskScope, TaskState, Transition,
    next_state,
};
use crate::Moment;
use crate::approval::assignment::{Assignee, Assignment, QuorumUnreachable};
use crate::approval::{Approval, ApprovalStatus};
use crate::audit::Trigger;
use crate::people::UserId;
use crate::permission::Permission;
use crate::risk::Risk;

/// The risk and the reviewers of a task, determined before the review starts.
pub struct ReviewPlan<'a> {
    /// What the task can touch.
    pub scope: TaskScope,
    pub risk: Risk,
    /// The fingerprint of the preview.
    pub fingerprint: Option<String>,
    pub assignment: Result<Assignment, QuorumUnreachable>,
    /// How long reviewers have until a request escalates.
    pub due_after_ms: u64,
    /// Generates the ids of approval requests.
    pub ids: &'a mut dyn FnMut() -> String,
}

impl Task {
    /// Permits authors and administrators.
    pub(super) fn authorize_submit(&self, actor: &Actor) -> Result<Option<UserId>> {
        actor.require(Permission::Submit)?;
        let is_author = actor.user.as_ref().is_some_and(|user| self.author_set.contains(user));
        if is_author || actor.is_admin() { Ok(actor.user.clone()) } else { Err(Refusal::Forbidden) }
    }

    /// Permits authors only: a person who determines what is executed must be in the author set. Administrators submit and cancel
    /// the tasks of others, but do not change them.
    pub(super) fn authorize_author(&self, actor: &Actor) -> Result<UserId> {
        let author = actor.authorize_create()?;
        if self.author_set.may_edit(&author) { Ok(author) } else { Err(Refusal::Forbidden) }
    }

    /// Whether the actor may submit or change this task now. Checked before its preview is computed, which already reads data
    /// and runs programs.
    pub fn authorize_preview(&self, command: TaskCommand, actor: &Actor) -> Result {
        match command {
            TaskCommand::Submit => drop(self.authorize_submit(actor)?),
            _ => drop(self.authorize_author(actor)?),
        }
        next_state(self.state, command)?;
        Ok(())
    }

    /// Submits a draft for review, or approves it at once if no approval is required.
    pub fn submit(&mut self, plan: ReviewPlan<'_>, actor: &Actor, now: Moment) -> Result {
        let by = self.authorize_submit(actor)?;
        next_state(self.state, TaskCommand::Submit)?;
        let ReviewPlan { scope, risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.prepare_submission(actor)?;
        self.execute(TaskCommand::Submit, by, now)?;
        self.set_scope(scope);
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        if let Some(reason) = assignment.auto_approved.clone() {
            self.set_assignment(assignment);
            return self.approve_automatically(reason, now);
        }
        self.execute(TaskCommand::Assign, None, now)?.trigger =
            Some(Trigger::Command("task.submit".to_owned()));
        self.request_approvals(assignment, due_after_ms, ids, now)
    }

    /// Changes the config. If the task is in review or approved, the review restarts and earlier decisions do not count.
    pub fn modify(
        &mut self,
        config: Config,
        digest: Digest,
        plan: ReviewPlan<'_>,
        actor: &Actor,
        now: Moment,
    ) -> Result {
        let by = self.authorize_author(actor)?;
        next_state(self.state, TaskCommand::Modify)?;
        if self.approvals.len() >= super::MAX_APPROVAL_REQUESTS {
            return Err(Refusal::TooManyApprovalRequests { count: self.approvals.len() });
        }
        let was_draft = self.state == TaskState::Draft;
        let ReviewPlan { scope, risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let auto_approvable = assignment.as_ref().is_ok_and(|found| found.auto_approved.is_some());
        let assignment = if was_draft { None } else { Some(assignment?) };
        self.config = config;
        self.digest = digest;
        self.set_scope(scope);
        self.record_agent(actor);
        self.assess(risk, auto_approvable, now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_request = None;
        let why = format!("{by} changed the task");
        self.execute(TaskCommand::Modify, Some(by), now)?;
        let Some(assignment) = assignment else { return Ok(()) };
        self.reopened = Some(Reopened { reason: why, at: now });
        self.invalidate_approvals();
        self.request_approvals(assignment, due_after_ms, ids, now)
    }

    /// Decides that an author may delete a draft. The caller deletes the stored task.
    pub fn delete(&self, actor: &Actor) -> Result<Transition> {
        let author = self.authorize_author(actor)?;
        let to = next_state(self.state, TaskCommand::Delete)?;
        Ok(Transition::new("task.delete", Some(author), self.state, to))
    }

    /// Records that an author creates a new draft from a rejected or failed task, and returns that author. The caller creates
    /// the draft.
    pub fn resubmit(&mut self, actor: &Actor, now: Moment) -> Result<UserId> {
        let by = self.authorize_author(actor)?;
        self.execute(TaskCommand::Resubmit, Some(by.clone()), now)?;
        Ok(by)
    }

    pub fn assess(&mut self, risk: Risk, auto_approvable: bool, now: Moment) {
        self.risk = Some(risk);
        self.auto_approvable = auto_approvable;
        self.assessed_at = Some(now);
    }

    /// Records that a worker has previewed a draft.
    pub fn record_preview(&mut self) {
        self.record("task.previewed", self.state, None);
    }

    /// Returns to review because the preview no longer matches the one that reviewers saw.
    pub fn go_stale(&mut self, plan: ReviewPlan<'_>, now: Moment) -> Result {
        let why = match self.state {
            TaskState::Approved => "STALE_PREVIEW: the preview no longer matches what was approved",
            _ => "STALE_PREVIEW: the preview became available only after reviewers were asked",
        };
        self.return_to_review(TaskCommand::GoStale, why, plan, now)
    }

    /// Returns to review because the operator changed what the task would touch.
    pub fn go_stale_in_scope(&mut self, plan: ReviewPlan<'_>, now: Moment) -> Result {
        let why = "STALE_SCOPE: what the task can touch no longer matches what was approved";
        self.return_to_review(TaskCommand::GoStale, why, plan, now)
    }

    /// Returns to review because the approval expired.
    pub fn expire(&mut self, plan: ReviewPlan<'_>, now: Moment) -> Result {
        let why = "EXPIRED: the approval expired before the task was applied";
        self.return_to_review(TaskCommand::Expire, why, plan, now)
    }

    fn return_to_review(
        &mut self,
        command: TaskCommand,
        why: &str,
        plan: ReviewPlan<'_>,
        now: Moment,
    ) -> Result {
        next_state(self.state, command)?;
        let ReviewPlan { scope, risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.set_scope(scope);
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_request = None;
        self.execute(command, None, now)?.reason = Some(why.to_owned());
        self.reopened = Some(Reopened { reason: why.to_owned(), at: now });
        self.invalidate_approvals();
        self.request_approvals(assignment, due_after_ms, ids, now)
    }

    /// Approves a task that waits for reviewers because its policies would approve it automatically now. Returns false, and changes
    /// nothing, if they would not, or if somebody has objected.
    pub fn approve_waiting(&mut self, plan: ReviewPlan<'_>, now: Moment) -> Result<bool> {
        let Ok(Assignment { auto_approved: Some(reason), .. }) = &plan.assignment else { return Ok(false) };
        let objects = |approval: &&Approval| {
            matches!(approval.status, ApprovalStatus::Rejected | ApprovalStatus::ChangesRequested)
        };
        let has_objection =
            self.approvals.iter().any(|approval| objects(&approval) && self.is_current(approval));
        // What differs from what was approved before needs a person: an automatic approval would repeat for ever.
        let is_same = self.reopened.is_none() && plan.fingerprint == self.fingerprint;
        if self.state != TaskState::Reviewing || has_objection || !is_same {
            return Ok(false);
        }
        let reason = format!("approved automatically because of a backlog of requests: {reason}");
        self.override_request = None;
        self.auto_approved = Some(reason.clone());
        self.not_automatic.clear();
        self.requirements.clear();
        self.required_count = 0;
        let applicable = plan.assignment.map(|assignment| assignment.considered_policies).unwrap_or_default();
        let policies = applicable.into_iter().filter(|policy| policy.applies).map(|policy| policy.policy);
        let trigger = Trigger::AutomaticApproval(policies.collect());
        let transition = self.execute(TaskCommand::Approve, None, now)?;
        transition.reason = Some(reason);
        transition.trigger = Some(trigger);
        self.resolve_open_approvals();
        Ok(true)
    }

    /// Invalidates earlier decisions and open requests.
    fn invalidate_approvals(&mut self) {
        for approval in self.approvals.iter_mut().filter(|approval| approval.is_decidable()) {
            approval.set_status(ApprovalStatus::Invalidated);
        }
        self.apply_after = None;
        if let Some(execution) = &mut self.execution {
            execution.retry_count = 0;
        }
    }

    /// Requests approvals from the assigned reviewers. If none is required, the task is approved at once.
    fn request_approvals(
        &mut self,
        assignment: Assignment,
        due_after_ms: u64,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result {
        let auto_approved = assignment.auto_approved.clone();
        for assignee in self.set_assignment(assignment) {
            let approval = self.new_approval(assignee, ids(), now, now.plus_ms(due_after_ms));
            let (id, reviewer) = (approval.approval_id.clone(), approval.reviewer_id.clone());
            let policies = approval.policies.clone();
            self.approvals.push(approval);
            let request = self.record_approval("approval.request", &id, None);
            request.notify = vec![reviewer];
            request.trigger = Some(Trigger::Policies(policies));
        }
        auto_approved.map_or(Ok(()), |reason| self.approve_automatically(reason, now))
    }

    fn approve_automatically(&mut self, reason: String, now: Moment) -> Result {
        let policies = self.requirements.iter().map(|requirement| requirement.policy.clone()).collect();
        let transition = self.execute(TaskCommand::Approve, None, now)?;
        transition.reason = Some(reason);
        transition.trigger = Some(Trigger::AutomaticApproval(policies));
        Ok(())
    }

    /// Stores the assignment with the task, and returns the reviewers to ask.
    fn set_assignment(&mut self, assignment: Assignment) -> Vec<Assignee> {
        self.required_count = assignment.required_count;
        self.requirements = assignment.requirements;
        self.considered_policies = assignment.considered_policies;
        self.skipped = assignment.skipped;
        self.auto_approved = assignment.auto_approved;
        self.not_automatic = assignment.not_automatic;
        assignment.assignees
    }

    fn new_approval(&self, assignee: Assignee, id: String, now: Moment, due_at: Moment) -> Approval {
        Approval {
            approval_id: id,
            task_id: self.task_id.clone(),
            revision: 1,
            reviewer_id: assignee.reviewer_id,
            reviewer_name: assignee.name,
            policies: assignee.policies,
            on_behalf_of: assignee.on_behalf_of,
            delegation_chain: assignee.delegation_chain,
            follows: assignee.follows,
            status: ApprovalStatus::Pending,
            priority: assignee.priority,
            score: assignee.priority.score(self.risk_score()),
            delegated_to: None,
            created_at: now,
            due_at,
            escalation_level: 0,
            raised: 0,
            digest: self.digest,
            scope_digest: self.scope_digest,
            fingerprint: self.fingerprint.clone(),
            responded_at: None,
            response_action: None,
            response_reason: None,
            reviewed_by: None,
            chat_holders: BTreeSet::new(),
            reasons: assignee.reasons,
        }
    }
}
