//! Requests that go on to somebody else: by hand, because nobody answered in time, or because somebody left.

use super::{Actor, Refusal, State, Task};
use crate::Moment;
use crate::approval::policy::Priority;
use crate::approval::{Approval, ApprovalStatus};
use crate::people::{ADMIN, ON_CALL, People, UserId};

/// How often a request goes on because nobody answered; after that it stays with administrators, and somebody is alarmed.
pub const MOST_ESCALATIONS: u8 = 3;

/// When nobody is left whom it could go to.
const NEVER_MS: u64 = 100 * 365 * 86_400_000;

/// Who takes over, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// Who.
    pub user: UserId,
    /// Why.
    pub why: String,
}

impl Task {
    /// A reviewer hands one request on.
    pub fn delegate(
        &mut self,
        approval_id: &str,
        to: &UserId,
        people: &People,
        id: String,
        actor: &Actor,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.permit_answer(actor, approval_id)?;
        let by = self.not_ones_own(actor)?;
        if self.state != State::Reviewing {
            return Err(Refusal::AlreadyDecided { state: self.state });
        }
        let approval = self.approval_mut(approval_id)?.clone();
        if approval.reviewer_id != by && !actor.is_admin() {
            return Err(Refusal::NotAsked { reviewer: approval.reviewer_id });
        }
        if !approval.is_open() {
            return Err(Refusal::NotAnswerable { status: approval.status });
        }
        self.can_take_over(to, people)?;
        let successor = Successor { user: to.clone(), why: format!("{by} handed it on") };
        self.hand_on(approval_id, &successor, people, id, now)?;
        let record = self.record("approval.delegate", State::Reviewing, Some(by));
        record.approval_id = Some(approval_id.to_owned());
        record.tell = vec![to.clone()];
        Ok(())
    }

    fn can_take_over(&self, who: &UserId, people: &People) -> Result<(), Refusal> {
        let cannot = |why: String| Err(Refusal::CannotBeAsked { who: who.clone(), why });
        if people.active(who).is_none() {
            return cannot("is not an active user".to_owned());
        }
        if let Some(reason) = self.author_set.reason(who) {
            return cannot(reason.to_string());
        }
        if self.is_asked(who) {
            return cannot("is asked already".to_owned());
        }
        Ok(())
    }

    /// Somebody else is asked in the place of a reviewer, whose own request is over.
    fn hand_on(
        &mut self,
        approval_id: &str,
        to: &Successor,
        people: &People,
        id: String,
        now: Moment,
    ) -> Result<(), Refusal> {
        let old = self.approval_mut(approval_id)?;
        old.become_one(ApprovalStatus::Delegated);
        old.delegated_to = Some(to.user.clone());
        let old = old.clone();
        self.ask_instead(&old, to, people, id, now);
        Ok(())
    }

    /// Somebody's answer counts from now on for what another's counted for.
    fn represent(&mut self, old: &Approval, user: &UserId, people: &People) {
        for requirement in &mut self.requirements {
            if let Some(represented) = requirement.reviewers.get(&old.reviewer_id).cloned() {
                let own = people.get(user).map(|user| user.roles.clone()).unwrap_or_default();
                requirement.counts(user.clone(), represented.into_iter().chain(own));
            }
        }
    }

    /// One more request, for somebody who stands for the same people and roles.
    fn ask_instead(&mut self, old: &Approval, to: &Successor, people: &People, id: String, now: Moment) {
        self.represent(old, &to.user, people);
        let mut stands_for = old.stands_for.clone();
        stands_for.insert(old.reviewer_id.clone());
        let due_at = now.plus_ms(old.due_at.ms_since(old.created_at));
        self.approvals.push(Approval {
            approval_id: id,
            revision: 1,
            reviewer_id: to.user.clone(),
            reviewer_name: people.get(&to.user).map_or_else(|| to.user.to_string(), |user| user.name.clone()),
            stands_for,
            follows: None,
            status: ApprovalStatus::Pending,
            delegated_to: None,
            created_at: now,
            due_at,
            raised: 0,
            responded_at: None,
            response_action: None,
            response_reason: None,
            reviewed_by: None,
            why: vec![format!("in the place of {}: {}", old.reviewer_id, to.why)],
            ..old.clone()
        });
    }

