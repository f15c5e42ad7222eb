//! Labels of task states and risk levels, and the page sections that tasks and simulations share.

use ade_client::wire::{
    ConsideredPolicy, DelegationStep, LockPreview, Risk, RiskLevel, ScopePart, TaskState,
};
use owo_colors::OwoColorize;

use crate::commands::lock::mode_name;
use crate::output::page::Page;
use crate::output::{self, Tone, safe, time};

/// Characters of a full bar.
const BAR_WIDTH: usize = 20;

/// A state in its colour.
pub(crate) fn state_label(state: TaskState) -> String {
    state_tone(state).paint(&state.to_string())
}

pub(crate) const fn state_tone(state: TaskState) -> Tone {
    match state {
        TaskState::Draft | TaskState::Submitted => Tone::Dim,
        TaskState::Reviewing => Tone::Pending,
        TaskState::Approved | TaskState::Completed => Tone::Good,
        TaskState::Applying => Tone::Active,
        TaskState::Failed | TaskState::Rejected => Tone::Bad,
        TaskState::Cancelled => Tone::Unusual,
    }
}

pub(crate) const fn risk_level(level: RiskLevel) -> (&'static str, Tone) {
    match level {
        RiskLevel::Low => ("LOW", Tone::Good),
        RiskLevel::Medium => ("MEDIUM", Tone::Pending),
        RiskLevel::High => ("HIGH", Tone::Bad),
        RiskLevel::Critical => ("CRITICAL", Tone::Bad),
    }
}

/// A value from 0 to 100 as a bar.
fn bar(value: f64) -> String {
    let filled = ((value.clamp(0.0, 100.0) / 100.0 * BAR_WIDTH as f64).round() as usize).min(BAR_WIDTH);
    let (full, empty) = ("█".repeat(filled), "░".repeat(BAR_WIDTH - filled));
    let tone = match value {
        v if v < 25.0 => Tone::Good,
        v if v < 75.0 => Tone::Pending,
        _ => Tone::Bad,
    };
    format!("{}{}", tone.paint(&full), empty.dimmed())
}

/// The score and its factors.
pub(crate) fn risk(page: &mut Page, risk: &Risk) {
    let (word, tone) = risk_level(risk.level);
    let automatic = if risk.auto_approvable { ", low enough for automatic approval" } else { "" };
    page.heading(format_args!("Risk {}", risk.score));
    page.line(format_args!("  {} {}{automatic}", bar(f64::from(risk.score)), tone.paint(word)));
    let width = risk.factors.iter().map(|factor| factor.name.len()).max().unwrap_or(0);
    for factor in &risk.factors {
        let sum = format!("{:>5.1} × {:.1} = {:>4.1}", factor.value, factor.weight, factor.contribution);
        let (name, why) = (safe(&factor.name.replace('_', " ")), safe(&factor.why));
        page.line(format_args!("  {} {name:<width$} {sum}  {}", bar(factor.value), why.dimmed()));
    }
}

pub(crate) fn locks(page: &mut Page, title: &str, locks: &[LockPreview]) {
    let held_by = |lock: &LockPreview| match lock.holders.as_slice() {
        _ if lock.unavailable => "unknown".to_owned(),
        [] => "free".to_owned(),
        holders => safe(&holders.join(", ")),
    };
    let wait = |lock: &LockPreview| {
        let wait = Some(lock.expected_wait_seconds).filter(|wait| !lock.unavailable && *wait > 0.0);
        wait.map(time::duration).unwrap_or_default()
    };
    let table = output::table(locks)
        .column("LOCK", |lock| safe(&lock.lock))
        .column("MODE", |lock| mode_name(lock.mode))
        .column("HELD BY", held_by)
        .column("WAITING", |it| if it.unavailable { String::new() } else { it.queue_length.to_string() })
        .column("EXPECTED WAIT", wait);
    page.table_section(title, &table);
}

/// The policies that were considered, and the reviewers that were skipped.
pub(crate) fn why_these_reviewers(page: &mut Page, policies: &[ConsideredPolicy], skipped: &[String]) {
    if policies.is_empty() && skipped.is_empty() {
        return;
    }
    page.heading("Why these reviewers");
    for policy in policies {
        let mark = if policy.applies { "✓".green().to_string() } else { "–".dimmed().to_string() };
        page.line(format_args!("  {mark} policy {}: {}", safe(&policy.policy), safe(&policy.why)));
    }
    for reason in skipped {
        page.line(format_args!("  {} {}", "–".dimmed(), safe(reason)));
    }
}

/// Targets that are shown; a task can have hundreds.
const MAX_SHOWN_TARGETS: usize = 10;

/// What a task can touch, as derived from its parameters: nobody declared it.
pub(crate) fn scope(page: &mut Page, scope: &[ScopePart]) {
    let targets: Vec<&String> = scope.iter().flat_map(|part| &part.targets).collect();
    for target in targets.iter().take(MAX_SHOWN_TARGETS) {
        page.field("target", safe(target));
    }
    if let Some(more) = targets.len().checked_sub(MAX_SHOWN_TARGETS).filter(|more| *more > 0) {
        page.field("target", format_args!("and {more} more"));
    }
    for part in scope {
        for resource in &part.resources {
            let name = safe(&format!("{}:{}", resource.resource_type, resource.id));
            let origin = format!("bound to {}", safe(&part.binding));
            page.field("resource", format_args!("{name} {}", origin.dimmed()));
        }
    }
}

/// Why reviewers are asked at all.
pub(crate) fn not_automatic(page: &mut Page, reasons: &[String]) {
    if reasons.is_empty() {
        return;
    }
    page.heading("Why not automatic");
    for reason in reasons {
        page.line(format_args!("  {} {}", "–".dimmed(), safe(reason)));
    }
}

/// A delegation chain: `ann → bob → eve`.
pub(crate) fn chain(steps: &[DelegationStep]) -> String {
    let first = steps.first().map(|step| safe(&step.from));
    first.into_iter().chain(steps.iter().map(|step| safe(&step.to))).collect::<Vec<_>>().join(" → ")
}
