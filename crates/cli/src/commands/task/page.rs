//! The page of a task: everything a reviewer needs to decide, and the actions that are allowed now.
//!
//! Text written by agents is escaped line by line, so that it cannot imitate other parts of the page.

use std::cmp::Ordering;

use ade_client::Client;
use ade_client::wire::{
    Approval, ApprovalStatus, ChangeKind, Execution, ExecutionResult, LockMode, Phase, Preview,
    PreviewStatus, Requirement, RequirementStatus, RollbackStrategy, Task, TaskState,
};
use ade_domain::text::counted;
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde_json::json;

use super::sections::{self, chain, state_label};
use crate::commands::approval::status_tone;
use crate::failure::Result;
use crate::output::list::fetch_all;
use crate::output::page::Page;
use crate::output::{self, Tone, safe, safe_lines, safe_or_empty, time};

/// The states of a task that succeeds, in order.
const SUCCESS_PATH: [TaskState; 6] = {
    use TaskState::*;
    [Draft, Submitted, Reviewing, Approved, Applying, Completed]
};

pub(super) async fn show(client: &Client, args: &super::TaskArgs) -> Result {
    let task = client.task(&args.task).await?;
    let approvals = fetch_all(async |query| client.task_approvals(&args.task, query).await).await?;
    let value = json!({ "task": task, "approvals": approvals });
    args.format.print(&value, |_| page(&task, &approvals, time::now()))
}

pub(crate) fn page(task: &Task, approvals: &[Approval], now: Timestamp) -> Page {
    let mut page = Page::default();
    header(&mut page, task, now);
    details(&mut page, task);
    if let Some(risk) = &task.risk {
        sections::risk(&mut page, risk);
    }
    preview(&mut page, &task.preview);
    requirements(&mut page, task, approvals);
    if let Some(archive) = &task.requests_archive {
        let hint = format!("restore them with ade archive restore {}", safe(archive));
        page.line(format_args!("  the approval requests are archived; {hint}"));
    }
    reviewers(&mut page, approvals, now);
    sections::why_these_reviewers(&mut page, &task.policies, &task.skipped_reviewers);
    sections::not_automatic(&mut page, &task.not_automatic);
    sections::locks(&mut page, "Locks (when the task was submitted)", &task.lock_preview);
    if let Some(attempt) = &task.execution {
        execution(&mut page, attempt, now);
    }
    page.heading("Allowed actions");
    let allowed = if task.allowed.is_empty() { "none".to_owned() } else { safe(&task.allowed.join(", ")) };
    page.line(format_args!("  {allowed}"));
    page
}

fn header(page: &mut Page, task: &Task, now: Timestamp) {
    let mut description = safe_lines(&task.config.description);
    page.line(description.next().unwrap_or_default().bold());
    description.for_each(|line| page.line(format_args!("  {line}")));
    let metadata = &task.metadata;
    let since = metadata.since.get(&task.state.to_string());
    let since = since.map(|since| format!(" for {}", time::since(*since, now))).unwrap_or_default();
    let forced = if task.forced { ", at the head of the queue".red().to_string() } else { String::new() };
    page.field("state", format!("{}{since}{forced}", state_label(task.state)));
    if task.state == TaskState::Approved {
        page.field("claimed by", task.claimed_by.as_deref().map_or("no worker yet".to_owned(), safe));
        if let Some(until) = task.held_until.filter(|until| until.0 > now) {
            let left = time::until(until, now);
            page.field("held", format!("for {left}; ade task revoke withdraws the approval").yellow());
        }
    }
    if let Some(reopened) = &task.reopened {
        let text = format!("{}: {}", time::ago(reopened.at, now), safe(&reopened.reason));
        page.field("reopened", text.yellow());
    }
    page.field("progress", progress(task));
    page.field("task", format!("{}, revision {}", safe(&task.task_id), task.revision));
    page.field("digest", safe(&task.digest));
    page.field("author", format!("{} ({})", safe(&metadata.author_name), safe(&metadata.author_id)));
    let lineage = &metadata.lineage;
    let origin = [
        lineage.agent_id.as_deref().map(|agent| format!("agent {}", safe(agent))),
        lineage.parent_agent_id.as_deref().map(|parent| format!("parent agent {}", safe(parent))),
        lineage.sponsor_id.as_ref().map(|sponsor| format!("on behalf of {}", safe(sponsor))),
    ];
    page.field("proposed by", origin.into_iter().flatten().collect::<Vec<_>>().join(", "));
    let by_agent: Vec<String> = metadata.by_agent.iter().map(|agent| safe(agent)).collect();
    page.field("written by agent", by_agent.join(", "));
    page.field("team", safe_or_empty(&metadata.team));
    page.field("ticket", safe_or_empty(&metadata.ticket_ref));
    page.field("tags", safe(&metadata.tags.join(", ")));
    page.field("created from", safe_or_empty(&task.predecessor));
    page.field("auto-approved", safe_or_empty(&task.auto_approved));
    if let Some(request) = &task.override_request {
        let (by, when, reason) = (safe(&request.by), time::ago(request.at, now), safe(&request.reason));
        let text = format!("requested by {by} {when} for {}: {reason}", safe(&request.incident_ticket));
        page.field("override", format!("{text}; another admin has one hour to confirm it").yellow());
    }
}