    /// Nobody answered in time: the reviewer's manager is asked, else whoever has the policy's role for that, else
    /// administrators. The reviewer can still answer. Whether anything happened: each step happens once.
    pub fn escalate(
        &mut self,
        approval_id: &str,
        people: &People,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result<bool, Refusal> {
        let approval = self.approval_mut(approval_id)?.clone();
        let is_due = self.state == State::Reviewing
            && approval.status == ApprovalStatus::Pending
            && approval.due_at <= now;
        if !is_due {
            return Ok(false);
        }
        let level = approval.escalation_level + 1;
        let is_over = level > MOST_ESCALATIONS;
        let successors =
            if is_over { Vec::new() } else { self.successors(&approval, people, level == MOST_ESCALATIONS) };
        let waits_ms = if is_over { NEVER_MS } else { approval.due_at.ms_since(approval.created_at) };
        let own = self.approval_mut(approval_id)?;
        own.due_at = now.plus_ms(waits_ms);
        own.escalation_level = level;
        own.revision += 1;
        let mut told = Vec::new();
        for successor in successors {
            let mut old = approval.clone();
            old.escalation_level = level;
            self.ask_instead(&old, &successor, people, ids(), now);
            told.push(successor.user);
        }
        let alarm = told.is_empty();
        let action = if alarm { "approval.unanswered" } else { "approval.escalate" };
        let record = self.record(action, State::Reviewing, None);
        record.approval_id = Some(approval_id.to_owned());
        told.extend(people.with_role(ON_CALL).map(|user| user.user_id.clone()));
        record.tell = told;
        Ok(true)
    }

    /// Who is asked when somebody does not answer: those of one kind, the nearest first.
    fn successors(&self, approval: &Approval, people: &People, last: bool) -> Vec<Successor> {
        let can = |who: &UserId| self.can_take_over(who, people).is_ok();
        if !last {
            let manager = people.get(&approval.reviewer_id).and_then(|user| user.manager_id.clone());
            if let Some(manager) = manager.filter(|manager| can(manager)) {
                let why =
                    format!("{} did not answer in time, and {manager} is the manager", approval.reviewer_id);
                return vec![Successor { user: manager, why }];
            }
            let roles = self
                .requirements
                .iter()
                .filter(|requirement| approval.policies.contains(&requirement.policy))
                .filter_map(|requirement| requirement.escalation_role.clone());
            for role in roles {
                let found: Vec<Successor> = people
                    .with_role(&role)
                    .filter(|user| can(&user.user_id))
                    .map(|user| Successor {
                        user: user.user_id.clone(),
                        why: format!(
                            "{} did not answer in time, and the policy escalates to {role}",
                            approval.reviewer_id
                        ),
                    })
                    .collect();
                if !found.is_empty() {
                    return found;
                }
            }
        }
        let why = format!("{} did not answer in time, and nobody else is left", approval.reviewer_id);
        let admins = people.with_role(ADMIN).filter(|user| can(&user.user_id));
        admins.map(|user| Successor { user: user.user_id.clone(), why: why.clone() }).collect()
    }

    /// Somebody leaves or left: each of its open requests goes to whoever stands in for it, else to its manager, else to
    /// administrators. If all of them are asked already, the first whose answer is still waited for counts for both.
    pub fn replace(
        &mut self,
        leaver: &UserId,
        stands_in: Option<&UserId>,
        people: &People,
        ids: &mut dyn FnMut() -> String,
        now: Moment,
    ) -> Result<(), Refusal> {
        if self.state != State::Reviewing {
            return Ok(());
        }
        let open: Vec<String> = self
            .approvals
            .iter()
            .filter(|approval| approval.reviewer_id == *leaver && approval.is_open())
            .map(|approval| approval.approval_id.clone())
            .collect();
        let manager = people.get(leaver).and_then(|user| user.manager_id.as_ref());
        let admins = people.with_role(ADMIN).map(|user| &user.user_id);
        // The leaver may still be there as far as anybody knows.
        let candidates = stands_in.into_iter().chain(manager).chain(admins).filter(|who| *who != leaver);
        let candidates: Vec<UserId> = candidates.cloned().collect();
        for approval_id in open {
            let can = |who: &&UserId| self.can_take_over(who, people).is_ok();
            let user = if let Some(user) = candidates.iter().find(can).cloned() {
                let successor = Successor { user: user.clone(), why: format!("{leaver} left") };
                self.hand_on(&approval_id, &successor, people, ids(), now)?;
                user
            } else if let Some(user) = candidates.iter().find(|who| self.is_waited_for(who, people)).cloned()
            {
                self.count_for_both(&approval_id, &user, people)?;
                user
            } else {
                continue;
            };
            let record = self.record("approval.reassign", State::Reviewing, None);
            record.approval_id = Some(approval_id);
            record.tell = vec![user];
        }
        Ok(())
    }

    fn is_waited_for(&self, who: &UserId, people: &People) -> bool {
        let waits =
            |approval: &Approval| approval.reviewer_id == *who && approval.status == ApprovalStatus::Pending;
        people.active(who).is_some() && self.approvals.iter().any(waits)
    }

    /// Somebody who is asked already answers in the place of a reviewer as well, whose own request is over.
    fn count_for_both(&mut self, approval_id: &str, user: &UserId, people: &People) -> Result<(), Refusal> {
        let old = self.approval_mut(approval_id)?;
        old.become_one(ApprovalStatus::Delegated);
        old.delegated_to = Some(user.clone());
        let old = old.clone();
        self.represent(&old, user, people);
        let waits = |approval: &&mut Approval| {
            approval.reviewer_id == *user && approval.status == ApprovalStatus::Pending
        };
        if let Some(own) = self.approvals.iter_mut().find(waits) {
            own.stands_for.extend(old.stands_for);
            let more = old.policies.into_iter().filter(|policy| !own.policies.contains(policy));
            own.policies.extend(more.collect::<Vec<_>>());
            own.stands_for.insert(old.reviewer_id.clone());
            own.why.push(format!("in the place of {}, who left", old.reviewer_id));
            own.revision += 1;
        }
        Ok(())
    }

    /// In a backlog, a request that waits becomes one step more urgent for each quarter of its time that has passed, three at
    /// most. Whether anything happened: each step happens once.
    pub fn raise(&mut self, approval_id: &str, now: Moment) -> Result<bool, Refusal> {
        let (risk, is_open) = (self.risk_score(), self.state == State::Reviewing);
        let approval = self.approval_mut(approval_id)?;
        let (waited, allowed) =
            (now.ms_since(approval.created_at), approval.due_at.ms_since(approval.created_at));
        let quarters = waited.saturating_mul(4).checked_div(allowed).unwrap_or(0).min(3);
        let quarters = u8::try_from(quarters).unwrap_or(3);
        let is_open = is_open && approval.status == ApprovalStatus::Pending;
        if !is_open || quarters <= approval.raised || approval.priority == Priority::Urgent {
            return Ok(false);
        }
        for _ in approval.raised..quarters {
            approval.priority = approval.priority.raised();
        }
        approval.raised = quarters;
        approval.score = approval.priority.score(risk);
        approval.revision += 1;
        let reviewer = approval.reviewer_id.clone();
        let record = self.record("approval.raise", State::Reviewing, None);
        record.approval_id = Some(approval_id.to_owned());
        record.tell = vec![reviewer];
        Ok(true)
    }
}
