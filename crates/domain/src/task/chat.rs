//! Decisions in a chat: only about tasks of low risk, only on what the message showed, and not if somebody who can send messages in the
//! reviewer's name is a party of the decision. Everything else is as for any decision.

use std::collections::BTreeSet;

use super::{Actor, Decision, Refusal, Result, Task, TaskState};
use crate::Moment;
use crate::approval::{ApprovalStatus, DecisionKind};
use crate::independence::Period;
use crate::people::{People, UserId};

impl Task {
    /// Whether messages in a chat offer a decision.
    pub fn is_decidable_in_chat(&self) -> bool {
        self.state == TaskState::Reviewing && self.is_low_risk()
    }

    /// Records a decision that was made in a chat. `holders` know a secret with which its requests can be made.
    pub fn decide_in_chat(
        &mut self,
        decision: &Decision<'_>,
        holders: &BTreeSet<UserId>,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        if self.state == TaskState::Reviewing && !self.is_low_risk() {
            return Err(Refusal::NotLowRisk);
        }
        if decision.digest != Some(self.digest) {
            return Err(Refusal::DigestMismatch { current: self.digest });
        }
        if decision.scope_digest != self.scope_digest {
            let current = self.scope_digest.unwrap_or(self.digest);
            return Err(Refusal::ScopeMismatch { current });
        }
        for holder in holders.iter().filter(|holder| actor.user.as_ref() != Some(*holder)) {
            self.require_no_party(holder, decision.kind, people, now)?;
        }
        self.decide(decision, actor, people, now)
    }

    /// Refuses a decision that an author, or another approver, could have sent.
    fn require_no_party(&self, holder: &UserId, kind: DecisionKind, people: &People, now: Moment) -> Result {
        let is_dependent = |other: &UserId| {
            other == holder || people.dependence(holder, other, Period::Window, now).is_some()
        };
        let mut approvers = self
            .approvals
            .iter()
            .filter(|approval| approval.status == ApprovalStatus::Approved && self.is_current(approval))
            .filter_map(|approval| approval.reviewed_by.as_ref());
        let is_party = self.author_set.iter().any(is_dependent)
            || (kind == DecisionKind::Approve && approvers.any(is_dependent));
        if is_party { Err(Refusal::ChatSecretHolder { user: holder.clone() }) } else { Ok(()) }
    }
}
