//! What a task waits for, and for whom: its state as a heading and a sentence, so that nobody has to read the page to learn it.

use ade_client::wire::{ApprovalStatus, RequirementStatus, TaskState};

use crate::format::{capitalized, count, visible};
use crate::review::{Review, StateChip};

/// Reviewers that are named; the others are counted.
const MAX_NAMES: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) class: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) heading: String,
    pub(crate) text: String,
}

impl Turn {
    /// `is_held`: an approved task waits before it may be applied.
    pub(crate) fn of(review: &Review, is_held: bool) -> Self {
        let state = review.task.state;
        let StateChip { class, sign, .. } = StateChip::of(state);
        let (heading, text) = match state {
            TaskState::Draft if review.is_allowed("submit") => {
                ("Your turn".to_owned(), "Submit it for review.".to_owned())
            }
            TaskState::Draft => {
                let author = visible(&review.task.metadata.author_name);
                (
                    format!("Waits for {author}"),
                    "It is a draft: its author has not submitted it yet.".to_owned(),
                )
            }
            TaskState::Submitted => {
                ("Waits for ADE".to_owned(), "Its preview is made, then reviewers are assigned.".to_owned())
            }
            TaskState::Reviewing if review.can_decide() => ("Your turn".to_owned(), approvals_needed(review)),
            TaskState::Reviewing => {
                let waiting = names(&pending_reviewers(review));
                let heading = if waiting.is_empty() {
                    "Waits for approvals".to_owned()
                } else {
                    format!("Waits for {waiting}")
                };
                (heading, approvals_needed(review))
            }
            TaskState::Approved if is_held => (
                "Approved, but held".to_owned(),
                "It is applied after the hold unless the approval is revoked.".to_owned(),
            ),
            TaskState::Approved => {
                let executor = if review.task.config.executor == "agent" { "an agent" } else { "a worker" };
                (
                    format!("Waits for {executor}"),
                    "It is applied as soon as one claims it and gets its locks.".to_owned(),
                )
            }
            TaskState::Applying => {
                let worker = review.task.execution.as_ref().map(|execution| visible(&execution.agent_id));
                ("Being applied".to_owned(), worker.map_or_else(String::new, |worker| format!("by {worker}")))
            }
            TaskState::Completed => ("Completed".to_owned(), "Nothing is left to do.".to_owned()),
            TaskState::Failed => failure(review),
            TaskState::Rejected => ("Rejected".to_owned(), rejections(review)),
            TaskState::Cancelled => ("Cancelled".to_owned(), "It will not be applied.".to_owned()),
        };
        Self { class, sign, heading, text }
    }
}

fn pending_reviewers(review: &Review) -> Vec<String> {
    let pending = review.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Pending);
    pending.map(|approval| visible(&approval.reviewer_name)).collect()
}

/// `Alice`, `Alice or Bob`, `Alice, Bob, Carol or 2 more`.
fn names(names: &[String]) -> String {
    let mut parts: Vec<String> = names.iter().take(MAX_NAMES).cloned().collect();
    if names.len() > MAX_NAMES {
        parts.push(format!("{} more", names.len() - MAX_NAMES));
    }
    match parts.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, first)) => format!("{} or {last}", first.join(", ")),
    }
}

/// Policies can share an approval, so the largest number is what is known.
fn approvals_needed(review: &Review) -> String {
    let unsatisfied =
        review.task.requirements.iter().filter(|one| one.status == RequirementStatus::Unsatisfied);
    let needed: Vec<_> = unsatisfied.map(|one| one.needed).filter(|needed| *needed > 0).collect();
    let most = needed.iter().max().copied().unwrap_or_default();
    match (most, needed.len()) {
        (0, _) => String::new(),
        (1, 1) => "1 more approval is needed.".to_owned(),
        (most, 1) => format!("{most} more approvals are needed."),
        (most, policies) => {
            format!("At least {}, for {policies} policies.", count(most as usize, "more approval"))
        }
    }
}

fn failure(review: &Review) -> (String, String) {
    let Some(execution) = &review.task.execution else {
        return ("Failed".to_owned(), String::new());
    };
    let heading = match execution.rolled_back {
        Some(true) => "Failed, rolled back",
        Some(false) => "Failed, and the rollback failed",
        None => "Failed, not rolled back",
    };
    let error = execution.error.as_deref().unwrap_or_default();
    (heading.to_owned(), visible(capitalized(error.lines().next().unwrap_or_default())))
}

fn rejections(review: &Review) -> String {
    let rejected = review.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Rejected);
    let parts = rejected.map(|approval| {
        let reason = approval.response_reason.as_deref().unwrap_or_default();
        visible(format!("{}: “{reason}”", approval.reviewer_name))
    });
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        let all: Vec<String> = ["Alice", "Bob", "Carol", "Dave", "Erin"].map(str::to_owned).to_vec();
        let shown: Vec<String> =
            [0, 1, 2, 3, 5].map(|number| names(all.get(..number).unwrap_or_default())).to_vec();
        assert_eq!(
            shown,
            ["", "Alice", "Alice or Bob", "Alice, Bob or Carol", "Alice, Bob, Carol or 2 more"]
        );
    }
}
