//! Submission and modification: a draft enters review, and a task whose config or preview changed returns to it.

use super::{Actor, Config, Digest, Refusal, Reopened, State, Task, TaskCommand, Transition, next};
use crate::Moment;
use crate::approval::assignment::{Assignee, Assignment, QuorumUnreachable};
use crate::approval::{Approval, ApprovalStatus};
use crate::people::UserId;
use crate::permission::Permission;
use crate::risk::Risk;

/// The risk and the reviewers of a task, determined before the review starts.
pub struct Plan<'a> {
    pub risk: Risk,
    /// The fingerprint of the preview.
    pub fingerprint: Option<String>,
    pub assignment: Result<Assignment, QuorumUnreachable>,
    /// How long reviewers have until a request escalates.
    pub due_after_ms: u64,
    /// Generates the ids of approval requests.
    pub ids: &'a mut dyn FnMut() -> String,
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("risk", &self.risk)
            .field("assignment", &self.assignment)
            .finish_non_exhaustive()
    }
}

impl Task {
    /// Permits authors and administrators.
    pub(super) fn own(&self, actor: &Actor, permission: Permission) -> Result<Option<UserId>, Refusal> {
        Self::permit(actor, permission)?;
        let is_author = actor.user.as_ref().is_some_and(|user| self.author_set.contains(user));
        if is_author || actor.is_admin() { Ok(actor.user.clone()) } else { Err(Refusal::Forbidden) }
    }

    /// Permits authors only: a person who determines what is executed must be in the author set. Administrators submit and cancel
    /// the tasks of others, but do not change them.
    pub(super) fn as_author(&self, actor: &Actor) -> Result<UserId, Refusal> {
        Self::permit(actor, Permission::CreateTask)?;
        actor.user.clone().filter(|user| self.author_set.contains(user)).ok_or(Refusal::Forbidden)
    }

    /// Submits a draft for review, or approves it at once if no approval is required.
    pub fn submit(&mut self, plan: Plan<'_>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.own(actor, Permission::Submit)?;
        next(self.state, TaskCommand::Submit)?;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.go(TaskCommand::Submit, by, now)?;
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        if let Some(reason) = assignment.auto_approved.clone() {
            self.take_over(assignment);
            self.go(TaskCommand::Approve, None, now)?.reason = Some(reason);
            return Ok(());
        }
        self.go(TaskCommand::Assign, None, now)?;
        self.ask_anew(assignment, due_after_ms, ids, now)
    }

