//! Times and durations on the command line: parsed from arguments, shown relative to now or in UTC.

use std::time::Duration;

use ade_client::wire::Time;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

#[expect(clippy::disallowed_methods, reason = "relative times are relative to the clock of the user")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Time left until a moment; "now" once it has passed.
pub(crate) fn until(time: Time, now: Timestamp) -> String {
    let seconds = (time.0 - now).total(jiff::Unit::Second).unwrap_or_default();
    if seconds < 0.0 { "now".to_owned() } else { duration(seconds) }
}

/// Time passed since a moment.
pub(crate) fn since(time: Time, now: Timestamp) -> String {
    duration((now - time.0).total(jiff::Unit::Second).unwrap_or_default().max(0.0))
}

/// Time passed since a moment, as in "2 h ago".
pub(crate) fn ago(time: Time, now: Timestamp) -> String {
    format!("{} ago", since(time, now))
}

/// UTC with a precision of seconds, as tables show it.
pub(crate) fn timestamp(time: Time) -> String {
    let clock = time.0.to_zoned(TimeZone::UTC).datetime();
    clock.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A number of seconds in the unit that fits its size.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 100.0 * MINUTE => format!("{:.0} min", s / MINUTE),
        s if s < 2.0 * DAY => format!("{:.0} h", s / HOUR),
        s => format!("{:.0} days", s / DAY),
    }
}

/// An argument that names a moment, either absolute or as a distance from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    Distance(Duration),
}

impl When {
    /// Resolves it; a distance counts from now into the future.
    pub(crate) fn in_future(self, now: Timestamp) -> Time {
        match self {
            Self::At(moment) => Time(moment),
            Self::Distance(length) => Time(now.saturating_add(length).unwrap_or(Timestamp::MAX)),
        }
    }

    /// Resolves it; a distance counts from now into the past.
    pub(crate) fn in_past(self, now: Timestamp) -> Time {
        match self {
            Self::At(moment) => Time(moment),
            Self::Distance(length) => Time(now.saturating_sub(length).unwrap_or(Timestamp::MIN)),
        }
    }
}

/// Parses `2026-07-01T08:00:00Z`, a date or a local time (read as UTC), or a duration such as `24h`.
pub(crate) fn parse_when(text: &str) -> Result<When, String> {
    let utc = |civil: DateTime| civil.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp());
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(When::At(moment));
    }
    let civil = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from));
    if let Ok(moment) = civil.and_then(utc) {
        return Ok(When::At(moment));
    }
    let expected =
        "expected a time such as 2026-07-01T08:00:00Z, a date such as 2026-07-01, or a duration such as 24h";
    parse_duration(text).map(When::Distance).map_err(|_| expected.to_owned())
}

/// Parses a duration such as `8h`, `30d`, `90m`, `2w`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || "expected a duration such as 8h, 30d, 90m or 3600s".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.get(digits.len()..) {
        Some("" | "s") => 1,
        Some("m" | "min") => 60,
        Some("h") => 3_600,
        Some("d") => 86_400,
        Some("w") => 604_800,
        _ => return Err(invalid()),
    };
    let count: u64 = digits.parse().map_err(|_| invalid())?;
    count.checked_mul(unit).map(Duration::from_secs).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_with_units() {
        for (text, seconds) in
            [("8h", 28_800), ("30d", 2_592_000), ("90m", 5_400), ("45", 45), ("2w", 1_209_600)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "-1h", "1.5h", "8 h", "8x", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parses_absolute_and_relative_moments() {
        let now: Timestamp = "2026-07-02T00:00:00Z".parse().expect("a time");
        let noon = "2026-07-01T12:00:00Z".parse().expect("a time");
        assert_eq!(parse_when("2026-07-01T12:00:00Z"), Ok(When::At(noon)));
        assert_eq!(parse_when("2026-07-01 14:00:00+02:00"), Ok(When::At(noon)));
        assert_eq!(parse_when("2026-07-01 12:00"), Ok(When::At(noon)));
        assert_eq!(parse_when("12h").expect("a duration").in_past(now), Time(noon));
        assert_eq!(parse_when("2026-07-02").expect("a date").in_future(noon), Time(now));
        assert!(parse_when("tomorrow").is_err());
    }

    #[test]
    fn shows_durations_in_a_fitting_unit() {
        assert_eq!(duration(3.0), "3.0 s");
        assert_eq!(duration(600.0), "10 min");
        assert_eq!(duration(36_000.0), "10 h");
        assert_eq!(duration(864_000.0), "10 days");
    }
}
