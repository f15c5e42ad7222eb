//! The list of tasks, the page of one task, and its whole preview.

use ade_client::wire::{
    AuditEntry, Comment, Execution, ExecutionResult, LogLine, Phase, Problem, Task, TaskState,
};
use askama::Template;

use crate::drawing::level_name;
use crate::format::{capitalized, chosen, duration, visible};
use crate::review::{CommentRow, Review, StateChip};
use crate::turn::Turn;
use crate::{Shell, short_id, words};

/// Filters of the list, as in its URL.
#[derive(Debug, Clone, Default)]
pub struct TaskFilters {
    pub state: String,
    pub risk: String,
    pub author: String,
    pub resource: String,
    pub tag: String,
    pub task_type: String,
}

#[derive(Debug, Clone, Template)]
#[template(path = "tasks.html")]
pub struct TasksPage {
    pub shell: Shell,
    pub filters: TaskFilters,
    pub tasks: Vec<Task>,
    /// The URL of the first page, if this is another one.
    pub first: Option<String>,
    /// The URL of the next page.
    pub next: Option<String>,
    pub problem: Option<Problem>,
}

const STATES: [&str; 8] =
    ["DRAFT", "REVIEWING", "APPROVED", "APPLYING", "COMPLETED", "FAILED", "REJECTED", "CANCELLED"];

const LEVELS: [&str; 4] = ["LOW", "MEDIUM", "HIGH", "CRITICAL"];

impl TasksPage {
    const fn states(&self) -> [&'static str; 8] {
        STATES
    }

    const fn levels(&self) -> [&'static str; 4] {
        LEVELS
    }

    fn chosen(&self) -> usize {
        let TaskFilters { state, risk, author, resource, tag, task_type } = &self.filters;
        chosen(&[state, risk, author, resource, tag, task_type])
    }

    fn is_filtered(&self) -> bool {
        self.chosen() > 0
    }

    fn title_of(&self, task: &Task) -> String {
        visible(task.config.description.lines().next().unwrap_or_default())
    }

    fn state_of(&self, task: &Task) -> StateChip {
        StateChip::of(task.state)
    }

    fn level_of(&self, task: &Task) -> &'static str {
        task.risk.as_ref().map_or("", |risk| level_name(risk.level))
    }

    fn by(&self, task: &Task) -> String {
        visible(match &task.metadata.lineage.agent_id {
            Some(agent) => format!("{agent} (agent)"),
            None => task.metadata.author_name.clone(),
        })
    }

    fn resources_of(&self, task: &Task) -> String {
        let mut places: Vec<String> =
            task.config.resources.iter().map(|one| format!("{}:{}", one.resource_type, one.id)).collect();
        places.extend(task.scope.iter().map(|part| part.binding.clone()));
        let more = places.len().saturating_sub(2);
        places.truncate(2);
        let text = places.join(", ");
        visible(&if more > 0 { format!("{text} +{more}") } else { text })
    }
}

/// The page of a task.
#[derive(Debug, Clone, Template)]
#[template(path = "task.html")]
pub struct TaskPage {
    pub shell: Shell,
    pub review: Review,
    pub comments: Vec<Comment>,
    /// The newest entries, the newest first.
    pub audit: Vec<AuditEntry>,
    pub logs: Vec<LogLine>,
    /// Why the last command was refused, and what was typed for it.
    pub problem: Option<Problem>,
    pub typed: TypedCommand,
}

/// The fields of a command that was refused.
#[derive(Debug, Clone, Default)]
pub struct TypedCommand {
    /// The path of its form, such as `override/confirm`.
    pub action: String,
    /// Name and text.
    pub fields: Vec<(String, String)>,
}

/// A command to the task with the button that gives it.
pub(crate) struct TaskButton {
    pub(crate) action: &'static str,
    pub(crate) label: &'static str,
    pub(crate) explanation: &'static str,
    pub(crate) class: &'static str,
    pub(crate) needs_reason: bool,
    pub(crate) needs_ticket: bool,
}

/// Name of the command, path of its form, label, what it does, whether it is dangerous, whether it needs a reason.
const COMMANDS: [(&str, &str, &str, &str, bool, bool); 11] = [
    ("submit", "submit", "Submit", "Ask reviewers to decide about it.", false, false),
    ("revoke", "revoke", "Revoke the approval", "It will not be applied, and ends as rejected.", true, true),
    ("stop", "stop", "Stop it", "The worker stops and rolls back if the strategy says so.", true, true),
    (
        "roll_back",
        "rollback",
        "Roll it back",
        "A worker restores what was saved before the attempt.",
        true,
        true,
    ),
    (
        "confirm_override",
        "override/confirm",
        "Confirm the override",
        "It is approved against the policies. You are responsible for it together with the administrator who requested it.",
        true,
        true,
    ),
    (
        "override",
        "override",
        "Request an override",
        "For incidents: a second administrator must confirm it.",
        true,
        true,
    ),
    (
        "force_apply",
        "force-apply",
        "Apply before others",
        "It is applied before all other tasks.",
        false,
        true,
    ),
    ("resubmit", "resubmit", "Submit again", "Creates a new draft of it.", false, false),
    ("archive", "archive", "Archive", "Moves it to an archive before its time.", false, false),
    ("cancel", "cancel", "Cancel the task", "It ends without being applied.", true, false),
    ("delete", "delete", "Delete the draft", "Nothing of it remains but the audit log.", true, false),
];

