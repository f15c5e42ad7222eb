//! A task as one page: everything that somebody who decides about it must see, and what can be done with it.
//!
//! What agents wrote is shown as text, line by line, and cannot pass for anything else.

use ade_client::Client;
use ade_client::wire::{Approval, Execution, Task};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::quorum::{Progress, Status};
use ade_domain::task::{
    ChangeKind, ExecutionResult, Phase, Preview, PreviewStatus, ResourceMode, RollbackStrategy, State,
};
use comfy_table::Cell;
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde_json::json;

use super::parts::{self, chain, fact, line};
use crate::failure::Failure;
use crate::lists::{Shape, all};
use crate::output::{self, heading, safe, safe_lines};
use crate::times;

/// The way of a task that all goes well for.
const WAY: [State; 6] =
    [State::Draft, State::Submitted, State::Reviewing, State::Approved, State::Applying, State::Completed];

pub(super) async fn show(client: &Client, task_id: &str, shape: Shape) -> Result<(), Failure> {
    let task = client.task(task_id).await?;
    let approvals = all(async |query: &[(&str, &str)]| client.task_approvals(task_id, query).await).await?;
    if shape.json {
        return output::json(&json!({ "task": task, "approvals": approvals }));
    }
    output::line(page(&task, &approvals, times::now()).trim_end())
}

/// The whole page.
pub(crate) fn page(task: &Task, approvals: &[Approval], now: Timestamp) -> String {
    let mut page = String::new();
    head(&mut page, task, now);
    what(&mut page, task);
    if let Some(risk) = &task.risk {
        parts::risk(&mut page, risk);
    }
    preview(&mut page, &task.preview);
    requirements(&mut page, task, approvals);
    if let Some(archive) = &task.requests_archive {
        archived(&mut page, archive);
    }
    reviewers(&mut page, approvals, now);
    parts::considered(&mut page, &task.policies, &task.passed_by);
    parts::locks(&mut page, "Locks it needs, as they were when it was submitted", &task.lock_preview);
    if let Some(execution) = &task.execution {
        carried_out(&mut page, execution, now);
    }
    line(&mut page, &heading("You can ask it to"));
    let allowed = if task.allowed.is_empty() { "nothing".to_owned() } else { safe(&task.allowed.join(", ")) };
    line(&mut page, &format!("  {allowed}"));
    page
}

fn head(page: &mut String, task: &Task, now: Timestamp) {
    let mut description = safe_lines(&task.config.description);
    line(page, &description.next().unwrap_or_default().bold().to_string());
    for more in description {
        line(page, &format!("  {more}"));
    }
    let metadata = &task.metadata;
    let since = metadata.since.get(task.state.word());
    let since = since.map(|since| format!(" for {}", times::since(*since, now))).unwrap_or_default();
    let forced = if task.forced { ", before all others".red().to_string() } else { String::new() };
    fact(page, "state", &format!("{}{since}{forced}", parts::state(task.state)));
    if task.state == State::Approved {
        let who = task.claimed_by.as_deref().map(|who| format!("{} tries to carry it out", safe(who)));
        fact(page, "taken by", &who.unwrap_or_else(|| "nobody yet".to_owned()));
    }
    let reopened = task.reopened.as_ref();
    let reopened = reopened.map(|one| format!("{} ago: {}", times::since(one.at, now), safe(&one.why)));
    fact(page, "asked anew", &reopened.map(|text| text.yellow().to_string()).unwrap_or_default());
    fact(page, "way", &way(task));
    fact(page, "task", &format!("{}, revision {}", safe(&task.task_id), task.revision));
    fact(page, "digest", &safe(&task.digest));
    fact(page, "author", &format!("{} ({})", safe(&metadata.author_name), safe(&metadata.author_id)));
    let lineage = &metadata.lineage;
    let through = [
        lineage.agent_id.as_deref().map(|agent| format!("agent {}", safe(agent))),
        lineage.parent_agent_id.as_deref().map(|parent| format!("told by agent {}", safe(parent))),
        lineage.sponsor_id.as_ref().map(|sponsor| format!("answered for by {}", safe(sponsor.as_str()))),
    ];
    fact(page, "through", &through.into_iter().flatten().collect::<Vec<_>>().join(", "));
    fact(page, "team", &metadata.team.as_deref().map(safe).unwrap_or_default());
    fact(page, "ticket", &metadata.ticket_ref.as_deref().map(safe).unwrap_or_default());
    fact(page, "tags", &safe(&metadata.tags.join(", ")));
    fact(page, "made of", &task.predecessor.as_deref().map(safe).unwrap_or_default());
    fact(page, "automatic", &task.auto_approved.as_deref().map(safe).unwrap_or_default());
    if let Some(asked) = &task.override_asked {
        let text = format!(
            "asked for by {} {} ago for {}: {}; a second administrator has an hour",
            safe(&asked.by),
            times::since(asked.at, now),
            safe(&asked.incident_ticket),
            safe(&asked.reason)
        );
        fact(page, "override", &text.yellow().to_string());
    }
}

