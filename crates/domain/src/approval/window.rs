//! Time windows of policies: weekdays and hours in a time zone.

use std::collections::BTreeSet;
use std::fmt;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use crate::{InvalidField, Moment};

/// A weekly time window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeWindow {
    /// Empty for every day.
    #[serde(default)]
    pub weekdays: BTreeSet<Weekday>,
    /// The hours `[from, until)`. A window over midnight belongs to the day on which it starts.
    #[serde(default = "all_day")]
    pub hours: (u8, u8),
    /// An IANA time zone, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    pub time_zone: String,
}

const fn all_day() -> (u8, u8) {
    (0, 24)
}

fn utc() -> String {
    "UTC".to_owned()
}

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
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
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
    fn of(date: jiff::civil::Date) -> Self {
        let number = usize::try_from(date.weekday().to_monday_zero_offset()).unwrap_or(0);
        Self::VARIANTS.get(number).copied().unwrap_or(Self::Mon)
    }
}

impl TimeWindow {
    /// Whether the window contains a time. With an unknown time zone it contains none.
    pub fn contains(&self, now: Moment) -> bool {
        let Ok(zone) = TimeZone::get(&self.time_zone) else { return false };
        let local = now.timestamp().to_zoned(zone);
        let hour = u8::try_from(local.hour()).unwrap_or(0);
        let (from, until) = self.hours;
        let is_on =
            |date: jiff::civil::Date| self.weekdays.is_empty() || self.weekdays.contains(&Weekday::of(date));
        if from < until {
            return is_on(local.date()) && (from..until).contains(&hour);
        }
        // Over midnight: late on the day it starts, or early on the next.
        let yesterday = local.date().yesterday();
        (hour >= from && is_on(local.date())) || (hour < until && yesterday.is_ok_and(is_on))
    }

    pub fn validate(&self) -> Option<InvalidField> {
        let (from, until) = self.hours;
        if from > 23 || until > 24 || from == until {
            let rule = "must be two different hours: the first from 0 to 23, the second from 1 to 24";
            return Some(InvalidField::at("window.hours", rule));
        }
        let rule = "must be a time zone such as UTC or Europe/Berlin";
        TimeZone::get(&self.time_zone).is_err().then(|| InvalidField::at("window.time_zone", rule))
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days: Vec<&str> = self.weekdays.iter().map(Into::into).collect();
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

    fn window(days: &[Weekday], hours: (u8, u8), zone: &str) -> TimeWindow {
        TimeWindow { weekdays: days.iter().copied().collect(), hours, time_zone: zone.to_owned() }
    }

    #[test]
    fn uses_local_hours_with_daylight_saving() {
        let work_hours = window(&[Weekday::Mon, Weekday::Fri], (9, 17), "Europe/Berlin");
        // 2026-11-16 is a Monday; Berlin is an hour ahead in winter, two in summer.
        assert!(
            work_hours.contains(at("2026-11-16T08:00:00Z"))
                && work_hours.contains(at("2026-11-16T15:59:59Z"))
        );
        assert!(
            !work_hours.contains(at("2026-11-16T07:59:59Z"))
                && !work_hours.contains(at("2026-11-16T16:00:00Z"))
        );
        assert!(
            work_hours.contains(at("2026-07-06T07:00:00Z"))
                && !work_hours.contains(at("2026-07-06T15:00:00Z"))
        );
        assert!(!work_hours.contains(at("2026-11-17T10:00:00Z")), "a Tuesday");
        assert_eq!(work_hours.to_string(), "on mon, fri from 9:00 to 17:00 in Europe/Berlin");
    }

    #[test]
    fn window_over_midnight_belongs_to_its_first_day() {
        let night = window(&[Weekday::Sun], (22, 6), "UTC");
        assert!(night.contains(at("2026-11-15T22:00:00Z")) && night.contains(at("2026-11-16T05:59:00Z")));
        assert!(!night.contains(at("2026-11-16T06:00:00Z")) && !night.contains(at("2026-11-15T05:00:00Z")));
    }

    #[test]
    fn reports_the_invalid_field() {
        let path =
            |hours, zone: &str| window(&[], hours, zone).validate().map(|invalid| invalid.path.to_string());
        assert_eq!(path((0, 24), "UTC"), None);
        assert_eq!(path((9, 9), "UTC").as_deref(), Some("window.hours"));
        assert_eq!(path((9, 25), "UTC").as_deref(), Some("window.hours"));
        assert_eq!(path((9, 17), "Mars/Olympus").as_deref(), Some("window.time_zone"));
        assert!(!window(&[], (0, 24), "Mars/Olympus").contains(at("2026-11-16T08:00:00Z")));
    }
}
