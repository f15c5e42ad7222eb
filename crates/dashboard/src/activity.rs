//! Activity: what happened, newest first, and statistics over time.

use std::collections::BTreeMap;
use std::fmt::Display;

use ade_client::wire::{DailyOutcomes, Event, Overview, Problem, UserStats};
use askama::Template;

use crate::charts::{Series, line, plain, stacked_bars};
use crate::event_text::{EventText, describe, topics};
use crate::format::{count, duration, grouped, segment, visible};
use crate::{Markup, Shell};

/// What is asked for; empty fields ask for everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilters {
    pub topics: String,
    pub events: String,
    pub task_id: String,
}

impl ActivityFilters {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The page with these filters, and the events before one.
    fn link(&self, before: &str) -> String {
        let fields = [
            ("topics", &*self.topics),
            ("events", &self.events),
            ("task", &self.task_id),
            ("before", before),
        ];
        let given = fields.iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> = given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
        format!("/activity?{}", query.join("&"))
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "activity.html")]
pub struct ActivityPage {
    pub shell: Shell,
    pub filters: ActivityFilters,
    /// The newest first.
    pub events: Vec<Event>,
    /// What tasks among them are about, by id, as far as it is known.
    pub descriptions: BTreeMap<String, String>,
    /// Where older events begin; none if there are none.
    pub older: Option<String>,
    /// Whether this is a page of older events, which do not change.
    pub is_older: bool,
    pub problem: Option<Problem>,
}

/// Events that say the same, one after the other.
#[derive(Debug, Clone)]
struct EventRow<'a> {
    /// The oldest of them.
    event: &'a Event,
    text: EventText,
    count: usize,
}

/// The first line of a text, cut at a length that fits a row.
fn shortened(text: &str) -> String {
    const LEN: usize = 70;
    let line = text.lines().next().unwrap_or_default();
    let is_whole = line.chars().count() <= LEN && line.len() == text.trim_end().len();
    let end = if is_whole { "" } else { "…" };
    visible(line.chars().take(LEN).collect::<String>()) + end
}

impl ActivityPage {
    /// The events, with those together that say the same one after the other.
    fn rows(&self) -> Vec<EventRow<'_>> {
        let mut rows: Vec<EventRow<'_>> = Vec::new();
        for event in &self.events {
            let text = describe(event);
            match rows.last_mut() {
                // The oldest one names the row: it stays the same when newer ones join.
                Some(row) if row.text.says_the_same(&text) && row.event.event == event.event => {
                    (row.count, row.event, row.text) = (row.count + 1, event, text);
                }
                _ => rows.push(EventRow { event, text, count: 1 }),
            }
        }
        rows
    }

    /// What the task of an event is about.
    fn description(&self, event: &Event) -> String {
        let task = event.payload.get("task_id").and_then(|id| id.as_str()).unwrap_or_default();
        self.descriptions.get(task).map_or_else(String::new, |text| shortened(text))
    }

    fn kind_link(&self, event: &Event) -> String {
        ActivityFilters { events: event.event.clone(), ..ActivityFilters::default() }.link("")
    }

    fn empty_text(&self) -> (&'static str, &'static str) {
        match (self.filters.is_empty(), self.older.is_some()) {
            (true, _) => {
                ("Nothing happened yet", "What people, agents and the service do appears here at once.")
            }
            (false, true) => ("No event matches so far", "Older events may match."),
            (false, false) => {
                ("No event matches", "Change the filters, or wait: new events appear here at once.")
            }
        }
    }

    fn key(&self, event: &Event) -> String {
        event.id.clone().unwrap_or_default()
    }

    fn topics(&self) -> Vec<(&'static str, &'static str, bool)> {
        topics().map(|(topic, noun)| (topic, noun, topic == self.filters.topics)).collect()
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "activity_charts.html")]
pub struct ChartsPage {
    pub shell: Shell,
    pub overview: Overview,
    /// The viewer's own work, for people who decide.
    pub own: Option<UserStats>,
}

impl ChartsPage {
    /// The days in their order, today last.
    fn days(&self) -> Vec<DailyOutcomes> {
        self.overview.days.iter().rev().cloned().chain(self.overview.today.clone()).collect()
    }

    fn labels(&self) -> Vec<String> {
        let today = self.overview.today.as_ref().map(|today| &*today.day);
        let label = |day: DailyOutcomes| if Some(&*day.day) == today { "today".to_owned() } else { day.day };
        self.days().into_iter().map(label).collect()
    }