/// The states that the task has passed, the current one, and those to come.
fn progress(task: &Task) -> String {
    let mut states: Vec<TaskState> = SUCCESS_PATH.to_vec();
    if !SUCCESS_PATH.contains(&task.state) {
        states.retain(|state| task.metadata.since.contains_key(&state.to_string()));
        states.push(task.state);
    }
    let current = states.iter().position(|state| *state == task.state).unwrap_or(0);
    let label = |(position, state): (usize, &TaskState)| {
        let word = state.to_string();
        match position.cmp(&current) {
            Ordering::Less if task.metadata.since.contains_key(&word) => format!("{} {word}", "✓".green()),
            Ordering::Less => format!("{} {word}", "–".dimmed()),
            Ordering::Equal => format!("{} {}", "●".bold(), state_label(*state).bold()),
            Ordering::Greater => format!("○ {word}").dimmed().to_string(),
        }
    };
    states.iter().enumerate().map(label).collect::<Vec<_>>().join(" → ")
}

fn details(page: &mut Page, task: &Task) {
    let config = &task.config;
    page.heading("Details");
    page.field("type", format!("{}, version {}", safe(&config.task_type), safe(&config.version)));
    page.field("executor", safe(&config.executor));
    let on_failure = match config.rollback_strategy {
        RollbackStrategy::Automatic if matches!(config.executor.as_str(), "command" | "http") => {
            "rolled back automatically, if a rollback is configured"
        }
        RollbackStrategy::Automatic => "rolled back automatically",
        RollbackStrategy::Manual => "an admin decides about a rollback",
        RollbackStrategy::None => "not rolled back",
    };
    page.field("on failure", on_failure);
    page.field("timeout", time::duration(f64::from(config.timeout_seconds)));
    page.field("priority", config.priority);
    for resource in &config.resources {
        let mode = if resource.mode == LockMode::Shared { "shared" } else { "exclusive" };
        page.field(
            "resource",
            format!("{} {}", safe(&format!("{}:{}", resource.resource_type, resource.id)), mode.dimmed()),
        );
    }
    sections::scope(page, &task.scope);
    if !config.parameters.is_empty() {
        let text = serde_json::to_string_pretty(&config.parameters).unwrap_or_default();
        page.block("parameters", safe_lines(&text));
    }
}

fn preview(page: &mut Page, preview: &Preview) {
    let count = |kind: ChangeKind| preview.changes.iter().filter(|change| change.kind == kind).count();
    let [created, changed, deleted] = [ChangeKind::Create, ChangeKind::Update, ChangeKind::Delete].map(count);
    page.heading(match preview.status {
        PreviewStatus::Ready => {
            format!("Preview: {created} created, {changed} changed, {deleted} deleted")
        }
        PreviewStatus::None => "Preview: not available".to_owned(),
        PreviewStatus::Pending => "Preview: pending, a worker computes it".to_owned(),
        PreviewStatus::Failed => "Preview: failed".to_owned(),
    });
    for change in &preview.changes {
        let mark = match change.kind {
            ChangeKind::Create => "+".green().to_string(),
            ChangeKind::Update => "~".yellow().to_string(),
            ChangeKind::Delete => "-".red().to_string(),
        };
        page.line(format_args!("  {mark} {}", safe(&change.what)));
        for line in change.diff.iter().flat_map(|diff| safe_lines(diff)) {
            page.line(format_args!("      {}", diff_line(&line)));
        }
    }
    if preview.unverifiable {
        page.line(format_args!("  {} declared by the author, not checked by ADE", "unverified:".yellow()));
    }
    if preview.estimated {
        page.line(format_args!("  {} planned by the database, not executed", "estimated:".yellow()));
    }
    for warning in &preview.warnings {
        page.line(format_args!("  {} {}", "warning:".yellow(), safe(warning)));
    }
    for error in &preview.errors {
        page.line(format_args!("  {} {}", "error:".red(), safe(error)));
    }
    page.optional("fingerprint", preview.fingerprint.as_ref());
}

