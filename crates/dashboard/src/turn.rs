//! What a task waits for, and for whom: its state as a heading and a sentence, so that nobody has to read the page to learn it.

use ade_client::wire::{Approval, ApprovalStatus, RequirementStatus, TaskState};

use crate::format::{capitalized, count, names, visible};
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
            TaskState::Draft => draft(review),
            TaskState::Submitted => {
                ("Waits for ADE".to_owned(), "Its preview is made, then reviewers are assigned.".to_owned())
            }
            TaskState::Reviewing => reviewing(review),
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

/// Who proposed the task and has to act on it.
fn author(review: &Review) -> String {
    visible(&review.task.metadata.author_name)
}

fn draft(review: &Review) -> (String, String) {
    let may_submit = review.is_allowed("submit");
    match (review.is_own(), may_submit) {
        (true, true) => ("Your turn".to_owned(), "Submit it for review.".to_owned()),
        (_, true) => {
            (format!("Waits for {}", author(review)), "It is a draft; you may submit it, too.".to_owned())
        }
        (_, false) => (
            format!("Waits for {}", author(review)),
            "It is a draft: its author has not submitted it yet.".to_owned(),
        ),
    }
}

fn reviewing(review: &Review) -> (String, String) {
    let requesting = reviewers(review, ApprovalStatus::ChangesRequested);
    if !requesting.is_empty() {
        let text = capitalized(&format!("{} requested changes", names(&requesting, MAX_NAMES, "and")));
        return if review.is_own() {
            ("Your turn".to_owned(), format!("{text}: change the task."))
        } else {
            (format!("Waits for {}", author(review)), format!("{text}."))
        };
    }
    if review.is_asked() {
        return ("Your turn".to_owned(), approvals_needed(review));
    }
    let waiting = reviewers(review, ApprovalStatus::Pending);
    let heading = if waiting.is_empty() {
        "Waits for approvals".to_owned()
    } else {
        format!("Waits for {}", names(&waiting, MAX_NAMES, "or"))
    };
    (heading, approvals_needed(review))
}

/// Those whose requests have a status; the viewer is `you`.
fn reviewers(review: &Review, status: ApprovalStatus) -> Vec<String> {
    let found = review.approvals.iter().filter(|approval| approval.status == status);
    let name = |approval: &Approval| match &approval.reviewer_id {
        own if *own == review.viewer.user_id => "you".to_owned(),
        _ => visible(&approval.reviewer_name),
    };
    found.map(name).collect()
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

    use crate::fixture::{approval, review};

    fn turn(review: &Review) -> (String, String) {
        let Turn { heading, text, .. } = Turn::of(review, false);
        (heading, text)
    }

    fn pair(heading: &str, text: &str) -> (String, String) {
        (heading.to_owned(), text.to_owned())
    }

    #[test]
    fn it_is_the_turn_of_who_has_not_decided() {
        use ApprovalStatus::{Approved, Pending};
        let needed = "1 more approval is needed.";
        let pending = review("carol", vec![approval("alice", Pending), approval("carol", Pending)]);
        assert_eq!(turn(&pending), pair("Your turn", needed));
        let decided = review("carol", vec![approval("alice", Pending), approval("carol", Approved)]);
        assert_eq!(turn(&decided), pair("Waits for Name of alice", needed));
    }

    #[test]
    fn a_task_waits_for_its_author_while_changes_are_requested() {
        use ApprovalStatus::{ChangesRequested, Pending};
        let requests = || vec![approval("carol", Pending), approval("dave", ChangesRequested)];
        let text = "Name of dave requested changes";
        let waits = pair("Waits for Ann Author", &format!("{text}."));
        assert_eq!(turn(&review("carol", requests())), waits);
        let own = pair("Waits for Ann Author", "You requested changes.");
        assert_eq!(turn(&review("dave", requests())), own);
        assert_eq!(turn(&review("ann", requests())), pair("Your turn", &format!("{text}: change the task.")));
    }

    #[test]
    fn a_draft_waits_for_its_author_also_if_others_may_submit_it() {
        let draft = |viewer: &str, allowed: &[&str]| {
            let mut review = review(viewer, Vec::new());
            review.task.state = TaskState::Draft;
            review.task.allowed = allowed.iter().map(|command| (*command).to_owned()).collect();
            turn(&review)
        };
        assert_eq!(draft("ann", &["submit"]), pair("Your turn", "Submit it for review."));
        let (heading, text) = draft("erin", &["submit"]);
        assert_eq!((heading.as_str(), text.contains("you may submit it")), ("Waits for Ann Author", true));
        let (heading, text) = draft("carol", &[]);
        assert_eq!((heading.as_str(), text.contains("you may")), ("Waits for Ann Author", false));
    }
}
