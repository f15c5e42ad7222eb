//! What the reviewers of a task did: those who decided one by one, those who did not in one line, and the rest folded.

use ade_client::wire::{Approval, ApprovalStatus, DecisionKind, Time};

use crate::format::{count, names, visible};

/// Reviewers that are named in the line of those who have not decided.
const MAX_WAITING: usize = 12;

#[derive(Debug, Clone)]
pub(crate) struct Votes {
    pub(crate) decided: Vec<VoteRow>,
    pub(crate) waiting: Option<WaitingReviewers>,
    /// Requests that do not matter any more.
    pub(crate) rest: Vec<VoteRow>,
}

/// Those who have not decided, and when the first of their requests escalates.
#[derive(Debug, Clone)]
pub(crate) struct WaitingReviewers {
    pub(crate) names: String,
    pub(crate) due: Time,
}

/// What one reviewer did.
#[derive(Debug, Clone)]
pub(crate) struct VoteRow {
    pub(crate) sign: &'static str,
    pub(crate) class: &'static str,
    pub(crate) name: String,
    pub(crate) did: String,
    pub(crate) at: Option<Time>,
    pub(crate) reason: String,
}

impl Votes {
    pub(crate) fn of(approvals: &[Approval], viewer: &str) -> Self {
        let is_pending = |approval: &&Approval| approval.status == ApprovalStatus::Pending;
        let mut pending: Vec<&Approval> = approvals.iter().filter(is_pending).collect();
        pending.sort_by_key(|approval| approval.reviewer_id != viewer);
        let name = |approval: &&Approval| match &approval.reviewer_id {
            own if own == viewer => "you".to_owned(),
            _ => visible(&approval.reviewer_name),
        };
        let waiting: Vec<String> = pending.iter().map(name).collect();
        let due = pending.iter().map(|approval| approval.due_at).min_by_key(|due| due.0);
        let waiting = due.map(|due| WaitingReviewers { names: names(&waiting, MAX_WAITING, "or"), due });
        let counts = |approval: &&Approval| {
            !matches!(approval.status, ApprovalStatus::Invalidated | ApprovalStatus::Closed)
        };
        let (mut decided, rest): (Vec<_>, Vec<_>) =
            approvals.iter().filter(|approval| !is_pending(approval)).partition(counts);
        decided.sort_by_key(|approval| match approval.status {
            ApprovalStatus::Rejected | ApprovalStatus::ChangesRequested => 0,
            ApprovalStatus::Approved => 1,
            _ => 2,
        });
        let rows = |approvals: Vec<&Approval>| approvals.into_iter().map(VoteRow::new).collect();
        Self { decided: rows(decided), waiting, rest: rows(rest) }
    }

    pub(crate) fn rest_count(&self) -> String {
        count(self.rest.len(), "other request")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.decided.is_empty() && self.waiting.is_none() && self.rest.is_empty()
    }
}

impl VoteRow {
    fn new(approval: &Approval) -> Self {
        let (sign, class, did) = match (approval.status, approval.response_action) {
            (ApprovalStatus::Pending, _) => ("○", "muted", "has not decided yet".to_owned()),
            (ApprovalStatus::Approved, _) => ("✓", "ok", "approved".to_owned()),
            (ApprovalStatus::Rejected, _) => ("✕", "danger", "rejected".to_owned()),
            (ApprovalStatus::ChangesRequested, _) => ("↺", "warn", "requested changes".to_owned()),
            (ApprovalStatus::Delegated, _) => {
                let to = approval.delegated_to.as_deref().unwrap_or("another reviewer");
                ("→", "muted", format!("delegated to {to}"))
            }
            (ApprovalStatus::Invalidated, Some(action)) => {
                ("–", "muted", format!("{} an earlier version, which does not count", done(action)))
            }
            (ApprovalStatus::Invalidated, None) => {
                ("–", "muted", "was asked about an earlier version".to_owned())
            }
            (ApprovalStatus::Closed, _) => ("–", "muted", "was not needed any more".to_owned()),
        };
        let by = approval.reviewed_by.as_ref().filter(|by| **by != approval.reviewer_id);
        let did = by.map_or_else(|| did.clone(), |by| format!("{did}, decided by {by}"));
        Self {
            sign,
            class,
            name: visible(&approval.reviewer_name),
            did: visible(did),
            at: approval.responded_at,
            reason: visible(approval.response_reason.as_deref().unwrap_or_default()),
        }
    }
}

const fn done(action: DecisionKind) -> &'static str {
    match action {
        DecisionKind::Approve => "approved",
        DecisionKind::Reject => "rejected",
        DecisionKind::RequestChanges => "requested changes of",
    }
}

/// The decision of the viewer, which can be changed until the task is decided.
#[derive(Debug, Clone)]
pub(crate) struct OwnDecision {
    pub(crate) class: &'static str,
    pub(crate) text: String,
    pub(crate) at: Option<Time>,
    pub(crate) reason: String,
}

impl OwnDecision {
    pub(crate) fn of(approval: &Approval) -> Option<Self> {
        let (class, did) = match approval.status {
            ApprovalStatus::Approved => ("ok", "approved this"),
            ApprovalStatus::Rejected => ("danger", "rejected this"),
            ApprovalStatus::ChangesRequested => ("warn", "requested changes"),
            _ => return None,
        };
        let by = approval.reviewed_by.as_ref().filter(|by| **by != approval.reviewer_id);
        Some(Self {
            class,
            text: by.map_or_else(|| format!("You {did}"), |by| format!("{} {did} for you", visible(by))),
            at: approval.responded_at,
            reason: visible(approval.response_reason.as_deref().unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::approval;

    #[test]
    fn who_has_not_decided_is_one_line_and_what_does_not_matter_is_folded() {
        let all = [
            approval("alice", ApprovalStatus::Pending),
            approval("bob", ApprovalStatus::Closed),
            approval("carol", ApprovalStatus::Pending),
            approval("dave", ApprovalStatus::Approved),
            approval("erin", ApprovalStatus::ChangesRequested),
        ];
        let votes = Votes::of(&all, "carol");
        assert_eq!(votes.waiting.expect("two wait").names, "you or Name of alice");
        let decided: Vec<&str> = votes.decided.iter().map(|vote| vote.did.as_str()).collect();
        assert_eq!(decided, ["requested changes", "approved"]);
        assert_eq!(votes.rest.iter().map(|vote| vote.name.as_str()).collect::<Vec<_>>(), ["Name of bob"]);
    }

    #[test]
    fn own_decision_differs_from_one_made_on_behalf() {
        let mut own = approval("carol", ApprovalStatus::Approved);
        assert_eq!(OwnDecision::of(&own).expect("decided").text, "You approved this");
        own.reviewed_by = Some("erin\u{202e}".to_owned());
        assert_eq!(OwnDecision::of(&own).expect("decided").text, "erin⟦U+202E⟧ approved this for you");
        assert!(OwnDecision::of(&approval("carol", ApprovalStatus::Pending)).is_none());
    }
}