fn diff_line(text: &str) -> String {
    match text.chars().next() {
        Some('+') => text.green().to_string(),
        Some('-') => text.red().to_string(),
        Some('@') => text.cyan().to_string(),
        _ => text.to_owned(),
    }
}

fn execution(page: &mut Page, execution: &Execution, now: Timestamp) {
    page.heading("Execution");
    let (tone, result) = match (execution.result, execution.phase) {
        (Some(ExecutionResult::Success), _) => (Tone::Good, "succeeded"),
        (Some(ExecutionResult::Failure), _) => (Tone::Bad, "failed"),
        (Some(ExecutionResult::Timeout), _) => (Tone::Bad, "timed out"),
        (Some(ExecutionResult::Cancelled), _) => (Tone::Bad, "stopped"),
        (None, Phase::Prepared) => (Tone::Plain, "locks held, nothing changed yet"),
        (None, Phase::Started) => (Tone::Pending, "running"),
        (None, Phase::RollingBack) => (Tone::Pending, "rolling back"),
        (None, Phase::Ended) => (Tone::Plain, "waiting to be retried"),
    };
    page.field("result", tone.paint(result));
    let retries = match execution.retry_count {
        0 => String::new(),
        retries => format!(", {}", counted(retries, "retry", "retries")),
    };
    page.field("attempt", format!("{} by {}{retries}", execution.attempt, safe(&execution.agent_id)));
    page.field("started", time::ago(execution.started_at, now));
    page.optional("ended", execution.completed_at.map(|at| time::ago(at, now)));
    page.field("error", safe_or_empty(&execution.error));
    let rolled_back = execution.rolled_back.map(|rolled_back| match rolled_back {
        true => Tone::Good.paint("yes, all changes are undone"),
        false => Tone::Bad.paint("no"),
    });
    page.optional("rolled back", rolled_back);
    for (label, request) in [("stop requested", &execution.stop), ("rollback requested", &execution.rollback)]
    {
        let text = request.as_ref().map(|it| format!("by {}: {}", safe(&it.by), safe(&it.reason)));
        page.optional(label, text);
    }
    for grant in &execution.grants {
        page.field("lock", format!("{}, fencing token {}", safe(&grant.lock), grant.fencing_token));
    }
    if let Some(output) = &execution.output {
        page.block("output", safe_lines(output));
    }
    page.optional("full output", execution.output_key.as_deref().map(|key| format!("blob {}", safe(key))));
}

fn requirements(page: &mut Page, task: &Task, approvals: &[Approval]) {
    if task.requirements.is_empty() {
        return;
    }
    page.heading(format_args!("Approvals required: at least {}", task.required_count));
    for requirement in &task.requirements {
        let Requirement { policy, status, needed, approved_by, why } = requirement;
        let mark = match status {
            RequirementStatus::Satisfied => "✓ SATISFIED".green().to_string(),
            RequirementStatus::Unsatisfied => "✗ UNSATISFIED".red().to_string(),
            RequirementStatus::Overridden => "! OVERRIDDEN".yellow().to_string(),
            RequirementStatus::NotApplicable => "– NOT_APPLICABLE".dimmed().to_string(),
        };
        page.line(format_args!("  {mark} {}: {}", safe(policy).bold(), safe(why)));
        let approved: Vec<String> = approved_by.iter().map(|user| safe(user)).collect();
        if !approved.is_empty() {
            page.line(format_args!("      approved by: {}", approved.join(", ")));
        }
        let pending = approvals
            .iter()
            .filter(|request| request.status == ApprovalStatus::Pending && request.policies.contains(policy));
        let pending: Vec<String> = pending.map(|request| safe(&request.reviewer_id)).collect();
        if *status == RequirementStatus::Unsatisfied && *needed > 0 && !pending.is_empty() {
            page.line(format_args!("      waiting for: {needed} of {}", pending.join(", ")));
        }
    }
}

