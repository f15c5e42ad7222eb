//! Friction: what an approval must carry besides the decision itself, and the time between an approval and its application. It grows with
//! the risk of the task, and applies on every path on which a person approves, so that no client can leave it out. Rejecting and
//! requesting changes never need it.

use super::{Actor, Digest, Refusal, Resource, Result, Task, TaskState};
use crate::Moment;
use crate::risk::RiskLevel;
use crate::text::{is_shown, visible};

/// How long a password counts for approving a task of level CRITICAL.
pub const CRITICAL_PASSWORD_TTL_MS: u64 = 15 * 60_000;

/// Characters of a task's id that confirm a task without anything in its scope.
const CONFIRM_ID_LEN: usize = 8;

/// What an approval may have to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum ApprovalNeed {
    Digest,
    ScopeDigest,
    Reason,
    Confirm,
    /// For an override, which has no request of its own that a change of the task would replace.
    Revision,
    /// Not part of the answer: the password must have been given a short time ago.
    Password,
}

/// What somebody sends with a decision, or with the confirmation of an override.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub reason: Option<String>,
    /// The digest that the person saw. If given, it must be the current one.
    pub digest: Option<Digest>,
    /// The digest of the scope that the person saw. If given, it must be the current one.
    pub scope_digest: Option<Digest>,
    /// What the person typed to confirm: see [`Task::confirmations`].
    pub confirm: Option<String>,
    /// The revision of the task that the person saw, if it was checked to be the current one.
    pub revision: Option<u64>,
}

impl Answer {
    /// The reason without surrounding space, if somebody can read it.
    pub fn reason(&self) -> Option<&str> {
        visible(self.reason.as_deref())
    }
}

/// What an approval of a task of this level must carry, if the task has it.
const fn needs_at(level: RiskLevel) -> &'static [ApprovalNeed] {
    use ApprovalNeed::{Confirm, Digest, Password, Reason, ScopeDigest};
    match level {
        RiskLevel::Low => &[],
        RiskLevel::Medium => &[Digest, ScopeDigest],
        RiskLevel::High => &[Digest, ScopeDigest, Reason],
        RiskLevel::Critical => &[Digest, ScopeDigest, Reason, Confirm, Password],
    }
}

impl Task {
    /// The level of its risk; the highest if the risk was never assessed.
    pub(super) fn risk_level(&self) -> RiskLevel {
        self.risk.as_ref().map_or(RiskLevel::Critical, |risk| risk.level)
    }

    /// What an approval must carry. Nothing can be approved outside of a review.
    pub fn approval_needs(&self) -> Vec<ApprovalNeed> {
        if self.state != TaskState::Reviewing {
            return Vec::new();
        }
        let has = |need: &ApprovalNeed| *need != ApprovalNeed::ScopeDigest || self.scope_digest.is_some();
        needs_at(self.risk_level()).iter().copied().filter(has).collect()
    }

    /// The ids of effective resources, bare and as `type:id`, and the targets, as far as they can be read and typed.
    fn scope_ids(&self) -> Vec<String> {
        let resources = self.scope.effective_resources(&self.config);
        let both = |resource: Resource| [format!("{}:{}", resource.resource_type, resource.id), resource.id];
        let ids = resources.into_iter().flat_map(both).chain(self.scope.targets().map(str::to_owned));
        ids.filter(|id| id.trim() == id && id.chars().all(is_shown)).collect()
    }

    /// Each of these confirms an approval: the ids of its scope; without any, the beginning of the task's id.
    pub fn confirmations(&self) -> Vec<String> {
        let ids = self.scope_ids();
        if ids.is_empty() { vec![self.task_id.chars().take(CONFIRM_ID_LEN).collect()] } else { ids }
    }

    /// Refuses an answer about something else than the task as it is now. It does not say what the digests are now: they are proof
    /// that the task was read.
    pub(super) fn require_current(&self, answer: &Answer) -> Result {
        if answer.digest.is_some_and(|seen| seen != self.digest) {
            return Err(Refusal::DigestMismatch);
        }
        match (answer.scope_digest, self.scope_digest) {
            (Some(seen), Some(current)) if seen != current => Err(Refusal::ScopeMismatch),
            _ => Ok(()),
        }
    }

