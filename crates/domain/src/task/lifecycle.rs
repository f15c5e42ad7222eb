//! The lifecycle of a task, as one table. What is not in the table is refused, with the present state and what it allows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Being written.
    Draft,
    /// Validated, scored, previewed; passed through on the way to review.
    Submitted,
    /// People are asked.
    Reviewing,
    /// Every requirement is satisfied.
    Approved,
    /// A worker holds its locks and carries it out.
    Applying,
    /// Done.
    Completed,
    /// Carrying it out failed, or nobody knows how it ended.
    Failed,
    /// Somebody said no.
    Rejected,
    /// Given up before it was carried out.
    Cancelled,
}

/// What can happen to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskCommand {
    /// Its author changes it.
    Modify,
    /// Its author deletes it.
    Delete,
    /// Its author wants it decided.
    Submit,
    /// Its review begins; part of a submission.
    Assign,
    /// No human is needed, or every requirement is satisfied.
    Approve,
    /// Somebody said no.
    Reject,
    /// An approval is taken back before anything was done.
    Revoke,
    /// What reviewers saw is not what would be done any more.
    GoStale,
    /// It was approved too long ago.
    Expire,
    /// An administrator asks for a decision past its policies.
    Override,
    /// A second administrator agrees.
    ConfirmOverride,
    /// An administrator wants it done first.
    ForceApply,
    /// A worker holds all its locks.
    BeginApply,
    /// It is done.
    Complete,
    /// It failed, was stopped, or ended in the dark.
    Fail,
    /// It failed before anything was changed, and will be tried again.
    Retry,
    /// An administrator wants it to end.
    Stop,
    /// What it did is undone by hand.
    RollBack,
    /// Its author or an administrator gives it up.
    Cancel,
    /// A new draft is made of it.
    Resubmit,
    /// Somebody says something about it.
    Comment,
}

/// Every transition there is. `Resubmit` leaves the task as it is and makes another one.
pub const TABLE: &[(State, TaskCommand, State)] = &[
    (State::Draft, TaskCommand::Modify, State::Draft),
    (State::Draft, TaskCommand::Delete, State::Draft),
    (State::Draft, TaskCommand::Submit, State::Submitted),
    (State::Submitted, TaskCommand::Assign, State::Reviewing),
    (State::Submitted, TaskCommand::Approve, State::Approved),
    (State::Reviewing, TaskCommand::Approve, State::Approved),
    (State::Reviewing, TaskCommand::Reject, State::Rejected),
    (State::Approved, TaskCommand::Revoke, State::Rejected),
    (State::Reviewing, TaskCommand::Modify, State::Reviewing),
    (State::Approved, TaskCommand::Modify, State::Reviewing),
    (State::Reviewing, TaskCommand::GoStale, State::Reviewing),
    (State::Approved, TaskCommand::GoStale, State::Reviewing),
    (State::Approved, TaskCommand::Expire, State::Reviewing),
    (State::Reviewing, TaskCommand::Override, State::Reviewing),
    (State::Reviewing, TaskCommand::ConfirmOverride, State::Approved),
    (State::Approved, TaskCommand::ForceApply, State::Approved),
    (State::Approved, TaskCommand::BeginApply, State::Applying),
    (State::Applying, TaskCommand::Complete, State::Completed),
    (State::Applying, TaskCommand::Fail, State::Failed),
    (State::Applying, TaskCommand::Retry, State::Approved),
    (State::Applying, TaskCommand::Stop, State::Applying),
    (State::Failed, TaskCommand::RollBack, State::Failed),
    (State::Draft, TaskCommand::Cancel, State::Cancelled),
    (State::Submitted, TaskCommand::Cancel, State::Cancelled),
    (State::Reviewing, TaskCommand::Cancel, State::Cancelled),
    (State::Approved, TaskCommand::Cancel, State::Cancelled),
    (State::Rejected, TaskCommand::Resubmit, State::Rejected),
    (State::Failed, TaskCommand::Resubmit, State::Failed),
    (State::Draft, TaskCommand::Comment, State::Draft),
    (State::Reviewing, TaskCommand::Comment, State::Reviewing),
    (State::Approved, TaskCommand::Comment, State::Approved),
];

