//! What is left to be said about a task once its requests are archived: how far each requirement had come, who was asked, who
//! decided, and how many there were. What people see of a task, and who sees it, is the same before and afterwards.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Task;
use crate::approval::quorum::Progress;
use crate::people::UserId;

/// What is remembered of requests that left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedApprovals {
    /// The archive that has them.
    pub archive_id: String,
    /// How far each requirement had come.
    pub progress: Vec<Progress>,
    /// Who was asked.
    pub reviewers: BTreeSet<UserId>,
    /// Who decided about exactly what was proposed at last.
    pub deciders: BTreeSet<UserId>,
    /// How many requests there were.
    pub asked: usize,
    /// How many of them were answered.
    pub answered: usize,
    /// How many of them were made because somebody else had not answered.
    pub escalated: usize,
}

impl Task {
    /// What is remembered of its requests if they go into an archive. What was remembered before stays as it is.
    #[must_use]
    pub fn remember(&self, archive_id: &str) -> ArchivedApprovals {
        self.remembered.clone().unwrap_or_else(|| ArchivedApprovals {
            archive_id: archive_id.to_owned(),
            progress: self.progress(),
            reviewers: self.reviewers(),
            deciders: self.deciders(),
            asked: self.requests_made(),
            answered: self.requests_answered(),
            escalated: self.requests_escalated(),
        })
    }

    /// Whether somebody was ever asked about it.
    #[must_use]
    pub fn was_asked(&self, who: &UserId) -> bool {
        self.approvals.iter().any(|one| one.reviewer_id == *who)
            || self.remembered.as_ref().is_some_and(|remembered| remembered.reviewers.contains(who))
    }

    /// Everybody who was ever asked about it.
    #[must_use]
    pub fn reviewers(&self) -> BTreeSet<UserId> {
        let now = self.approvals.iter().map(|one| one.reviewer_id.clone());
        let before = self.remembered.iter().flat_map(|remembered| remembered.reviewers.iter().cloned());
        now.chain(before).collect()
    }

    /// Who answered for exactly what is proposed.
    pub(super) fn deciders(&self) -> BTreeSet<UserId> {
        let answered = self.approvals.iter().filter(|one| one.digest == self.digest);
        let now = answered.filter_map(|one| one.reviewed_by.clone());
        let before = self.remembered.iter().flat_map(|remembered| remembered.deciders.iter().cloned());
        now.chain(before).collect()
    }

    /// How many requests were made.
    #[must_use]
    pub fn requests_made(&self) -> usize {
        self.remembered.as_ref().map_or(self.approvals.len(), |remembered| remembered.asked)
    }

    /// How many of them were answered.
    #[must_use]
    pub fn requests_answered(&self) -> usize {
        let now = || self.approvals.iter().filter(|one| one.responded_at.is_some()).count();
        self.remembered.as_ref().map_or_else(now, |remembered| remembered.answered)
    }

    /// How many of them were made because somebody else had not answered.
    #[must_use]
    pub fn requests_escalated(&self) -> usize {
        let now = || self.approvals.iter().filter(|one| one.escalation_level > 0).count();
        self.remembered.as_ref().map_or_else(now, |remembered| remembered.escalated)
    }
}
