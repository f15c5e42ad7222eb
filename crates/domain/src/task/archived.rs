//! The summary of a task's approval requests that remains once they are archived. What people see of the task, and who may see
//! it, does not change by archiving.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Task;
use crate::approval::ApprovalStatus;
use crate::approval::quorum::RequirementProgress;
use crate::people::UserId;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedApprovals {
    pub archive_id: String,
    pub progress: Vec<RequirementProgress>,
    /// Everybody who was asked.
    pub reviewers: BTreeSet<UserId>,
    /// Who decided on the final config.
    pub deciders: BTreeSet<UserId>,
    pub requested: usize,
    pub decided: usize,
    /// Requests that were created by an escalation.
    pub escalated: usize,
    /// Current approvals and rejections.
    pub approved: usize,
    pub rejected: usize,
}

/// How far the review of a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReviewCounts {
    pub approved: usize,
    pub rejected: usize,
    /// Requests without a decision.
    pub pending: usize,
    /// Whether the approvals suffice, or none is required.
    pub quorum_reached: bool,
}

impl Task {
    /// The summary for an archive. An earlier summary remains as it is.
    pub fn summarize_approvals(&self, archive_id: &str) -> ArchivedApprovals {
        self.archived_approvals.clone().unwrap_or_else(|| ArchivedApprovals {
            archive_id: archive_id.to_owned(),
            progress: self.progress(),
            reviewers: self.reviewers(),
            deciders: self.deciders(),
            requested: self.approvals_requested(),
            decided: self.approvals_decided(),
            escalated: self.approvals_escalated(),
            approved: self.review_counts().approved,
            rejected: self.review_counts().rejected,
        })
    }

    /// Only decisions on the current config and preview count.
    pub fn review_counts(&self) -> ReviewCounts {
        let count = |status: ApprovalStatus| {
            let current = self.approvals.iter().filter(|approval| self.is_current(approval));
            current.filter(|approval| approval.status == status).count()
        };
        let archived = self.archived_approvals.as_ref();
        let is_decided = !self.requirements.is_empty() && self.progress().iter().all(|one| one.needed == 0);
        ReviewCounts {
            approved: archived.map_or_else(|| count(ApprovalStatus::Approved), |archived| archived.approved),
            rejected: archived.map_or_else(|| count(ApprovalStatus::Rejected), |archived| archived.rejected),
            pending: count(ApprovalStatus::Pending),
            quorum_reached: is_decided || self.auto_approved.is_some(),
        }
    }

    /// Whether somebody was ever asked to review the task.
    pub fn was_reviewer(&self, user: &UserId) -> bool {
        self.approvals.iter().any(|approval| approval.reviewer_id == *user)
            || self.archived_approvals.as_ref().is_some_and(|archived| archived.reviewers.contains(user))
    }

    /// Everybody who was ever asked to review the task.
    pub fn reviewers(&self) -> BTreeSet<UserId> {
        let present = self.approvals.iter().map(|approval| approval.reviewer_id.clone());
        let archived = self.archived_approvals.iter().flat_map(|archived| archived.reviewers.iter().cloned());
        present.chain(archived).collect()
    }

    /// Everybody who decided on the current config.
    pub(super) fn deciders(&self) -> BTreeSet<UserId> {
        let current = self.approvals.iter().filter(|approval| approval.digest == self.digest);
        let present = current.filter_map(|approval| approval.reviewed_by.clone());
        let archived = self.archived_approvals.iter().flat_map(|archived| archived.deciders.iter().cloned());
        present.chain(archived).collect()
    }

    pub fn approvals_requested(&self) -> usize {
        self.archived_approvals.as_ref().map_or(self.approvals.len(), |archived| archived.requested)
    }

    pub fn approvals_decided(&self) -> usize {
        let present = || self.approvals.iter().filter(|approval| approval.responded_at.is_some()).count();
        self.archived_approvals.as_ref().map_or_else(present, |archived| archived.decided)
    }

    /// The number of requests that were created by an escalation.
    pub fn approvals_escalated(&self) -> usize {
        let present = || self.approvals.iter().filter(|approval| approval.escalation_level > 0).count();
        self.archived_approvals.as_ref().map_or_else(present, |archived| archived.escalated)
    }
}