/// Something that cannot happen now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a task in state {state} cannot be asked to {verb}; it can be asked to: {}", words(.allowed))]
pub struct InvalidTransition {
    /// How far the task has come.
    pub state: State,
    /// What was asked.
    pub verb: TaskCommand,
    /// What could be asked.
    pub allowed: Vec<TaskCommand>,
}

fn words(verbs: &[TaskCommand]) -> String {
    if verbs.is_empty() {
        return "nothing".to_owned();
    }
    verbs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What people can ask of a task in a state; what happens by itself is not among it.
#[must_use]
pub fn allowed(state: State) -> Vec<TaskCommand> {
    let rows = TABLE.iter().filter(|(from, verb, _)| *from == state && verb.is_command());
    rows.map(|(_, verb, _)| *verb).collect()
}

/// Where something leads.
pub fn next(state: State, verb: TaskCommand) -> Result<State, InvalidTransition> {
    let row = TABLE.iter().find(|(from, by, _)| *from == state && *by == verb);
    row.map(|(.., to)| *to).ok_or_else(|| InvalidTransition { state, verb, allowed: allowed(state) })
}

impl State {
    /// Whether nothing can happen to it any more, except that another task is made of it or its effect undone.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Rejected | Self::Cancelled)
    }

    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Draft => "DRAFT",
            Self::Submitted => "SUBMITTED",
            Self::Reviewing => "REVIEWING",
            Self::Approved => "APPROVED",
            Self::Applying => "APPLYING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Rejected => "REJECTED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl TaskCommand {
    /// Whether somebody can ask for it. The others happen by themselves, or are what a worker says.
    #[must_use]
    pub const fn is_command(self) -> bool {
        !matches!(
            self,
            Self::Assign
                | Self::GoStale
                | Self::Expire
                | Self::BeginApply
                | Self::Complete
                | Self::Fail
                | Self::Retry
        )
    }

    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Modify => "modify",
            Self::Delete => "delete",
            Self::Submit => "submit",
            Self::Assign => "assign",
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Revoke => "revoke",
            Self::GoStale => "go_stale",
            Self::Expire => "expire",
            Self::Override => "override",
            Self::ConfirmOverride => "confirm_override",
            Self::ForceApply => "force_apply",
            Self::BeginApply => "begin_apply",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Retry => "retry",
            Self::Stop => "stop",
            Self::RollBack => "roll_back",
            Self::Cancel => "cancel",
            Self::Resubmit => "resubmit",
            Self::Comment => "comment",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for TaskCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_there_once_and_what_is_not_there_is_refused_with_what_is() {
        let rows: BTreeSet<(State, TaskCommand)> =
            TABLE.iter().map(|(from, verb, _)| (*from, *verb)).collect();
        assert_eq!(rows.len(), TABLE.len(), "two rows for the same");
        let refused = next(State::Completed, TaskCommand::Submit).expect_err("nothing begins again");
        assert_eq!(
            refused.to_string(),
            "a task in state COMPLETED cannot be asked to submit; it can be asked to: nothing"
        );
        let refused = next(State::Applying, TaskCommand::Cancel).expect_err("too late");
        assert_eq!(refused.allowed, [TaskCommand::Stop], "its worker says what becomes of it");
    }

    #[test]
    fn nothing_is_applied_that_was_not_approved_and_every_state_leads_to_an_end() {
        for (from, _, to) in TABLE {
            let goes_on = *from == State::Approved || *from == State::Applying;
            assert!(*to != State::Applying || goes_on, "{from} -> {to}");
            assert!(!from.is_final() || from == to, "{from} is an end, and leads to {to}");
        }
        for (start, ..) in TABLE {
            let mut reached = BTreeSet::from([*start]);
            for _ in 0..TABLE.len() {
                let more: Vec<State> =
                    TABLE.iter().filter(|(from, ..)| reached.contains(from)).map(|(.., to)| *to).collect();
                reached.extend(more);
            }
            assert!(reached.iter().any(|state| state.is_final()), "{start} has no end");
        }
    }
}
