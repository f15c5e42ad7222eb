//! The lifecycle of a task: states, commands, and the table of all transitions. Whatever is not in the table is refused.

use serde::{Deserialize, Serialize};

/// The state of a task.
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
pub enum TaskState {
    Draft,
    /// Validated, with risk and preview. Left in the same step, for review or approval.
    Submitted,
    /// Reviewers are asked.
    Reviewing,
    /// Every requirement is satisfied or overridden.
    Approved,
    /// A worker holds the locks and applies it.
    Applying,
    Completed,
    /// Applying it failed, or its outcome is unknown.
    Failed,
    /// Rejected by reviewers, or its approval was revoked.
    Rejected,
    /// Cancelled before it was applied.
    Cancelled,
}

/// A command to a task, from a person, a worker or the service.
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
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TaskCommand {
    Modify,
    Delete,
    Submit,
    /// Starts the review; part of a submission.
    Assign,
    /// Every requirement is satisfied, or no approval is required.
    Approve,
    Reject,
    /// Withdraws an approval before the task is applied.
    Revoke,
    /// The preview no longer matches the one that reviewers saw.
    GoStale,
    /// The approval expired.
    Expire,
    /// An administrator requests an approval against the policies.
    Override,
    /// A second administrator confirms the override.
    ConfirmOverride,
    /// An administrator applies it before all others.
    ForceApply,
    /// A worker holds all locks.
    BeginApply,
    Complete,
    /// It failed, was stopped, or its outcome is unknown.
    Fail,
    /// It failed without effects and will be retried.
    Retry,
    /// An administrator stops it while it is applied.
    Stop,
    /// An administrator rolls back the effects of a failed task.
    RollBack,
    Cancel,
    /// Creates a new draft from it.
    Resubmit,
    /// Moves it to an archive before its time.
    Archive,
    Comment,
}

/// All transitions. `Resubmit` does not change the task: it creates another one.
pub const TRANSITIONS: &[(TaskState, TaskCommand, TaskState)] = &[
    (TaskState::Draft, TaskCommand::Modify, TaskState::Draft),
    (TaskState::Draft, TaskCommand::Delete, TaskState::Draft),
    (TaskState::Draft, TaskCommand::Submit, TaskState::Submitted),
    (TaskState::Submitted, TaskCommand::Assign, TaskState::Reviewing),
    (TaskState::Submitted, TaskCommand::Approve, TaskState::Approved),
    (TaskState::Reviewing, TaskCommand::Approve, TaskState::Approved),
    (TaskState::Reviewing, TaskCommand::Reject, TaskState::Rejected),
    (TaskState::Approved, TaskCommand::Revoke, TaskState::Rejected),
    (TaskState::Reviewing, TaskCommand::Modify, TaskState::Reviewing),
    (TaskState::Approved, TaskCommand::Modify, TaskState::Reviewing),
    (TaskState::Reviewing, TaskCommand::GoStale, TaskState::Reviewing),
    (TaskState::Approved, TaskCommand::GoStale, TaskState::Reviewing),
    (TaskState::Approved, TaskCommand::Expire, TaskState::Reviewing),
    (TaskState::Reviewing, TaskCommand::Override, TaskState::Reviewing),
    (TaskState::Reviewing, TaskCommand::ConfirmOverride, TaskState::Approved),
    (TaskState::Approved, TaskCommand::ForceApply, TaskState::Approved),
    (TaskState::Approved, TaskCommand::BeginApply, TaskState::Applying),
    (TaskState::Applying, TaskCommand::Complete, TaskState::Completed),
    (TaskState::Applying, TaskCommand::Fail, TaskState::Failed),
    (TaskState::Applying, TaskCommand::Retry, TaskState::Approved),
    (TaskState::Applying, TaskCommand::Stop, TaskState::Applying),
    (TaskState::Failed, TaskCommand::RollBack, TaskState::Failed),
    (TaskState::Draft, TaskCommand::Cancel, TaskState::Cancelled),
    (TaskState::Submitted, TaskCommand::Cancel, TaskState::Cancelled),
    (TaskState::Reviewing, TaskCommand::Cancel, TaskState::Cancelled),
    (TaskState::Approved, TaskCommand::Cancel, TaskState::Cancelled),
    (TaskState::Cancelled, TaskCommand::Archive, TaskState::Cancelled),
    (TaskState::Rejected, TaskCommand::Resubmit, TaskState::Rejected),
    (TaskState::Failed, TaskCommand::Resubmit, TaskState::Failed),
    (TaskState::Draft, TaskCommand::Comment, TaskState::Draft),
    (TaskState::Reviewing, TaskCommand::Comment, TaskState::Reviewing),
    (TaskState::Approved, TaskCommand::Comment, TaskState::Approved),
];

/// A command that the state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a task in state {state} does not allow {command}; allowed commands: {}", list(.allowed))]
pub struct InvalidTransition {
    pub state: TaskState,
    pub command: TaskCommand,
    pub allowed: Vec<TaskCommand>,
}

fn list(commands: &[TaskCommand]) -> String {
    if commands.is_empty() {
        return "none".to_owned();
    }
    commands.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The commands that people can give in a state.
pub fn commands_for(state: TaskState) -> Vec<TaskCommand> {
    let rows = TRANSITIONS.iter().filter(|(from, command, _)| *from == state && command.is_requestable());
    rows.map(|(_, command, _)| *command).collect()
}

/// The state that a command leads to.
pub fn next_state(state: TaskState, command: TaskCommand) -> Result<TaskState, InvalidTransition> {
    let row = TRANSITIONS.iter().find(|(from, by, _)| *from == state && *by == command);
    row.map(|(.., to)| *to).ok_or_else(|| InvalidTransition { state, command, allowed: commands_for(state) })
}

impl TaskState {
    /// Whether the task can no longer change, except for a rollback of its effects.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Rejected | Self::Cancelled)
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl TaskCommand {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether people can give it. The others come from the service or from workers.
    pub const fn is_requestable(self) -> bool {
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_unique_and_other_commands_are_refused() {
        let rows: BTreeSet<(TaskState, TaskCommand)> =
            TRANSITIONS.iter().map(|(from, command, _)| (*from, *command)).collect();
        assert_eq!(rows.len(), TRANSITIONS.len(), "duplicate rows");
        let refused = next_state(TaskState::Completed, TaskCommand::Submit).expect_err("completed");
        assert_eq!(
            refused.to_string(),
            "a task in state COMPLETED does not allow submit; allowed commands: none"
        );
        let refused = next_state(TaskState::Applying, TaskCommand::Cancel).expect_err("applying");
        assert_eq!(refused.allowed, [TaskCommand::Stop]);
    }

    #[test]
    fn only_approved_tasks_are_applied_and_every_state_reaches_a_final_one() {
        for (from, _, to) in TRANSITIONS {
            let may_apply = *from == TaskState::Approved || *from == TaskState::Applying;
            assert!(*to != TaskState::Applying || may_apply, "{from} -> {to}");
            assert!(!from.is_final() || from == to, "{from} is final, but leads to {to}");
        }
        for (start, ..) in TRANSITIONS {
            let mut reached = BTreeSet::from([*start]);
            for _ in 0..TRANSITIONS.len() {
                let more: Vec<TaskState> = TRANSITIONS
                    .iter()
                    .filter(|(from, ..)| reached.contains(from))
                    .map(|(.., to)| *to)
                    .collect();
                reached.extend(more);
            }
            assert!(reached.iter().any(|state| state.is_final()), "{start} reaches no final state");
        }
    }
}
