//! Decisions in a chat: only about tasks of low risk, only on what the message showed, and not if somebody who can send messages in the
//! reviewer's name is a party of the decision. Everything else is as for any decision.
//!
//! An approval in a chat depends on everybody who knows its secrets. It never counts together with an approval of such a holder, nor with
//! another one that the same holder could have sent, in whatever order they come.

use std::collections::BTreeSet;

use super::eligibility::Lapse;
use super::{Actor, Decision, Refusal, Result, Task, TaskState};
use crate::Moment;
use crate::approval::{Approval, ApprovalStatus};
use crate::independence::Period;
use crate::people::{People, UserId};

/// What a message in a chat showed besides the digests, and who could have sent the request.
#[derive(Debug, Clone, Copy)]
pub struct ChatOrigin<'a> {
    /// The fingerprint of the preview, if the message showed one.
    pub fingerprint: Option<&'a str>,
    /// Who knows a secret with which requests of the chat can be made.
    pub holders: &'a BTreeSet<UserId>,
}

impl Task {
    /// Whether messages in a chat offer a decision.
    pub fn is_decidable_in_chat(&self) -> bool {
        self.state == TaskState::Reviewing && self.is_low_risk()
    }

    /// Records a decision that was made in a chat.
    pub fn decide_in_chat(
        &mut self,
        decision: &Decision<'_>,
        origin: ChatOrigin<'_>,
        actor: &Actor,
        people: &People,
        now: Moment,
    ) -> Result {
        if self.state == TaskState::Reviewing && !self.is_low_risk() {
            return Err(Refusal::NotLowRisk);
        }
        if decision.answer.digest != Some(self.digest) {
            return Err(Refusal::DigestMismatch);
        }
        if decision.answer.scope_digest != self.scope_digest {
            return Err(Refusal::ScopeMismatch);
        }
        let ChatOrigin { fingerprint, holders } = origin;
        if fingerprint != self.fingerprint.as_deref() {
            return Err(Refusal::PreviewChanged);
        }
        if let Some(holder) = self.writing_holder(holders, actor.user.as_ref(), people, now) {
            return Err(Refusal::ChatSecretHolder { user: holder.clone() });
        }
        self.decide_through(decision, holders, actor, people, now)
    }

    /// Somebody who could have sent a decision in a chat, besides who decided, and is an author or not independent of one.
    pub(super) fn writing_holder<'a>(
        &self,
        holders: &'a BTreeSet<UserId>,
        decided_by: Option<&UserId>,
        people: &People,
        now: Moment,
    ) -> Option<&'a UserId> {
        holders
            .iter()
            .filter(|holder| decided_by != Some(*holder))
            .find(|holder| self.author_set.iter().any(|author| is_one(holder, author, people, now)))
    }

    /// Refuses an approval that does not count together with another: one person could have made both. Decisions that lapse, and the one
    /// that is replaced, do not matter.
    pub(super) fn require_separate_approvers(
        &self,
        approval_id: &str,
        approver: Approver<'_>,
        people: &People,
        lapsing: &[Lapse],
        now: Moment,
    ) -> Result {
        let counted = self.approvals.iter().filter(|approval| {
            approval.approval_id != approval_id
                && approval.status == ApprovalStatus::Approved
                && self.is_current(approval)
                && lapsing.iter().all(|lapse| lapse.approval_id != approval.approval_id)
        });
        for other in counted.filter_map(Approver::of) {
            let Some(holder) = approver.common_holder(other, |one, other| is_one(one, other, people, now))
            else {
                continue;
            };
            let user = holder.clone();
            return Err(match approver.chat_holders.is_empty() {
                true => Refusal::ApprovedInChat { user, approver: other.decided_by.clone() },
                false => Refusal::ChatSecretHolder { user },
            });
        }
        Ok(())
    }
}

/// Whether two accounts can be those of one person.
pub(super) fn is_one(one: &UserId, other: &UserId, people: &People, now: Moment) -> bool {
    one == other || people.dependence(one, other, Period::Window, now).is_some()
}

/// Who is behind an approval: who gave it, and everybody who could have sent it through the chat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Approver<'a> {
    pub(super) decided_by: &'a UserId,
    pub(super) chat_holders: &'a BTreeSet<UserId>,
}

impl<'a> Approver<'a> {
    pub(super) fn of(approval: &'a Approval) -> Option<Self> {
        Some(Self { decided_by: approval.reviewed_by.as_ref()?, chat_holders: &approval.chat_holders })
    }

    fn people(self) -> impl Iterator<Item = &'a UserId> {
        std::iter::once(self.decided_by).chain(self.chat_holders)
    }

    /// A holder of a secret who could have made both approvals. Those of one person count once anyway.
    pub(super) fn common_holder(
        self,
        other: Self,
        is_one: impl Fn(&UserId, &UserId) -> bool,
    ) -> Option<&'a UserId> {
        if self.decided_by == other.decided_by {
            return None;
        }
        let holder_among = |holders: &'a BTreeSet<UserId>, of: Approver<'a>| {
            holders.iter().find(|holder| of.people().any(|person| is_one(holder, person)))
        };
        holder_among(self.chat_holders, other).or_else(|| holder_among(other.chat_holders, self))
    }
}