/// Where it came through, where it is, where it can go.
fn way(task: &Task) -> String {
    let mut states: Vec<State> = WAY.to_vec();
    if !WAY.contains(&task.state) {
        states.retain(|state| task.metadata.since.contains_key(state.word()));
        states.push(task.state);
    }
    let here = states.iter().position(|state| *state == task.state).unwrap_or(0);
    let one = |(place, state): (usize, &State)| {
        let word = state.word();
        let passed = task.metadata.since.contains_key(word);
        match place.cmp(&here) {
            std::cmp::Ordering::Less if passed => format!("{} {word}", "✓".green()),
            std::cmp::Ordering::Less => format!("{} {word}", "–".dimmed()),
            std::cmp::Ordering::Equal => format!("{} {}", "●".bold(), parts::state(*state).bold()),
            std::cmp::Ordering::Greater => format!("○ {word}").dimmed().to_string(),
        }
    };
    states.iter().enumerate().map(one).collect::<Vec<_>>().join(" → ")
}

fn what(page: &mut String, task: &Task) {
    let config = &task.config;
    line(page, &heading("What is to be done"));
    fact(page, "type", &format!("{}, version {}", safe(&config.task_type), safe(&config.version)));
    fact(page, "executor", &safe(&config.executor));
    let rollback = match config.rollback_strategy {
        RollbackStrategy::Automatic if matches!(config.executor.as_str(), "command" | "http") => {
            "changed back at once, where there is a way back"
        }
        RollbackStrategy::Automatic => "changed back at once",
        RollbackStrategy::Manual => "an administrator decides",
        RollbackStrategy::None => "stays as it is",
    };
    let timeout = times::span(f64::from(config.timeout_seconds));
    fact(page, "if it fails", &format!("{rollback}; at most {timeout}"));
    fact(page, "priority", &config.priority.to_string());
    for resource in &config.resources {
        let mode = if resource.mode == ResourceMode::Shared { "shared" } else { "exclusive" };
        fact(page, "touches", &format!("{} {}", safe(&resource.name()), mode.dimmed()));
    }
    if !config.parameters.is_empty() {
        let text = serde_json::to_string_pretty(&config.parameters).unwrap_or_default();
        line(page, &format!("  {}", "parameters".dimmed()));
        for shown in safe_lines(&text) {
            line(page, &format!("    {shown}"));
        }
    }
}

fn preview(page: &mut String, preview: &Preview) {
    let count = |kind: ChangeKind| preview.changes.iter().filter(|change| change.kind == kind).count();
    let title = match preview.status {
        PreviewStatus::Ready => format!(
            "What would change: {} made, {} changed, {} gone",
            count(ChangeKind::Create),
            count(ChangeKind::Update),
            count(ChangeKind::Delete)
        ),
        PreviewStatus::None => "What would change: nobody knows".to_owned(),
        PreviewStatus::Pending => "What would change: a worker is finding out".to_owned(),
        PreviewStatus::Failed => "What would change: finding out failed".to_owned(),
    };
    line(page, &heading(&title));
    for change in &preview.changes {
        let what = safe(&change.what);
        line(
            page,
            &match change.kind {
                ChangeKind::Create => format!("  {} {what}", "+".green()),
                ChangeKind::Update => format!("  {} {what}", "~".yellow()),
                ChangeKind::Delete => format!("  {} {what}", "-".red()),
            },
        );
        for shown in change.diff.iter().flat_map(|diff| safe_lines(diff)) {
            line(page, &format!("      {}", coloured(&shown)));
        }
    }
    if preview.unverifiable {
        line(page, &format!("  {} its author says so; nobody could look", "unverified:".yellow()));
    }
    for warning in &preview.warnings {
        line(page, &format!("  {} {}", "warning:".yellow(), safe(warning)));
    }
    for error in &preview.errors {
        line(page, &format!("  {} {}", "error:".red(), safe(error)));
    }
    fact(page, "fingerprint", &preview.fingerprint.as_ref().map(ToString::to_string).unwrap_or_default());
}

