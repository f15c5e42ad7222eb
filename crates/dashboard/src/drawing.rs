//! Small drawings: the bar of a number, and the lifecycle of a task.

use ade_client::wire::{RiskLevel, Task, TaskState};

use crate::Markup;

/// A horizontal bar for a value from 0 to 100. `class` selects its colour.
pub(crate) fn meter(value: f64, class: &'static str) -> Markup {
    let mut markup = Markup::new(
        "<svg class=\"meter\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"8\" rx=\"2\"/><rect class=\"fill ",
    );
    let width = format!("{:.1}", value.clamp(0.0, 100.0));
    markup.raw(class).raw("\" height=\"8\" rx=\"2\" width=\"").text(&width).raw("\"/></svg>");
    markup
}

pub(crate) const fn level_name(level: RiskLevel) -> &'static str {
    match level {
        RiskLevel::Low => "LOW",
        RiskLevel::Medium => "MEDIUM",
        RiskLevel::High => "HIGH",
        RiskLevel::Critical => "CRITICAL",
    }
}

/// The level that counts: an unknown risk is the highest. The server counts it in the same way.
pub(crate) fn counted_level(level: Option<RiskLevel>) -> RiskLevel {
    level.unwrap_or(RiskLevel::Critical)
}

/// Whether tasks of this level are approved one by one. The server refuses them among others.
pub(crate) const fn is_decided_alone(level: RiskLevel) -> bool {
    matches!(level, RiskLevel::High | RiskLevel::Critical)
}

/// The stations of every task, and the one where it is or ended.
pub(crate) fn lifecycle(task: &Task) -> Markup {
    const WAY: [(TaskState, &str); 5] = [
        (TaskState::Draft, "Draft"),
        (TaskState::Reviewing, "Reviewing"),
        (TaskState::Approved, "Approved"),
        (TaskState::Applying, "Applying"),
        (TaskState::Completed, "Completed"),
    ];
    let reached = |state: TaskState| task.metadata.since.contains_key(&state.to_string());
    let position = |state| WAY.iter().position(|(station, _)| *station == state);
    // A task that ended elsewhere left the way after the last station that it reached.
    let (last, ending) = match (position(task.state), task.state) {
        (Some(position), _) => (position, None),
        (None, TaskState::Failed) => (3, Some("Failed")),
        (None, TaskState::Rejected) => (if reached(TaskState::Approved) { 2 } else { 1 }, Some("Rejected")),
        (None, TaskState::Cancelled) => {
            let left = (0..4).rev().find(|index| WAY.get(*index).is_some_and(|(state, _)| reached(*state)));
            (left.unwrap_or_default(), Some("Cancelled"))
        }
        (None, _) => (1, None),
    };
    let mut stations: Vec<(&str, &str)> = Vec::new();
    for (index, (state, label)) in WAY.iter().enumerate() {
        let class = match () {
            () if ending.is_some() && index > last => continue,
            () if ending.is_none() && index == last && *state == TaskState::Completed => "now good",
            () if ending.is_none() && index == last => "now",
            () if index <= last && (index == 0 || reached(*state) || index == last) => "past",
            () => "",
        };
        stations.push((class, label));
    }
    stations.extend(ending.map(|label| (if label == "Cancelled" { "now" } else { "now bad" }, label)));
    let mut markup =
        Markup::new("<svg class=\"lifecycle\" viewBox=\"0 0 620 52\" role=\"img\" aria-label=\"Lifecycle: ");
    markup.text(stations.iter().find(|(class, _)| class.starts_with("now")).map_or("", |(_, label)| label));
    markup.raw("\">");
    for index in 1..stations.len() {
        let is_past = stations.get(index).is_some_and(|(class, _)| !class.is_empty());
        markup.raw(if is_past { "<path class=\"edge past\" d=\"M" } else { "<path class=\"edge\" d=\"M" });
        markup.value(54 + (index - 1) * 128 + 12).raw(" 16H").value(54 + index * 128 - 12).raw("\"/>");
    }
    for (index, (class, label)) in stations.iter().enumerate() {
        let x = 54 + index * 128;
        markup.raw("<g class=\"").text(class).raw("\"><circle class=\"node\" cx=\"").value(x);
        markup
            .raw("\" cy=\"16\" r=\"8\"/><text x=\"")
            .value(x)
            .raw("\" y=\"42\">")
            .text(label)
            .raw("</text></g>");
    }
    markup.raw("</svg>");
    markup
}
