//! Activity: what happened, newest first, and statistics over time.

use std::collections::BTreeMap;
use std::fmt::Display;

use ade_client::wire::{DailyOutcomes, Event, Overview, Problem, UserStats};
use askama::Template;
use jiff::ToSpan;
use jiff::civil::Date;

use crate::charts::{Maximum, Series, line, nice_maximum, nice_seconds, plain, stacked_bars, whole};
use crate::event_text::{EventText, ObjectLink, describe, topics};
use crate::format::{chosen, count, duration, grouped, link, title};
use crate::{Markup, Shell};

/// Days that the charts show before today.
const CHART_DAYS: i64 = 30;

/// What is asked for; empty fields ask for everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilters {
    pub topics: String,
    pub events: String,
    pub task_id: String,
}

impl ActivityFilters {
    fn chosen(&self) -> usize {
        chosen(&[&self.topics, &self.events, &self.task_id])
    }

    fn is_empty(&self) -> bool {
        self.chosen() == 0
    }

    /// The page with these filters, and the events before one.
    fn link(&self, before: &str) -> String {
        let Self { topics, events, task_id } = self;
        link("/activity", &[("topics", topics), ("events", events), ("task", task_id), ("before", before)])
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "activity.html")]
pub struct ActivityPage {
    pub shell: Shell,
    pub filters: ActivityFilters,
    /// The newest first.
    pub events: Vec<Event>,
    /// Titles of tasks among them, by id, as far as the visitor may see them.
    pub titles: BTreeMap<String, String>,
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

    /// What to call an object besides its id; empty if nothing is known.
    fn title_of(&self, object: &ObjectLink) -> String {
        self.titles.get(&object.title).map_or_else(String::new, |text| title(text))
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
    /// The days of which something is known in their order, today last.
    fn days(&self) -> Vec<DailyOutcomes> {
        self.overview.days.iter().rev().cloned().chain(self.overview.today.clone()).collect()
    }

    /// All days of the charts in their order, today last. Of days that are not stored, nothing is known.
    fn drawn_days(&self) -> Vec<DailyOutcomes> {
        let known = self.days();
        let today = self.overview.today.as_ref().and_then(|today| today.day.parse::<Date>().ok());
        let Some(first) = today.and_then(|today| today.checked_sub(CHART_DAYS.days()).ok()) else {
            return known;
        };
        let names = first.series(1.day()).take_while(|day| Some(*day) <= today).map(|day| day.to_string());
        let drawn = names.map(|name| {
            let day = known.iter().find(|day| day.day == name).cloned();
            day.unwrap_or_else(|| DailyOutcomes { day: name, ..DailyOutcomes::default() })
        });
        drawn.collect()
    }

    fn labels(&self) -> Vec<String> {
        let today = self.overview.today.as_ref().map(|today| &*today.day);
        let label = |day: DailyOutcomes| if Some(&*day.day) == today { "today".to_owned() } else { day.day };
        self.drawn_days().into_iter().map(label).collect()
    }

    fn values(&self, value: impl Fn(&DailyOutcomes) -> Option<f64>) -> Vec<Option<f64>> {
        self.drawn_days().iter().map(value).collect()
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
        maximum: Maximum,
        format: fn(f64) -> String,
    ) -> Markup {
        let series = Series { name: "", class: "line-info", values };
        line(title, &self.labels(), &series, maximum, format)
    }

    fn time_to_decide(&self) -> Markup {
        let values = self.values(|day| day.median_decision_seconds);
        self.line(
            "Median time from the start of a review to its decision, on each day",
            values,
            nice_seconds,
            seconds,
        )
    }

    fn approval_rate(&self) -> Markup {
        self.line(
            "Share of reviewed tasks that were approved, on each day",
            self.values(rate),
            whole,
            percent,
        )
    }

    fn backlog(&self) -> Markup {
        let values = self.values(|day| day.backlog.map(number));
        self.line("Approval requests that waited at the end of each day", values, nice_maximum, plain)
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
    let whole = duration(seconds.round() as u64);
    if seconds > 0.0 && seconds < 0.5 { "< 1 s".to_owned() } else { whole }
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
        let labels = page.labels();
        assert_eq!((labels.len(), &*labels[0]), (31, "2026-10-19"), "all days have their place");
        assert_eq!(labels[28..], ["2026-11-16", "2026-11-17", "today"]);
        assert!(page.backlog().to_string().contains("No data yet"));
        let rates: Vec<String> = page.days().iter().map(|day| page.rate(day)).collect();
        assert_eq!(rates, ["–", "–", "75 %"]);
    }
}
