//! How long a key lives: the rule as the catalog states it, in words and in durations.

use std::fmt;
use std::time::Duration;

use crate::key::LONGEST_TTL;

/// A duration together with the way the catalog writes it (`120s` stays `120s`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// As written in the catalog.
    pub written: String,
    /// What it means.
    pub duration: Duration,
}

impl Span {
    /// Reads a whole number and one of the units ms, s, m, h, d.
    pub fn parse(written: &str) -> Result<Self, String> {
        let digits = written.len() - written.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = written.split_at(digits);
        let unit_ms = match unit {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            "d" => Some(86_400_000),
            _ => None,
        };
        let Some(unit_ms) = unit_ms.filter(|_| number.contains(|c| c != '0')) else {
            return Err(format!(
                "{written:?} is not a duration; write a whole number above zero and ms, s, m, h or d"
            ));
        };
        let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        match ms.map(Duration::from_millis).filter(|duration| *duration <= LONGEST_TTL) {
            Some(duration) => Ok(Self { written: written.to_owned(), duration }),
            None => Err(format!("{written:?} is longer than a hundred years")),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// The lifetime of a key as its catalog states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttl {
    /// The rule for the key's expiry.
    pub rule: TtlRule,
    /// For streams: approximate bound on the number of entries.
    pub maxlen: Option<u64>,
}

/// The rule for a key's expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TtlRule {
    /// Never expires by itself.
    None,
    /// Always this long.
    Exact(Span),
    /// Any duration between the bounds.
    Range {
        /// Shortest.
        min: Span,
        /// Longest; without it there is no upper bound.
        max: Option<Span>,
    },
    /// This long unless the writer chooses otherwise.
    Default {
        /// If the writer does not choose.
        ttl: Span,
        /// Longest the writer may choose.
        at_most: Option<Span>,
    },
    /// This long, and extended while in use.
    Renewable {
        /// As first written.
        ttl: Span,
        /// Longest a renewal may ask for.
        at_most: Option<Span>,
    },
    /// The rule of another entry.
    Like {
        /// Name of that entry.
        entry: String,
        /// Its rule, never itself a `Like`.
        rule: Box<TtlRule>,
    },
    /// Given by the writer's own data, plus a grace.
    Given {
        /// What gives it, in words.
        by: String,
        /// Grace added to it.
        plus: Option<Span>,
    },
}

impl TtlRule {
    /// The rule with `Like` followed.
    #[must_use]
    pub fn resolved(&self) -> &Self {
        match self {
            Self::Like { rule, .. } => rule,
            other => other,
        }
    }

    /// Whether keys under this rule always expire.
    #[must_use]
    pub fn expires(&self) -> bool {
        *self.resolved() != Self::None
    }
}

impl fmt::Display for TtlRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Exact(span) => write!(f, "{span}"),
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
    fn durations_keep_their_spelling_and_refuse_nonsense() {
        let span = Span::parse("120s").expect("valid");
        assert_eq!((span.to_string().as_str(), span.duration), ("120s", Duration::from_secs(120)));
        assert_eq!(Span::parse("90d").expect("valid").duration, Duration::from_secs(90 * 86_400));
        for wrong in ["", "s", "10", "0s", "-1s", "1.5h", "5 m", "1w", "99999999999999999999d", "١s"] {
            assert!(Span::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
