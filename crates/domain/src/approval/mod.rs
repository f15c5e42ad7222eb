//! A request to one person to decide about one task.

pub mod assignment;
pub mod delegation;
pub mod policy;
pub mod quorum;
pub mod window;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::people::UserId;
use crate::task::Digest;
use delegation::Step;
use policy::Priority;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ApprovalStatus))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ApprovalStatus {
    /// Nobody answered yet.
    Pending,
    /// Yes.
    Approved,
    /// No.
    Rejected,
    /// Somebody else is asked in its place.
    Delegated,
    /// Not like this: the author must change something first.
    ChangesRequested,
    /// It was answered for something that is not proposed any more.
    Invalidated,
    /// The task was decided without it.
    Closed,
}

impl ApprovalStatus {
    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
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

/// What a reviewer can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ResponseAction))]
#[serde(rename_all = "snake_case")]
pub enum DecisionKind {
    /// Yes.
    Approve,
    /// No.
    Reject,
    /// Not like this.
    RequestChanges,
}

impl DecisionKind {
    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
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

/// A request, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// What it is known by.
    pub approval_id: String,
    /// About which task.
    pub task_id: String,
    /// Grows with every change.
    pub revision: u64,
    /// Who is asked.
    pub reviewer_id: UserId,
    /// Its name when it was asked.
    pub reviewer_name: String,
    /// For which policies.
    pub policies: Vec<String>,
    /// In whose place.
    pub stands_for: BTreeSet<UserId>,
    /// How it came to that.
    pub delegation_chain: Vec<Step>,
    /// With whom the reviewer agrees without being asked.
    pub follows: Option<UserId>,
    /// What became of it.
    pub status: ApprovalStatus,
    /// How urgent it is.
    pub priority: Priority,
    /// Its place in the queue: the highest comes first.
    pub score: u32,
    /// Who is asked in its place.
    pub delegated_to: Option<UserId>,
    /// When it was made.
    pub created_at: Moment,
    /// When somebody else is asked.
    pub due_at: Moment,
    /// How often somebody else was asked already.
    pub escalation_level: u8,
    /// How many quarters of its time it had waited when it last became more urgent because of a backlog.
    #[serde(default)]
    pub raised: u8,
    /// For what exactly.
    pub digest: Digest,
    /// Of which preview.
    pub fingerprint: Option<String>,
    /// When it was answered.
    pub responded_at: Option<Moment>,
    /// With what.
    pub response_action: Option<DecisionKind>,
    /// Why.
    pub response_reason: Option<String>,
    /// By whom: the reviewer, an administrator, or whom the reviewer follows.
    pub reviewed_by: Option<UserId>,
    /// Why this reviewer was chosen.
    pub why: Vec<String>,
}

impl Approval {
    /// Whether it still waits for an answer.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.status, ApprovalStatus::Pending | ApprovalStatus::ChangesRequested)
    }

    /// Whether it can be answered, perhaps for the second time.
    #[must_use]
    pub const fn is_answerable(&self) -> bool {
        !matches!(
            self.status,
            ApprovalStatus::Delegated | ApprovalStatus::Invalidated | ApprovalStatus::Closed
        )
    }

    pub(super) fn answer(&mut self, action: DecisionKind, by: &UserId, reason: Option<&str>, now: Moment) {
        self.status = action.status();
        self.responded_at = Some(now);
        self.response_action = Some(action);
        self.response_reason = reason.map(str::to_owned);
        self.reviewed_by = Some(by.clone());
        self.revision += 1;
    }

    pub(super) const fn become_one(&mut self, status: ApprovalStatus) {
        self.status = status;
        self.revision += 1;
    }
}
