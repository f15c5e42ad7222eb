//! Approval requests: each asks one reviewer to decide on one task. Policies, delegation and quorum rules are in the
//! submodules.

pub mod assignment;
pub mod delegation;
pub mod policy;
pub mod quorum;
pub mod window;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::people::UserId;
use crate::task::{Digest, MAX_ESCALATIONS};
use delegation::DelegationStep;
use policy::Priority;

#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum ApprovalStatus {
    Pending,
    Approved,
    Rejected,
    /// Reassigned to another reviewer.
    Delegated,
    ChangesRequested,
    /// It asked about a config or preview that has changed since.
    Invalidated,
    /// The task was decided or cancelled without it.
    Closed,
}

impl ApprovalStatus {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What a reviewer can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DecisionKind {
    Approve,
    Reject,
    RequestChanges,
}

impl DecisionKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    const fn status(self) -> ApprovalStatus {
        match self {
            Self::Approve => ApprovalStatus::Approved,
            Self::Reject => ApprovalStatus::Rejected,
            Self::RequestChanges => ApprovalStatus::ChangesRequested,
        }
    }
}

/// What a reviewer decides on: config, scope and preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReviewedVersion {
    pub(super) digest: Digest,
    pub(super) scope_digest: Option<Digest>,
    pub(super) fingerprint: Option<String>,
}

/// An approval request and its decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub approval_id: String,
    pub task_id: String,
    pub revision: u64,
    pub reviewer_id: UserId,
    /// The name at the time of the request.
    pub reviewer_name: String,
    /// The names of the policies that require this reviewer.
    pub policies: Vec<String>,
    /// The people whose decision this reviewer gives; the reviewer itself if a policy chose it directly.
    pub on_behalf_of: BTreeSet<UserId>,
    pub delegation_chain: Vec<DelegationStep>,
    /// The reviewer whose approval this request follows automatically.
    pub follows: Option<UserId>,
    pub status: ApprovalStatus,
    pub priority: Priority,
    /// The order of the reviewer's queue: the highest comes first.
    pub score: u32,
    /// The reviewer it was reassigned to.
    pub delegated_to: Option<UserId>,
    pub created_at: Moment,
    /// When it escalates, or when it was last due once it no longer does: see [`Self::escalates_at`].
    pub due_at: Moment,
    /// How often it has escalated.
    pub escalation_level: u8,
    /// How many quarters of its time had passed when a backlog last raised its priority.
    pub raised: u8,
    /// The digest of the config that the reviewer decides on.
    pub digest: Digest,
    /// The digest of the scope that the reviewer decides on.
    pub scope_digest: Option<Digest>,
    /// The fingerprint of the preview that the reviewer decides on.
    pub fingerprint: Option<String>,
    pub responded_at: Option<Moment>,
    pub response_action: Option<DecisionKind>,
    pub response_reason: Option<String>,
    /// Who decided: the reviewer, an administrator, or the person the reviewer follows.
    pub reviewed_by: Option<UserId>,
    /// Everybody who knows a secret of the chat in which it was approved, and could have done so; empty otherwise.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub chat_holders: BTreeSet<UserId>,
    /// Why this reviewer was chosen.
    pub reasons: Vec<String>,
}

impl Approval {
    /// Whether it still waits for an approval or rejection.
    pub const fn is_open(&self) -> bool {
        matches!(self.status, ApprovalStatus::Pending | ApprovalStatus::ChangesRequested)
    }

    /// When it escalates next; `None` after the last escalation. It then stays overdue.
    pub fn escalates_at(&self) -> Option<Moment> {
        (self.escalation_level <= MAX_ESCALATIONS).then_some(self.due_at)
    }

    /// When a backlog raises its priority next: with each of the first three quarters of its time, up to the highest priority.
    pub fn raises_at(&self) -> Option<Moment> {
        let allowed = self.due_at.ms_since(self.created_at);
        let is_raised =
            self.status == ApprovalStatus::Pending && self.priority != Priority::Urgent && self.raised < 3;
        let quarters = u64::from(self.raised) + 1;
        (is_raised && allowed > 0)
            .then(|| self.created_at.plus_ms(quarters.saturating_mul(allowed).div_ceil(4)))
    }

    /// Whether it can be decided, possibly for the second time.
    pub const fn is_decidable(&self) -> bool {
        !matches!(
            self.status,
            ApprovalStatus::Delegated | ApprovalStatus::Invalidated | ApprovalStatus::Closed
        )
    }

    /// Whether it asks about this version of the task.
    pub(super) fn is_about(&self, version: &ReviewedVersion) -> bool {
        let ReviewedVersion { digest, scope_digest, fingerprint } = version;
        self.digest == *digest && self.scope_digest == *scope_digest && self.fingerprint == *fingerprint
    }

    /// Whether this person can still decide it.
    pub(super) fn awaits(&self, user: &UserId) -> bool {
        self.reviewer_id == *user && self.status == ApprovalStatus::Pending
    }

    pub(super) fn decide(&mut self, kind: DecisionKind, by: &UserId, reason: Option<&str>, now: Moment) {
        self.status = kind.status();
        self.responded_at = Some(now);
        self.response_action = Some(kind);
        self.response_reason = reason.map(str::to_owned);
        self.reviewed_by = Some(by.clone());
        self.chat_holders.clear();
        self.revision += 1;
    }

    /// Withdraws the decision: the reviewer is asked again.
    pub(super) fn reopen(&mut self) {
        self.responded_at = None;
        self.response_action = None;
        self.response_reason = None;
        self.reviewed_by = None;
        self.chat_holders.clear();
        self.set_status(ApprovalStatus::Pending);
    }

    pub(super) const fn set_status(&mut self, status: ApprovalStatus) {
        self.status = status;
        self.revision += 1;
    }
}