fn reviewers(page: &mut Page, approvals: &[Approval], now: Timestamp) {
    let when = |request: &Approval| match request.responded_at {
        Some(at) => time::ago(at, now),
        None if request.status == ApprovalStatus::Pending => {
            if request.due_at.0 < now {
                format!("overdue for {}", time::since(request.due_at, now))
            } else {
                format!("due in {}", time::until(request.due_at, now))
            }
        }
        None => String::new(),
    };
    let reviewers = output::table(approvals)
        .column("APPROVAL", |request| safe(&request.approval_id))
        .column("REVIEWER", |request| safe(&request.reviewer_id))
        .column("STATUS", |request| status_tone(request.status).cell(request.status.to_string()))
        .column("WHEN", when)
        .column("WHY CHOSEN, AND COMMENT", request_notes);
    page.table_section("Reviewers", &reviewers);
}

/// Why the reviewer was chosen, through which delegations, and the comment of the decision.
pub(crate) fn request_notes(request: &Approval) -> String {
    let mut notes: Vec<String> = request.why.iter().map(|why| safe(why)).collect();
    if !request.delegation_chain.is_empty() {
        notes.push(format!("delegated: {}", chain(&request.delegation_chain)));
    }
    notes.extend(request.follows.as_deref().map(|whom| format!("follows {}", safe(whom))));
    notes.extend(request.delegated_to.as_deref().map(|to| format!("delegated to {}", safe(to))));
    let by = request.reviewed_by.as_deref().filter(|by| *by != request.reviewer_id);
    notes.extend(by.map(|by| format!("decided by {}", safe(by))));
    notes.extend(request.response_reason.as_deref().map(|reason| format!("“{}”", safe(reason))));
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture;

    fn plain(task: &Task) -> String {
        let now = "2026-07-01T12:00:00Z".parse().expect("a time");
        anstream::adapter::strip_str(&page(task, &fixture::approvals(), now).to_string()).to_string()
    }

    #[test]
    fn shows_everything_a_decision_needs() {
        let page = plain(&fixture::task());
        for part in [
            "Add an index on orders\n  so that the report ends\n",
            "state            REVIEWING for 2 h",
            "reopened         2 h ago: STALE_PREVIEW: the preview has changed",
            "progress         ✓ DRAFT → ✓ SUBMITTED → ● REVIEWING → ○ APPROVED → ○ APPLYING → ○ COMPLETED",
            "digest           9f86d081884c7d65",
            "author           Ann (ann)",
            "proposed by      agent ci-bot, on behalf of bob",
            "type             migration, version 2",
            "on failure       rolled back automatically",
            "timeout          10 min",
            "resource         database:prod exclusive",
            "    \"table\": \"orders\"",
            "Risk 62\n  ████████████░░░░░░░░ HIGH",
            "████████████████░░░░ resource criticality  80.0 × 0.4 = 32.0  database:prod is registered with 80",
            "Preview: 1 created, 0 changed, 1 deleted",
            "  + index orders_created_at\n      @@ -1 +1 @@\n      -no index\n      +    index",
            "  - index orders_old",
            "  unverified: declared by the author, not checked by ADE",
            "  warning: takes a while",
            "Approvals required: at least 2",
            "  ✗ UNSATISFIED databases: 1 more approval required\n      approved by: dan\n      waiting for: 1 of eve",
            "delegated: cleo → eve",
            "“looks fine”",
            "✓ policy databases: matches database:*",
            "ann is the author",
            "resource:database:prod",
            "nightly",
            "Allowed actions\n  modify, cancel, comment",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }

    #[test]
    fn text_of_agents_cannot_control_the_terminal_or_forge_the_page() {
        let mut task = fixture::task();
        task.config.description = "fine\x1b[2J\nRisk 0\r\u{202e}".to_owned();
        if let Some(change) = task.preview.changes.first_mut() {
            change.what = "a\n✓ SATISFIED all".to_owned();
        }
        let page = page(&task, &[], "2026-07-01T12:00:00Z".parse().expect("a time")).to_string();
        assert!(!page.contains("\x1b[2J") && !page.contains('\r') && !page.contains('\u{202e}'));
        let page = anstream::adapter::strip_str(&page).to_string();
        assert!(page.contains("\n  Risk 0\\r\\u{202e}\n"), "{page}");
        assert!(page.contains("+ a\\n✓ SATISFIED all"), "{page}");
    }

    #[test]
    fn progress_ends_with_the_final_state() {
        let mut task = fixture::task();
        task.state = TaskState::Rejected;
        assert!(plain(&task).contains("progress         ✓ DRAFT → ✓ SUBMITTED → ✓ REVIEWING → ● REJECTED\n"));
    }
}
