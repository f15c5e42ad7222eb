//! Lifetime rules of keys, as a catalog states them.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::key::MAX_TTL;

/// A duration that keeps its notation in the catalog (`120s` stays `120s`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TtlDuration {
    /// Notation in the catalog.
    pub written: String,
    /// The duration itself.
    pub duration: Duration,
}

impl TryFrom<String> for TtlDuration {
    type Error = String;

    /// Parses a whole number and one of the units ms, s, m, h, d.
    fn try_from(written: String) -> Result<Self, String> {
        let digits = written.len() - written.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = written.split_at(digits);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => 0,
        };
        if unit_ms == 0 || !number.contains(|c| c != '0') {
            let rule = "write a whole number above zero and ms, s, m, h or d";
            return Err(format!("{written:?} is not a duration; {rule}"));
        }
        let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        match ms.map(Duration::from_millis).filter(|duration| *duration <= MAX_TTL) {
            Some(duration) => Ok(Self { written, duration }),
            None => Err(format!("{written:?} is longer than a hundred years")),
        }
    }
}

impl fmt::Display for TtlDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// The lifetime of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttl {
    /// When the key expires.
    pub rule: TtlRule,
    /// For streams: approximate maximum number of entries.
    pub maxlen: Option<u64>,
}

/// When a key expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TtlRule {
    /// Never.
    None,
    /// After a fixed time.
    Exact(TtlDuration),
    /// After a time that the writer chooses between bounds.
    Range {
        /// Minimum.
        min: TtlDuration,
        /// Maximum; `None` means no upper bound.
        max: Option<TtlDuration>,
    },
    /// After a default time unless the writer chooses another.
    Default {
        /// The default.
        ttl: TtlDuration,
        /// Maximum that the writer may choose.
        at_most: Option<TtlDuration>,
    },
    /// After a time that is extended while the key is in use.
    Renewable {
        /// The initial time.
        ttl: TtlDuration,
        /// Maximum of a renewal.
        at_most: Option<TtlDuration>,
    },
    /// By the rule of another entry.
    Like {
        /// Name of the other entry.
        entry: String,
        /// Its rule, which is never a `Like`.
        rule: Box<TtlRule>,
    },
    /// After a time that the data of the writer determines, plus a grace period.
    Given {
        /// What determines the time, in words.
        by: String,
        /// The grace period.
        plus: Option<TtlDuration>,
    },
}

impl TtlRule {
    /// The rule itself, with `Like` resolved.
    #[must_use]
    pub fn resolved(&self) -> &Self {
        match self {
            Self::Like { rule, .. } => rule,
            other => other,
        }
    }

    /// Whether keys with this rule always expire.
    #[must_use]
    pub fn expires(&self) -> bool {
        *self.resolved() != Self::None
    }
}

impl fmt::Display for TtlRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Exact(ttl) => write!(f, "{ttl}"),
            Self::Range { min, max: Some(max) } => write!(f, "{min} to {max}"),
            Self::Range { min, max: None } => write!(f, "at least {min}"),
            Self::Default { ttl, at_most: None } => write!(f, "{ttl} by default"),
            Self::Default { ttl, at_most: Some(max) } => write!(f, "{ttl} by default, at most {max}"),
            Self::Renewable { ttl, at_most: None } => write!(f, "{ttl}, renewable"),
            Self::Renewable { ttl, at_most: Some(max) } => write!(f, "{ttl}, renewable up to {max}"),
            Self::Like { entry, rule } => write!(f, "as {entry} ({rule})"),
            Self::Given { by, plus: None } => f.write_str(by),
            Self::Given { by, plus: Some(plus) } => write!(f, "{by} + {plus}"),
        }
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.rule, self.maxlen) {
            (rule, None) => write!(f, "{rule}"),
            (TtlRule::None, Some(maxlen)) => write!(f, "MAXLEN ~{maxlen}"),
            (rule, Some(maxlen)) => write!(f, "{rule}; MAXLEN ~{maxlen}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_notation_and_reject_invalid_text() {
        let parse = |text: &str| TtlDuration::try_from(text.to_owned());
        let ttl = parse("120s").expect("valid");
        assert_eq!((ttl.to_string().as_str(), ttl.duration), ("120s", Duration::from_secs(120)));
        assert_eq!(parse("90d").expect("valid").duration, Duration::from_secs(90 * 86_400));
        for invalid in ["", "s", "10", "0s", "-1s", "1.5h", "5 m", "1w", "99999999999999999999d", "١s"] {
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }
}
