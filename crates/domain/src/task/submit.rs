//! From draft to review, and back into review when what was reviewed is not what would be done any more.

use super::{Actor, Config, Digest, Refusal, Reopened, State, Task, TaskCommand, Transition, next};
use crate::Moment;
use crate::approval::assignment::{Assignee, Assignment, QuorumUnreachable};
use crate::approval::{Approval, ApprovalStatus};
use crate::people::UserId;
use crate::permission::Permission;
use crate::risk::Risk;

/// What was found out about a task before people are asked about it.
pub struct Plan<'a> {
    /// How dangerous it is.
    pub risk: Risk,
    /// Of which preview.
    pub fingerprint: Option<String>,
    /// Who is asked.
    pub assignment: Result<Assignment, QuorumUnreachable>,
    /// How long people have.
    pub due_after_ms: u64,
    /// A new id for each request.
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
    /// Whose task it is may change it: somebody of its authors, or an administrator.
    pub(super) fn own(&self, actor: &Actor, act: Permission) -> Result<Option<UserId>, Refusal> {
        Self::permit(actor, act)?;
        let own = actor.user.as_ref().is_some_and(|who| self.author_set.contains(who));
        if own || actor.is_admin() { Ok(actor.user.clone()) } else { Err(Refusal::Forbidden) }
    }

    /// Who says what is done is an author: an administrator submits and cancels for others, and that is all.
    pub(super) fn as_author(&self, actor: &Actor) -> Result<UserId, Refusal> {
        Self::permit(actor, Permission::CreateTask)?;
        actor.user.clone().filter(|by| self.author_set.contains(by)).ok_or(Refusal::Forbidden)
    }

    /// The author wants it decided.
    pub fn submit(&mut self, plan: Plan<'_>, actor: &Actor, now: Moment) -> Result<(), Refusal> {
        let by = self.own(actor, Permission::Submit)?;
        next(self.state, TaskCommand::Submit)?;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.go(TaskCommand::Submit, by, now)?;
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        if let Some(why) = assignment.auto_approved.clone() {
            self.take_over(assignment);
            self.go(TaskCommand::Approve, None, now)?.reason = Some(why);
            return Ok(());
        }
        self.go(TaskCommand::Assign, None, now)?;
        self.ask_anew(assignment, due_after_ms, ids, now)
    }

    /// Its author changes a draft, or something that is under review or approved: then the review begins anew, and what was
    /// said before does not count.
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
            return Err(Refusal::TooManyRequests { asked: self.approvals.len() });
        }
        let was_draft = self.state == State::Draft;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let alone = assignment.as_ref().is_ok_and(|found| found.auto_approved.is_some());
        let assignment = if was_draft { None } else { Some(assignment?) };
        self.config = config;
        self.digest = digest;
        self.assess(risk, alone, now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_asked = None;
        let why = format!("{by} changed it");
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

    /// An author deletes a draft. Deleting the stored task is up to the caller.
    pub fn delete(&self, actor: &Actor) -> Result<Transition, Refusal> {
        let author = self.as_author(actor)?;
        let to = next(self.state, TaskCommand::Delete)?;
        Ok(Transition::new("task.delete", Some(author), self.state, to))
    }

    /// One of its authors makes another draft of what was rejected or failed; this one stays as it is. Who.
    pub fn resubmit(&mut self, actor: &Actor, now: Moment) -> Result<UserId, Refusal> {
        let by = self.as_author(actor)?;
        self.go(TaskCommand::Resubmit, Some(by.clone()), now)?;
        Ok(by)
    }

    /// How dangerous it is from now on, and whether nobody needs to be asked because of it.
    pub fn assess(&mut self, risk: Risk, auto_approvable: bool, now: Moment) {
        self.risk = Some(risk);
        self.auto_approvable = auto_approvable;
        self.assessed_at = Some(now);
    }

    /// A worker found out what a draft would change, and how dangerous it is by that.
    pub fn previewed(&mut self) {
        self.record("task.previewed", self.state, None);
    }

    /// What reviewers saw is not what would be done any more.
    pub fn go_stale(&mut self, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        self.back_to_review(TaskCommand::GoStale, plan, now)
    }

    /// It was approved too long ago.
    pub fn expire(&mut self, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        self.back_to_review(TaskCommand::Expire, plan, now)
    }

    fn back_to_review(&mut self, verb: TaskCommand, plan: Plan<'_>, now: Moment) -> Result<(), Refusal> {
        next(self.state, verb)?;
        let Plan { risk, fingerprint, assignment, due_after_ms, ids } = plan;
        let assignment = assignment?;
        self.assess(risk, assignment.auto_approved.is_some(), now);
        self.fingerprint = fingerprint;
        self.forced = false;
        self.override_asked = None;
        let why = match (verb, self.state) {
            (TaskCommand::Expire, _) => "EXPIRED: it was approved too long ago, and not carried out since",
            (_, State::Approved) => "STALE_PREVIEW: what would be changed is not what was approved",
            _ => "STALE_PREVIEW: what would be changed became known only after people were asked",
        };
        self.go(verb, None, now)?.reason = Some(why.to_owned());
        self.reopened = Some(Reopened { why: why.to_owned(), at: now });
        self.invalidate();
        self.ask_anew(assignment, due_after_ms, ids, now)
    }

    /// Whatever was said before was said about something else.
    fn invalidate(&mut self) {
        for approval in self.approvals.iter_mut().filter(|approval| approval.is_answerable()) {
            approval.become_one(ApprovalStatus::Invalidated);
        }
        self.apply_after = None;
        if let Some(execution) = &mut self.execution {
            execution.retry_count = 0;
        }
    }

    /// A review that began anew ends at once if nobody needs to be asked about what it is now.
    fn ask_anew(
        &mut self,
        assignment: Assignment,
        due_after_ms: u64,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result<(), Refusal> {
        let auto_approved = assignment.auto_approved.clone();
        let wanted = self.take_over(assignment);
        for one in wanted {
            let approval = self.request(one, ids(), now, now.plus_ms(due_after_ms));
            let (id, reviewer) = (approval.approval_id.clone(), approval.reviewer_id.clone());
            self.approvals.push(approval);
            let record = self.record("approval.request", self.state, None);
            record.approval_id = Some(id);
            record.tell = vec![reviewer];
        }
        if let Some(why) = auto_approved {
            self.go(TaskCommand::Approve, None, now)?.reason = Some(why);
        }
        Ok(())
    }

    fn take_over(&mut self, assignment: Assignment) -> Vec<Assignee> {
        self.required_count = crate::approval::quorum::least(&assignment.requirements);
        self.requirements = assignment.requirements;
        self.considered = assignment.considered;
        self.passed_by = assignment.passed_by;
        self.auto_approved = assignment.auto_approved;
        assignment.wanted
    }

    fn request(&self, one: Assignee, id: String, now: Moment, due_at: Moment) -> Approval {
        Approval {
            approval_id: id,
            task_id: self.task_id.clone(),
            revision: 1,
            reviewer_id: one.reviewer_id,
            reviewer_name: one.name,
            policies: one.policies,
            stands_for: one.stands_for,
            delegation_chain: one.chain,
            follows: one.follows,
            status: ApprovalStatus::Pending,
            priority: one.priority,
            score: one.priority.score(self.risk_score()),
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
            why: one.why,
        }
    }
}