impl TaskPage {
    /// The commands that the API allows now, but decisions, which have a form of their own.
    fn buttons(&self) -> Vec<TaskButton> {
        let allowed = COMMANDS.iter().filter(|(command, ..)| self.review.is_allowed(command));
        allowed
            .map(|(_, action, label, explanation, is_dangerous, needs_reason)| TaskButton {
                action,
                label,
                explanation,
                class: if *is_dangerous { "danger-button" } else { "" },
                needs_reason: *needs_reason,
                needs_ticket: *action == "override",
            })
            .collect()
    }

    /// What was typed into a field of the command that was refused.
    fn typed(&self, action: &str, field: &str) -> &str {
        let TypedCommand { action: refused, fields } = &self.typed;
        let typed = fields.iter().find(|(name, _)| refused == action && name == field);
        typed.map_or("", |(_, text)| text)
    }

    fn comment_rows(&self) -> Vec<CommentRow> {
        self.comments.iter().map(CommentRow::new).collect()
    }

    fn short_id(&self) -> &str {
        short_id(&self.review.task.task_id)
    }

    fn execution(&self) -> Option<ExecutionView<'_>> {
        self.review.task.execution.as_ref().map(|execution| ExecutionView { execution })
    }

    fn timeline(&self) -> Vec<TimelineRow<'_>> {
        let mut rows: Vec<TimelineRow<'_>> = Vec::new();
        for row in self.audit.iter().map(TimelineRow::new) {
            match rows.last_mut() {
                Some(last) if last.what == row.what && last.who == row.who && last.reason == row.reason => {
                    last.times += 1;
                }
                _ => rows.push(row),
            }
        }
        rows
    }

    fn turn(&self) -> Turn {
        Turn::of(&self.review, self.is_held())
    }

    /// Whether the form of a command is what the page is opened for.
    fn is_next(&self, button: &TaskButton) -> bool {
        match button.action {
            refused if refused == self.typed.action => true,
            "revoke" => self.is_held(),
            "submit" | "override/confirm" => true,
            _ => false,
        }
    }

    /// The hold before a risky task is applied.
    fn is_held(&self) -> bool {
        let is_waiting = self.review.task.held_until.is_some_and(|until| until.0 > self.shell.now);
        is_waiting && self.review.task.state == TaskState::Approved
    }
}

/// The whole preview of a task, however long, with the decision at its end.
#[derive(Debug, Clone, Template)]
#[template(path = "task_preview.html")]
pub struct TaskPreviewPage {
    pub shell: Shell,
    pub review: Review,
}

pub(crate) struct ExecutionView<'a> {
    pub(crate) execution: &'a Execution,
}

impl ExecutionView<'_> {
    pub(crate) fn worker(&self) -> String {
        visible(&self.execution.agent_id)
    }

    pub(crate) fn phase(&self) -> &'static str {
        match (self.execution.result, self.execution.phase) {
            (Some(ExecutionResult::Success), _) => "applied",
            (Some(ExecutionResult::Failure), _) => "failed",
            (Some(ExecutionResult::Timeout), _) => "took too long",
            (Some(ExecutionResult::Cancelled), _) => "was stopped",
            (None, Phase::Prepared) => "holds the locks, nothing has changed yet",
            (None, Phase::Started) => "applying",
            (None, Phase::RollingBack) => "rolling back",
            (None, Phase::Ended) => "ended",
        }
    }

    pub(crate) fn class(&self) -> &'static str {
        match self.execution.result {
            Some(ExecutionResult::Success) => "ok",
            Some(_) => "danger",
            None => "warn",
        }
    }

    pub(crate) fn took(&self) -> Option<String> {
        let end = self.execution.completed_at?;
        let seconds = end.0.as_second() - self.execution.started_at.0.as_second();
        Some(u64::try_from(seconds).map_or_else(|_| String::new(), duration))
    }

    pub(crate) fn output(&self) -> String {
        visible(self.execution.output.as_deref().unwrap_or_default())
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.execution.error.as_deref().map(visible)
    }

    pub(crate) fn code(&self) -> Option<String> {
        let code = self.execution.code?;
        serde_json::to_value(code).ok()?.as_str().map(str::to_owned)
    }

    pub(crate) fn rolled_back(&self) -> Option<&'static str> {
        Some(if self.execution.rolled_back? { "rolled back" } else { "the rollback failed" })
    }
}

pub(crate) struct TimelineRow<'a> {
    pub(crate) entry: &'a AuditEntry,
    pub(crate) class: &'static str,
    pub(crate) what: String,
    /// The state that it led to.
    pub(crate) state: Option<StateChip>,
    pub(crate) who: String,
    pub(crate) reason: String,
    /// How often it happened in a row.
    pub(crate) times: usize,
}

impl<'a> TimelineRow<'a> {
    fn new(entry: &'a AuditEntry) -> Self {
        let class = match entry.to {
            Some(TaskState::Completed | TaskState::Approved) => "ok",
            Some(TaskState::Failed | TaskState::Rejected) => "danger",
            _ => "",
        };
        let what = visible(capitalized(&words::done(&entry.action)));
        let state = entry.to.filter(|to| entry.from != Some(*to)).map(StateChip::of);
        let who = &entry.who;
        let who = match (&who.agent_id, &who.user_id, &who.trigger, &who.service) {
            (Some(agent), Some(user), ..) => format!("agent {agent}, for {user}"),
            (Some(agent), ..) => format!("agent {agent}"),
            (None, Some(user), ..) => user.clone(),
            (None, None, Some(trigger), _) => format!("ADE ({})", words::trigger(trigger)),
            (None, None, None, Some(_)) => "ADE".to_owned(),
            (None, None, None, None) => "operator".to_owned(),
        };
        Self {
            entry,
            class,
            what,
            state,
            who: visible(who),
            reason: visible(entry.reason.as_deref().unwrap_or_default()),
            times: 1,
        }
    }
}