/// How carrying it out stands.
fn carried_out(page: &mut String, execution: &Execution, now: Timestamp) {
    let stands = match (execution.result, execution.phase) {
        (Some(ExecutionResult::Success), _) => "done".green().to_string(),
        (Some(ExecutionResult::Failure), _) => "failed".red().to_string(),
        (Some(ExecutionResult::Timeout), _) => "took too long".red().to_string(),
        (Some(ExecutionResult::Cancelled), _) => "stopped".red().to_string(),
        (None, Phase::Prepared) => "locks are held, nothing is changed yet".to_owned(),
        (None, Phase::Started) => "under way".yellow().to_string(),
        (None, Phase::RollingBack) => "what was changed is changed back".yellow().to_string(),
        (None, Phase::Ended) => "waits to be tried again".to_owned(),
    };
    line(page, &heading("Carried out"));
    let ago = |at| format!("{} ago", times::since(at, now));
    fact(page, "result", &stands);
    let retries = match execution.retry_count {
        0 => String::new(),
        many => format!(", {many} retries"),
    };
    fact(page, "attempt", &format!("{} by {}{retries}", execution.attempt, safe(&execution.agent_id)));
    fact(page, "began", &ago(execution.started_at));
    fact(page, "ended", &execution.completed_at.map(ago).unwrap_or_default());
    fact(page, "error", &execution.error.as_deref().map(safe).unwrap_or_default());
    let undone = match execution.rolled_back {
        Some(true) => "yes, everything is as it was before".green().to_string(),
        Some(false) => "no".red().to_string(),
        None => String::new(),
    };
    fact(page, "changed back", &undone);
    for (what, asked) in [("stop", &execution.stop), ("undo", &execution.undo)] {
        let text =
            asked.as_ref().map(|asked| format!("{} wants it: {}", safe(&asked.by), safe(&asked.reason)));
        fact(page, what, &text.unwrap_or_default());
    }
    for grant in &execution.grants {
        fact(page, "holds", &format!("{} with token {}", safe(&grant.lock), grant.fencing_token));
    }
    if let Some(output) = &execution.output {
        line(page, &format!("  {}", "output".dimmed()));
        for shown in safe_lines(output) {
            line(page, &format!("    {shown}"));
        }
    }
    let more = execution.output_key.as_deref();
    fact(page, "all of it", &more.map(|key| format!("the blob {}", safe(key))).unwrap_or_default());
}

/// A line of a diff.
fn coloured(text: &str) -> String {
    match text.chars().next() {
        Some('+') => text.green().to_string(),
        Some('-') => text.red().to_string(),
        Some('@') => text.cyan().to_string(),
        _ => text.to_owned(),
    }
}

fn requirements(page: &mut String, task: &Task, approvals: &[Approval]) {
    if task.requirements.is_empty() {
        return;
    }
    line(page, &heading(&format!("Who must agree, at least {} in all", task.required_count)));
    for requirement in &task.requirements {
        let Progress { policy, status, needed, approved_by, why } = requirement;
        let mark = match status {
            Status::Satisfied => "✓ SATISFIED".green().to_string(),
            Status::Unsatisfied => "✗ UNSATISFIED".red().to_string(),
            Status::Overridden => "! OVERRIDDEN".yellow().to_string(),
            Status::NotApplicable => "– NOT_APPLICABLE".dimmed().to_string(),
        };
        line(page, &format!("  {mark} {}: {}", safe(policy).bold(), safe(why)));
        let agreed: Vec<String> = approved_by.iter().map(|user| safe(user.as_str())).collect();
        if !agreed.is_empty() {
            line(page, &format!("      agreed: {}", agreed.join(", ")));
        }
        let asked = approvals
            .iter()
            .filter(|request| request.status == ApprovalStatus::Pending && request.policies.contains(policy));
        let missing: Vec<String> = asked.map(|request| safe(&request.reviewer_id)).collect();
        if *status == Status::Unsatisfied && *needed > 0 && !missing.is_empty() {
            line(page, &format!("      missing: {needed} of {}", missing.join(", ")));
        }
    }
}

/// Where requests are that left the record.
fn archived(page: &mut String, archive: &str) {
    let archive = safe(archive);
    line(page, &format!("  who was asked, and what they said, is archived: ade archive restore {archive}"));
}

