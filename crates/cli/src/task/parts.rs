//! Parts of pages that tasks and simulations share: words with their colours, risk as bars, locks, policies.

use std::fmt::Write;

use ade_client::wire::{LockPreview, Mode, Risk};
use ade_domain::approval::assignment::ConsideredPolicy;
use ade_domain::approval::delegation::Step;
use ade_domain::risk::Level;
use ade_domain::task::State;
use owo_colors::OwoColorize;

use crate::output::{self, Tone, heading, safe};
use crate::times;

/// How wide a bar is.
const BAR: usize = 20;

/// A state, in its colour.
pub(crate) fn state(state: State) -> String {
    tone(state).paint(state.word())
}

/// What is said with the colour of a state.
pub(crate) const fn tone(state: State) -> Tone {
    match state {
        State::Draft | State::Submitted => Tone::Dim,
        State::Reviewing => Tone::Open,
        State::Approved | State::Completed => Tone::Good,
        State::Applying => Tone::Busy,
        State::Failed | State::Rejected => Tone::Bad,
        State::Cancelled => Tone::Odd,
    }
}

/// A level of risk, with its colour.
pub(crate) const fn level(level: Level) -> (&'static str, Tone) {
    match level {
        Level::Low => ("LOW", Tone::Good),
        Level::Medium => ("MEDIUM", Tone::Open),
        Level::High => ("HIGH", Tone::Bad),
        Level::Critical => ("CRITICAL", Tone::Bad),
    }
}

/// A part of 100 as a bar.
pub(crate) fn bar(value: f64) -> String {
    let filled = ((value.clamp(0.0, 100.0) / 100.0 * BAR as f64).round() as usize).min(BAR);
    let (full, empty) = ("█".repeat(filled), "░".repeat(BAR - filled));
    let full = match value {
        v if v < 25.0 => full.green().to_string(),
        v if v < 75.0 => full.yellow().to_string(),
        _ => full.red().to_string(),
    };
    format!("{full}{}", empty.dimmed())
}

/// The score, and each factor with its sentence.
pub(crate) fn risk(page: &mut String, risk: &Risk) {
    let (word, tone) = level(risk.level);
    let automatic = if risk.auto_approvable { ", nobody needs to be asked" } else { "" };
    line(page, &heading(&format!("Risk {}", risk.score)));
    line(page, &format!("  {} {}{automatic}", bar(f64::from(risk.score)), tone.paint(word)));
    let widest = risk.factors.iter().map(|factor| factor.name.len()).max().unwrap_or(0);
    for factor in &risk.factors {
        let sum = format!("{:>5.1} × {:.1} = {:>4.1}", factor.value, factor.weight, factor.contribution);
        let name = safe(&factor.name.replace('_', " "));
        line(page, &format!("  {} {name:<widest$} {sum}  {}", bar(factor.value), safe(&factor.why).dimmed()));
    }
}

/// What applying needs.
pub(crate) fn locks(page: &mut String, about: &str, locks: &[LockPreview]) {
    if locks.is_empty() {
        return;
    }
    line(page, &heading(about));
    let mut table = output::table(&["LOCK", "MODE", "HELD BY", "WAITING", "EXPECTED WAIT"]);
    for lock in locks {
        let mode = if lock.mode == Mode::Shared { "shared" } else { "exclusive" };
        let row = if lock.unavailable {
            [safe(&lock.lock), mode.to_owned(), "nobody could tell".to_owned(), String::new(), String::new()]
        } else {
            let holders =
                if lock.holders.is_empty() { "free".to_owned() } else { safe(&lock.holders.join(", ")) };
            let wait = if lock.expected_wait_seconds > 0.0 {
                times::span(lock.expected_wait_seconds)
            } else {
                String::new()
            };
            [safe(&lock.lock), mode.to_owned(), holders, lock.queue_length.to_string(), wait]
        };
        table.add_row(row);
    }
    line(page, &table.to_string());
}

/// Which policies were looked at, and who was passed by.
pub(crate) fn considered(page: &mut String, policies: &[ConsideredPolicy], passed_by: &[String]) {
    if policies.is_empty() && passed_by.is_empty() {
        return;
    }
    line(page, &heading("Why these"));
    for policy in policies {
        let mark = if policy.applies { "✓".green().to_string() } else { "–".dimmed().to_string() };
        line(page, &format!("  {mark} policy {}: {}", safe(&policy.policy), safe(&policy.why)));
    }
    for passed in passed_by {
        line(page, &format!("  {} {}", "–".dimmed(), safe(passed)));
    }
}

/// How a request came to somebody: `ann → bob → eve`.
pub(crate) fn chain(steps: &[Step]) -> String {
    let first = steps.first().map(|step| safe(step.from.as_str()));
    first.into_iter().chain(steps.iter().map(|step| safe(step.to.as_str()))).collect::<Vec<_>>().join(" → ")
}

/// A line of a page.
pub(crate) fn line(page: &mut String, text: &str) {
    // A String takes all.
    let _ = writeln!(page, "{text}");
}

/// A label and what there is to say, unless there is nothing.
pub(crate) fn fact(page: &mut String, label: &str, text: &str) {
    if !text.is_empty() {
        line(page, &format!("  {:<12} {text}", label.dimmed()));
    }
}
