//! When a policy applies: on some weekdays, between two hours, by the clocks of a time zone.

use std::collections::BTreeSet;
use std::fmt;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::{Invalid, Moment};

/// A part of every week.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// On which days; none: on all.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Weekday>))]
    pub weekdays: BTreeSet<Weekday>,
    /// From and until which hour, `[from, until)`; a window over midnight belongs to the day on which it begins.
    #[serde(default = "all_day")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<u8>, min_items = 2, max_items = 2))]
    pub hours: (u8, u8),
    /// By whose clocks, as `Europe/Berlin`.
    #[serde(default = "utc")]
    pub time_zone: String,
}

const fn all_day() -> (u8, u8) {
    (0, 24)
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Weekday {
    const ALL: [Self; 7] = [Self::Mon, Self::Tue, Self::Wed, Self::Thu, Self::Fri, Self::Sat, Self::Sun];

    fn of(date: jiff::civil::Date) -> Self {
        let number = usize::try_from(date.weekday().to_monday_zero_offset()).unwrap_or(0);
        Self::ALL.get(number).copied().unwrap_or(Self::Mon)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Mon => "mon",
            Self::Tue => "tue",
            Self::Wed => "wed",
            Self::Thu => "thu",
            Self::Fri => "fri",
            Self::Sat => "sat",
            Self::Sun => "sun",
        }
    }
}

impl Window {
    /// Whether a moment lies in it. A time zone that is not known has no hours.
    #[must_use]
    pub fn contains(&self, now: Moment) -> bool {
        let Ok(zone) = TimeZone::get(&self.time_zone) else { return false };
        let there = now.timestamp().to_zoned(zone);
        let hour = u8::try_from(there.hour()).unwrap_or(0);
        let (from, until) = self.hours;
        let is_on =
            |date: jiff::civil::Date| self.weekdays.is_empty() || self.weekdays.contains(&Weekday::of(date));
        if from < until {
            return is_on(there.date()) && (from..until).contains(&hour);
        }
        // Over midnight: late on its own day, or early on the next.
        let before = there.date().yesterday();
        (hour >= from && is_on(there.date())) || (hour < until && before.is_ok_and(is_on))
    }

    /// What about it cannot be.
    #[must_use]
    pub fn fault(&self) -> Option<Invalid> {
        let (from, until) = self.hours;
        if from > 23 || until > 24 || from == until {
            return Some(Invalid::at(
                "/window/hours",
                "must be two different hours, from 0 to 23 and until 1 to 24",
            ));
        }
        if TimeZone::get(&self.time_zone).is_err() {
            return Some(Invalid::at(
                "/window/time_zone",
                "must be a time zone such as UTC or Europe/Berlin",
            ));
        }
        None
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days: Vec<&str> = self.weekdays.iter().map(|day| day.word()).collect();
        let days = if days.is_empty() { "every day".to_owned() } else { format!("on {}", days.join(", ")) };
        let (from, until) = self.hours;
        write!(f, "{days} from {from}:00 to {until}:00 in {}", self.time_zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Moment {
        Moment::from(text.parse::<jiff::Timestamp>().expect("a time"))
    }

    fn window(days: &[Weekday], hours: (u8, u8), zone: &str) -> Window {
        Window { weekdays: days.iter().copied().collect(), hours, time_zone: zone.to_owned() }
    }

    #[test]
    fn hours_are_those_of_the_zone_and_summer_counts() {
        let office = window(&[Weekday::Mon, Weekday::Fri], (9, 17), "Europe/Berlin");
        // 2026-11-16 is a Monday; Berlin is an hour ahead in winter, two in summer.
        assert!(office.contains(at("2026-11-16T08:00:00Z")) && office.contains(at("2026-11-16T15:59:59Z")));
        assert!(!office.contains(at("2026-11-16T07:59:59Z")) && !office.contains(at("2026-11-16T16:00:00Z")));
        assert!(office.contains(at("2026-07-06T07:00:00Z")) && !office.contains(at("2026-07-06T15:00:00Z")));
        assert!(!office.contains(at("2026-11-17T10:00:00Z")), "a Tuesday");
        assert_eq!(office.to_string(), "on mon, fri from 9:00 to 17:00 in Europe/Berlin");
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
        let night = window(&[Weekday::Sun], (22, 6), "UTC");
        assert!(night.contains(at("2026-11-15T22:00:00Z")) && night.contains(at("2026-11-16T05:59:00Z")));
        assert!(!night.contains(at("2026-11-16T06:00:00Z")) && !night.contains(at("2026-11-15T05:00:00Z")));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let fault = |hours, zone: &str| window(&[], hours, zone).fault().map(|fault| fault.pointer);
        assert_eq!(fault((0, 24), "UTC"), None);
        assert_eq!(fault((9, 9), "UTC").as_deref(), Some("/window/hours"));
        assert_eq!(fault((9, 25), "UTC").as_deref(), Some("/window/hours"));
        assert_eq!(fault((9, 17), "Mars/Olympus").as_deref(), Some("/window/time_zone"));
        assert!(!window(&[], (0, 24), "Mars/Olympus").contains(at("2026-11-16T08:00:00Z")));
    }
}