    /// Refuses an approval that does not carry everything that the risk asks for. The password is asked for only when nothing else
    /// lacks: giving it again would not help.
    pub(super) fn require_friction(&self, answer: &Answer, actor: &Actor, now: Moment) -> Result {
        self.require_needs(self.approval_needs(), answer, actor, now)
    }

    /// The same for the confirmation of an override: it must also be about the preview that the person saw, which is in no digest.
    pub(super) fn require_override_friction(&self, answer: &Answer, actor: &Actor, now: Moment) -> Result {
        let mut needs = self.approval_needs();
        if !needs.is_empty() {
            needs.push(ApprovalNeed::Revision);
        }
        self.require_needs(needs, answer, actor, now)
    }

    fn require_needs(&self, needs: Vec<ApprovalNeed>, answer: &Answer, actor: &Actor, now: Moment) -> Result {
        let is_given = |need: ApprovalNeed| match need {
            ApprovalNeed::Digest => answer.digest.is_some(),
            ApprovalNeed::ScopeDigest => answer.scope_digest.is_some(),
            ApprovalNeed::Reason => answer.reason().is_some(),
            ApprovalNeed::Confirm => {
                answer.confirm.as_ref().is_some_and(|typed| self.confirmations().contains(typed))
            }
            ApprovalNeed::Revision => answer.revision.is_some(),
            ApprovalNeed::Password => {
                actor.password_at.is_some_and(|at| now < at.plus_ms(CRITICAL_PASSWORD_TTL_MS))
            }
        };
        let lacking: Vec<ApprovalNeed> = needs.into_iter().filter(|need| !is_given(*need)).collect();
        match lacking.as_slice() {
            [] => Ok(()),
            [ApprovalNeed::Password] => Err(Refusal::PasswordTooOld),
            _ => {
                let needs = lacking.into_iter().filter(|need| *need != ApprovalNeed::Password).collect();
                let (level, has_scope) = (self.risk_level(), !self.scope_ids().is_empty());
                Err(Refusal::FrictionRequired(LackingFriction { level, needs, has_scope }))
            }
        }
    }

    /// Whether the task waits after an approval, however it was given, before it is applied.
    pub(super) fn is_held_after_approval(&self) -> bool {
        self.risk_level() >= RiskLevel::High
    }

    /// Until when the task is held, if it is: nobody applies it before.
    pub fn held_until(&self, now: Moment) -> Option<Moment> {
        self.held_until.filter(|until| self.state == TaskState::Approved && now < *until)
    }

    /// Refuses to approve a task together with others unless its risk permits to judge it at a glance.
    pub(super) fn require_batchable(&self) -> Result {
        match self.risk_level() {
            RiskLevel::Low | RiskLevel::Medium => Ok(()),
            level @ (RiskLevel::High | RiskLevel::Critical) => Err(Refusal::NotInBatch { level }),
        }
    }
}

/// What an answer lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the risk of the task is {level}: review it, and send the answer again with {}", describe(.needs, *.has_scope))]
pub struct LackingFriction {
    pub level: RiskLevel,
    pub needs: Vec<ApprovalNeed>,
    /// Whether it is confirmed by an id of its scope.
    pub has_scope: bool,
}

fn describe(needs: &[ApprovalNeed], has_scope: bool) -> String {
    let describe = |need: &ApprovalNeed| match need {
        ApprovalNeed::Digest => "digest (that of the task that you reviewed)",
        ApprovalNeed::ScopeDigest => "scope_digest (that of what the task can touch)",
        ApprovalNeed::Reason => "reason (why you approve)",
        ApprovalNeed::Confirm if has_scope => {
            "confirm (one of its resources, as type:id or only the id, or one of its targets, typed exactly)"
        }
        ApprovalNeed::Confirm => "confirm (the first 8 characters of the task's id)",
        ApprovalNeed::Revision => "If-Match (the revision of the task that you reviewed)",
        ApprovalNeed::Password => "a password given within 15 minutes",
    };
    needs.iter().map(describe).collect::<Vec<_>>().join(", ")
}