    fn values(&self, value: impl Fn(&DailyOutcomes) -> Option<f64>) -> Vec<Option<f64>> {
        self.days().iter().map(value).collect()
    }

    fn outcomes(&self) -> Markup {
        let series = |name, class, value: fn(&DailyOutcomes) -> u64| {
            let values = self.values(|day| Some(number(value(day))));
            Series { name, class, values }
        };
        let all = [
            series("completed", "bar-ok", |day| day.completed),
            series("failed", "bar-danger", |day| day.failed),
            series("rejected", "bar-warn", |day| day.rejected),
            series("cancelled", "bar-muted", |day| day.cancelled),
        ];
        stacked_bars("Tasks that ended on each day, by outcome", &self.labels(), &all)
    }

    fn line(
        &self,
        title: &str,
        values: Vec<Option<f64>>,
        highest: Option<f64>,
        format: fn(f64) -> String,
    ) -> Markup {
        let series = Series { name: "", class: "line-info", values };
        line(title, &self.labels(), &series, highest, format)
    }

    fn time_to_decide(&self) -> Markup {
        let values = self.values(|day| day.median_decision_seconds);
        self.line(
            "Median time from the start of a review to its decision, on each day",
            values,
            None,
            seconds,
        )
    }

    fn approval_rate(&self) -> Markup {
        self.line(
            "Share of reviewed tasks that were approved, on each day",
            self.values(rate),
            Some(1.0),
            percent,
        )
    }

    fn backlog(&self) -> Markup {
        let values = self.values(|day| day.backlog.map(number));
        self.line("Approval requests that waited at the end of each day", values, None, plain)
    }

    fn has_decisions(&self) -> bool {
        self.days().iter().any(|day| day.reviewed > 0)
    }

    fn decided_in(&self, day: &DailyOutcomes) -> String {
        day.median_decision_seconds.map_or_else(|| "–".to_owned(), seconds)
    }

    fn rate(&self, day: &DailyOutcomes) -> String {
        rate(day).map_or_else(|| "–".to_owned(), percent)
    }

    fn waited(&self, day: &DailyOutcomes) -> String {
        day.backlog.map_or_else(|| "–".to_owned(), grouped)
    }

    fn grouped(&self, number: impl Display) -> String {
        grouped(number)
    }

    fn optional(&self, number: &Option<usize>) -> String {
        number.map_or_else(|| "unknown".to_owned(), grouped)
    }

    fn median(&self, own: &UserStats) -> String {
        own.median_response_seconds.map_or_else(|| "–".to_owned(), seconds)
    }

    /// The share of approvals among all decisions of the viewer, and of how many.
    fn own_rate(&self, own: &UserStats) -> (String, String) {
        let of = |status: &str| own.approvals.get(status).copied().unwrap_or_default();
        let (approved, decided) = (of("APPROVED"), of("APPROVED") + of("REJECTED") + of("CHANGES_REQUESTED"));
        match decided {
            0 => ("–".to_owned(), "approved: you have decided nothing yet".to_owned()),
            _ => {
                let decisions = count(usize::try_from(decided).unwrap_or(usize::MAX), "decision");
                (percent(number(approved) / number(decided)), format!("approved, of your {decisions}"))
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tasks are far below 2^52")]
const fn number(count: u64) -> f64 {
    count as f64
}

fn rate(day: &DailyOutcomes) -> Option<f64> {
    (day.reviewed > 0).then(|| number(day.approved) / number(day.reviewed))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A duration of this many seconds.
fn seconds(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    duration(seconds.round() as u64)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn today_is_the_last_day() {
        let day = |day: &str| DailyOutcomes { day: day.to_owned(), ..DailyOutcomes::default() };
        let overview = Overview {
            tasks: BTreeMap::new(),
            tasks_archived: 0,
            pending: 0,
            oldest_pending: None,
            locks_held: None,
            locks_waiting: None,
            agents: None,
            audit_entries: 0,
            days: vec![day("2026-11-17"), day("2026-11-16")],
            today: Some(DailyOutcomes { reviewed: 4, approved: 3, ..day("2026-11-18") }),
        };
        let page = ChartsPage { shell: Shell::anonymous("", Timestamp::UNIX_EPOCH), overview, own: None };
        assert_eq!(page.labels(), ["2026-11-16", "2026-11-17", "today"]);
        let rates: Vec<String> = page.days().iter().map(|day| page.rate(day)).collect();
        assert_eq!(rates, ["–", "–", "75 %"]);
    }
}
