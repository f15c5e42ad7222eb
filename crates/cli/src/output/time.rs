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

/// Parses a moment for a query; a duration counts from now into the past.
pub(crate) fn parse_past(text: &str) -> Result<String, String> {
    let ago = |length| now().saturating_sub(length).unwrap_or(Timestamp::MIN);
    parse_when(text, ago).map(|time| time.to_string())
}

/// Parses a moment; a duration counts from now into the future.
pub(crate) fn parse_future(text: &str) -> Result<Time, String> {
    parse_when(text, |length| now().saturating_add(length).unwrap_or(Timestamp::MAX))
}

/// Parses `2026-07-01T08:00:00Z`, a date or a local time (read as UTC), or a duration such as `24h`.
fn parse_when(text: &str, from_now: impl FnOnce(Duration) -> Timestamp) -> Result<Time, String> {
    let utc = |civil: DateTime| civil.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp());
    let civil = || text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from));
    if let Ok(moment) = text.parse::<Timestamp>().or_else(|_| civil().and_then(utc)) {
        return Ok(Time(moment));
    }
    let expected =
        "expected a time such as 2026-07-01T08:00:00Z, a date such as 2026-07-01, or a duration such as 24h";
    parse_duration(text).map(|length| Time(from_now(length))).map_err(|_| expected.to_owned())
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
        let noon = Ok(Time("2026-07-01T12:00:00Z".parse().expect("a time")));
        let parse = |text: &str| parse_when(text, |length| now - length);
        for text in ["2026-07-01T12:00:00Z", "2026-07-01 14:00:00+02:00", "2026-07-01 12:00", "12h"] {
            assert_eq!(parse(text), noon, "{text}");
        }
        assert_eq!(parse("2026-07-02"), Ok(Time(now)));
        assert!(parse("tomorrow").is_err());
        let (past, future) = (parse_past("12h").expect("a time"), parse_future("12h").expect("a time"));
        assert!(past < future.to_string());
    }

    #[test]
    fn shows_durations_in_a_fitting_unit() {
        assert_eq!(duration(3.0), "3.0 s");
        assert_eq!(duration(600.0), "10 min");
        assert_eq!(duration(36_000.0), "10 h");
        assert_eq!(duration(864_000.0), "10 days");
    }
}