fn reviewers(page: &mut String, approvals: &[Approval], now: Timestamp) {
    if approvals.is_empty() {
        return;
    }
    line(page, &heading("Who is asked"));
    let mut table = output::table(&["REQUEST", "REVIEWER", "STATUS", "WHEN", "WHY, AND WHAT THEY SAID"]);
    for request in approvals {
        let when = match request.responded_at {
            Some(at) => format!("{} ago", times::since(at, now)),
            None if request.status == ApprovalStatus::Pending => {
                format!("due in {}", times::until(request.due_at, now))
            }
            None => String::new(),
        };
        let (word, tone) = crate::approval::status(request.status);
        table.add_row([
            Cell::new(safe(&request.approval_id)),
            Cell::new(safe(&request.reviewer_id)),
            tone.cell(word),
            Cell::new(when),
            Cell::new(said(request)),
        ]);
    }
    line(page, &table.to_string());
}

/// Why somebody is asked, how it came to that, and what was answered.
pub(crate) fn said(request: &Approval) -> String {
    let mut said: Vec<String> = request.why.iter().map(|why| safe(why)).collect();
    if !request.delegation_chain.is_empty() {
        said.push(format!("handed on: {}", chain(&request.delegation_chain)));
    }
    said.extend(request.follows.as_deref().map(|whom| format!("follows {}", safe(whom))));
    said.extend(request.delegated_to.as_deref().map(|to| format!("now with {}", safe(to))));
    let by = request.reviewed_by.as_deref().filter(|by| *by != request.reviewer_id);
    said.extend(by.map(|by| format!("answered by {}", safe(by))));
    said.extend(request.response_reason.as_deref().map(|reason| format!("“{}”", safe(reason))));
    said.join("; ")
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(task: &Task) -> String {
        let now = "2026-07-01T12:00:00Z".parse().expect("a time");
        anstream::adapter::strip_str(&page(task, &fixture::approvals(), now)).to_string()
    }

    #[test]
    fn a_page_has_all_that_a_decision_needs() {
        let page = plain(&fixture::task());
        for part in [
            "Add an index on orders\n  so that the report ends\n",
            "state        REVIEWING for 2 h",
            "asked anew   2 h ago: STALE_PREVIEW: what would be changed is not what was approved",
            "way          ✓ DRAFT → ✓ SUBMITTED → ● REVIEWING → ○ APPROVED → ○ APPLYING → ○ COMPLETED",
            "digest       9f86d081884c7d65",
            "author       Ann (ann)",
            "through      agent ci-bot, answered for by bob",
            "type         migration, version 2",
            "if it fails  changed back at once; at most 10 min",
            "touches      database:prod exclusive",
            "    \"table\": \"orders\"",
            "Risk 62\n  ████████████░░░░░░░░ HIGH",
            "████████████████░░░░ resource criticality  80.0 × 0.4 = 32.0  database:prod is registered with 80",
            "What would change: 1 made, 0 changed, 1 gone",
            "  + index orders_created_at\n      @@ -1 +1 @@\n      -no index\n      +    index",
            "  - index orders_old",
            "  unverified: its author says so; nobody could look",
            "  warning: takes a while",
            "Who must agree, at least 2 in all",
            "  ✗ UNSATISFIED databases: 1 more must agree\n      agreed: dan\n      missing: 1 of eve",
            "handed on: cleo → eve",
            "“looks fine”",
            "✓ policy databases: it is about database:*",
            "ann wrote it",
            "resource:database:prod",
            "nightly",
            "You can ask it to\n  modify, cancel, comment",
        ] {
            assert!(page.contains(part), "{part:?} is missing in\n{page}");
        }
    }

    #[test]
    fn what_an_agent_wrote_cannot_steer_the_terminal_or_add_to_the_page() {
        let mut task = fixture::task();
        task.config.description = "fine\x1b[2J\nRisk 0\r\u{202e}".to_owned();
        if let Some(change) = task.preview.changes.first_mut() {
            change.what = "a\n✓ SATISFIED all".to_owned();
        }
        let page = page(&task, &[], "2026-07-01T12:00:00Z".parse().expect("a time"));
        assert!(!page.contains("\x1b[2J") && !page.contains('\r') && !page.contains('\u{202e}'));
        let page = anstream::adapter::strip_str(&page).to_string();
        assert!(page.contains("\n  Risk 0\\r\\u{202e}\n"), "{page}");
        assert!(page.contains("+ a\\n✓ SATISFIED all"), "{page}");
    }

    #[test]
    fn a_task_that_left_the_way_is_shown_where_it_went() {
        let mut task = fixture::task();
        task.state = State::Rejected;
        assert!(plain(&task).contains("way          ✓ DRAFT → ✓ SUBMITTED → ✓ REVIEWING → ● REJECTED\n"));
    }
}