    /// Changes the config. If the task is in review or approved, the review restarts and earlier decisions do not count.
    pub fn modify(
        &mut self,
        config: Config,
        digest: Digest,
        plan: Plan<'_>,
        actor: &Actor,
        now: Moment,
    ) -> Result<(), Refusal> {
        let by = self.as_author(actor)?;
        next(self.state, TaskCommand::Modify)?;
        if self.approvals.len() >= super::MOST_REQUESTS {
            return Err(Refusal::TooManyRequests { count: self.approvals.len() });
        }
        let was_draft = self.state == State::Draft;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let auto_approvable = assignment.as_ref().is_ok_and(|found| found.auto_approved.is_some());
        let assignment = if was_draft { None } else { Some(assignment?) };
        self.config = config;
        self.digest = digest;
        self.assess(risk, auto_approvable, now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_asked = None;
        let why = format!("{by} changed the task");
        self.go(TaskCommand::Modify, Some(by), now)?;
        match assignment {
            None => Ok(()),
            Some(assignment) => {
                self.reopened = Some(Reopened { why, at: now });
                self.invalidate();
                self.ask_anew(assignment, due_after_ms, ids, now)
            }
        }
    }

    /// Decides that an author may delete a draft. The caller deletes the stored task.
    pub fn delete(&self, actor: &Actor) -> Result<Transition, Refusal> {
        let author = self.as_author(actor)?;
        let to = next(self.state, TaskCommand::Delete)?;
        Ok(Transition::new("task.delete", Some(author), self.state, to))
    }

    /// Records that an author creates a new draft from a rejected or failed task, and returns that author. The caller creates
    /// the draft.
    pub fn resubmit(&mut self, actor: &Actor, now: Moment) -> Result<UserId, Refusal> {
        let by = self.as_author(actor)?;
        self.go(TaskCommand::Resubmit, Some(by.clone()), now)?;
        Ok(by)
    }

    pub fn assess(&mut self, risk: Risk, auto_approvable: bool, now: Moment) {
        self.risk = Some(risk);
        self.auto_approvable = auto_approvable;
        self.assessed_at = Some(now);
    }

    /// Records that a worker has previewed a draft.
    pub fn previewed(&mut self) {
        self.record("task.previewed", self.state, None);
    }

    /// Returns to review because the preview no longer matches the one that reviewers saw.
    pub fn go_stale(&mut self, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        self.return_to_review(TaskCommand::GoStale, plan, now)
    }

    /// Returns to review because the approval expired.
    pub fn expire(&mut self, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        self.return_to_review(TaskCommand::Expire, plan, now)
    }

    fn return_to_review(&mut self, command: TaskCommand, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        next(self.state, command)?;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_asked = None;
        let why = match (command, self.state) {
            (TaskCommand::Expire, _) => "EXPIRED: the approval expired before the task was applied",
            (_, State::Approved) => "STALE_PREVIEW: the preview no longer matches what was approved",
            _ => "STALE_PREVIEW: the preview became available only after reviewers were asked",
        };
        self.go(command, None, now)?.reason = Some(why.to_owned());
        self.reopened = Some(Reopened { why: why.to_owned(), at: now });
        self.invalidate();
        self.ask_anew(assignment, due_after_ms, ids, now)
    }

    /// Invalidates earlier decisions and open requests.
    fn invalidate(&mut self) {
        for approval in self.approvals.iter_mut().filter(|approval| approval.is_answerable()) {
            approval.become_one(ApprovalStatus::Invalidated);
        }
        self.apply_after = None;
        if let Some(execution) = &mut self.execution {
            execution.retry_count = 0;
        }
    }

    /// Requests approvals from the assigned reviewers. If none is required, the task is approved at once.
    fn ask_anew(
        &mut self,
        assignment: Assignment,
        due_after_ms: u64,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result<(), Refusal> {
        let auto_approved = assignment.auto_approved.clone();
        for assignee in self.take_over(assignment) {
            let approval = self.request(assignee, ids(), now, now.plus_ms(due_after_ms));
            let (id, reviewer) = (approval.approval_id.clone(), approval.reviewer_id.clone());
            self.approvals.push(approval);
            let transition = self.record("approval.request", self.state, None);
            transition.approval_id = Some(id);
            transition.tell = vec![reviewer];
        }
        if let Some(reason) = auto_approved {
            self.go(TaskCommand::Approve, None, now)?.reason = Some(reason);
        }
        Ok(())
    }

    /// Stores the assignment with the task, and returns the reviewers to ask.
    fn take_over(&mut self, assignment: Assignment) -> Vec<Assignee> {
        self.required_count = crate::approval::quorum::least(&assignment.requirements);
        self.requirements = assignment.requirements;
        self.considered = assignment.considered;
        self.passed_by = assignment.passed_by;
        self.auto_approved = assignment.auto_approved;
        assignment.wanted
    }

    fn request(&self, assignee: Assignee, id: String, now: Moment, due_at: Moment) -> Approval {
        Approval {
            approval_id: id,
            task_id: self.task_id.clone(),
            revision: 1,
            reviewer_id: assignee.reviewer_id,
            reviewer_name: assignee.name,
            policies: assignee.policies,
            stands_for: assignee.stands_for,
            delegation_chain: assignee.chain,
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
            fingerprint: self.fingerprint.clone(),
            responded_at: None,
            response_action: None,
            response_reason: None,
            reviewed_by: None,
            why: assignee.why,
        }
    }
}
