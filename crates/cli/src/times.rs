//! Times as people write and read them: relative to now where that says more, exact where it must be.

use std::time::Duration;

use ade_client::wire::Time;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

#[expect(clippy::disallowed_methods, reason = "people read times relative to theirs")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// How long until then.
pub(crate) fn until(time: Time, now: Timestamp) -> String {
    let seconds = (time.0 - now).total(jiff::Unit::Second).unwrap_or_default();
    if seconds < 0.0 { "now".to_owned() } else { span(seconds) }
}

/// How long since then.
pub(crate) fn since(time: Time, now: Timestamp) -> String {
    span((now - time.0).total(jiff::Unit::Second).unwrap_or_default().max(0.0))
}

/// To the second, in UTC: what a table shows.
pub(crate) fn short(time: Time) -> String {
    let clock = time.0.to_zoned(TimeZone::UTC).datetime();
    clock.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A number of seconds, in the unit that people would choose.
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 100.0 * MINUTE => format!("{:.0} min", s / MINUTE),
        s if s < 2.0 * DAY => format!("{:.0} h", s / HOUR),
        s => format!("{:.0} days", s / DAY),
    }
}

/// A moment, or so long from now, in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    Away(Duration),
}

impl When {
    /// So long from now on, or then.
    pub(crate) fn ahead(self, now: Timestamp) -> Time {
        match self {
            Self::At(moment) => Time(moment),
            Self::Away(length) => Time(now.saturating_add(length).unwrap_or(Timestamp::MAX)),
        }
    }

    /// So long ago, or then.
    pub(crate) fn back(self, now: Timestamp) -> Time {
        match self {
            Self::At(moment) => Time(moment),
            Self::Away(length) => Time(now.saturating_sub(length).unwrap_or(Timestamp::MIN)),
        }
    }
}

/// A moment as `2026-07-01T08:00:00Z`, a day or a time of it in UTC, or a length such as `24h`.
pub(crate) fn when(text: &str) -> Result<When, String> {
    let utc = |civil: DateTime| civil.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp());
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(When::At(moment));
    }
    let civil = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from));
    if let Ok(moment) = civil.and_then(utc) {
        return Ok(When::At(moment));
    }
    let wrong =
        "must be a time such as 2026-07-01T08:00:00Z, a day such as 2026-07-01, or a length such as 24h";
    length(text).map(When::Away).map_err(|_| wrong.to_owned())
}

/// A length such as `8h`, `30d`, `90m`, `2w`, or seconds.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a length such as 8h, 30d, 90m or 3600s".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.get(digits.len()..) {
        Some("" | "s") => 1,
        Some("m" | "min") => 60,
        Some("h") => 3_600,
        Some("d") => 86_400,
        Some("w") => 604_800,
        _ => return Err(wrong()),
    };
    let many: u64 = digits.parse().map_err(|_| wrong())?;
    many.checked_mul(unit).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_units() {
        for (text, seconds) in
            [("8h", 28_800), ("30d", 2_592_000), ("90m", 5_400), ("45", 45), ("2w", 1_209_600)]
        {
            assert_eq!(length(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "-1h", "1.5h", "8 h", "8x", "99999999999999999999d"] {
            assert!(length(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_exact_or_relative() {
        let now: Timestamp = "2026-07-02T00:00:00Z".parse().expect("a time");
        let noon = "2026-07-01T12:00:00Z".parse().expect("a time");
        assert_eq!(when("2026-07-01T12:00:00Z"), Ok(When::At(noon)));
        assert_eq!(when("2026-07-01 14:00:00+02:00"), Ok(When::At(noon)));
        assert_eq!(when("2026-07-01 12:00"), Ok(When::At(noon)));
        assert_eq!(when("12h").expect("a length").back(now), Time(noon));
        assert_eq!(when("2026-07-02").expect("a day").ahead(noon), Time(now));
        assert!(when("tomorrow").is_err());
    }

    #[test]
    fn spans_are_told_in_a_unit_that_fits() {
        assert_eq!(span(3.0), "3.0 s");
        assert_eq!(span(600.0), "10 min");
        assert_eq!(span(36_000.0), "10 h");
        assert_eq!(span(864_000.0), "10 days");
    }
}
