//! Approval requests: each asks one reviewer to decide on one task. Policies, delegation and quorum rules are in the
//! submodules.

pub mod assignment;
pub mod delegation;
pub mod policy;
pub mod quorum;
pub mod window;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::people::UserId;
use crate::task::Digest;
use delegation::DelegationStep;
use policy::Priority;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
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
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Approved => "APPROVED",
            Self::Rejected => "REJECTED",
            Self::Delegated => "DELEGATED",
            Self::ChangesRequested => "CHANGES_REQUESTED",
            Self::Invalidated => "INVALIDATED",
            Self::Closed => "CLOSED",
        }
    }
}

impl fmt::Display for ApprovalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a reviewer can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    Approve,
    Reject,
    RequestChanges,
}

impl DecisionKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::RequestChanges => "request_changes",
        }
    }

    const fn status(self) -> ApprovalStatus {
        match self {
            Self::Approve => ApprovalStatus::Approved,
            Self::Reject => ApprovalStatus::Rejected,
            Self::RequestChanges => ApprovalStatus::ChangesRequested,
        }
    }
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
    /// When it escalates.
    pub due_at: Moment,
    /// How often it has escalated.
    pub escalation_level: u8,
    /// How many quarters of its time had passed when a backlog last raised its priority.
    #[serde(default)]
    pub raised: u8,
    /// The digest of the config that the reviewer decides on.
    pub digest: Digest,
    /// The fingerprint of the preview that the reviewer decides on.
    pub fingerprint: Option<String>,
    pub responded_at: Option<Moment>,
    pub response_action: Option<DecisionKind>,
    pub response_reason: Option<String>,
    /// Who decided: the reviewer, an administrator, or the person the reviewer follows.
    pub reviewed_by: Option<UserId>,
    /// Why this reviewer was chosen.
    pub reasons: Vec<String>,
}

impl Approval {
    /// Whether it still waits for an approval or rejection.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.status, ApprovalStatus::Pending | ApprovalStatus::ChangesRequested)
    }

    /// Whether it can be decided, possibly for the second time.
    #[must_use]
    pub const fn is_decidable(&self) -> bool {
        !matches!(
            self.status,
            ApprovalStatus::Delegated | ApprovalStatus::Invalidated | ApprovalStatus::Closed
        )
    }

    pub(super) fn record_decision(
        &mut self,
        action: DecisionKind,
        by: &UserId,
        reason: Option<&str>,
        now: Moment,
    ) {
        self.status = action.status();
        self.responded_at = Some(now);
        self.response_action = Some(action);
        self.response_reason = reason.map(str::to_owned);
        self.reviewed_by = Some(by.clone());
        self.revision += 1;
    }

    pub(super) const fn set_status(&mut self, status: ApprovalStatus) {
        self.status = status;
        self.revision += 1;
    }
}
